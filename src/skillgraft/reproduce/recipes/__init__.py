"""Every table and figure of both papers, and what goes beyond them, by name. A new file of recipes is one more name in FILES."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from skillgraft.errors import InputError, did_you_mean
from skillgraft.reproduce.recipe import Recipe
from skillgraft.reproduce.recipes import (
    arithmetic,
    calibration,
    continual,
    generalization,
    localization,
    multitask,
    pulled,
    regions,
    talos,
    talos_regions,
    transfer,
)

FILES = (
    localization,
    pulled,
    calibration,
    transfer,
    regions,
    generalization,
    multitask,
    continual,
    arithmetic,
    talos,
    talos_regions,
)
RECIPES: Mapping[str, Recipe] = MappingProxyType({name: one for file in FILES for name, one in file.RECIPES.items()})


def recipe(name: str) -> Recipe:
    """A recipe by name."""
    if name not in RECIPES:
        raise InputError(f"unknown recipe {name!r}; {did_you_mean(name, RECIPES)}")
    return RECIPES[name]
