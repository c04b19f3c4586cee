"""Every table and figure of both papers, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from skillgraft.errors import InputError, did_you_mean
from skillgraft.reproduce.recipe import Recipe
from skillgraft.reproduce.recipes import localization

RECIPES: Mapping[str, Recipe] = MappingProxyType({**localization.RECIPES})


def recipe(name: str) -> Recipe:
    """A recipe by name."""
    if name not in RECIPES:
        raise InputError(f"unknown recipe {name!r}; {did_you_mean(name, RECIPES)}")
    return RECIPES[name]
