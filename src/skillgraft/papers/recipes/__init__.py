"""Every table and figure of both papers, and what goes beyond them, by name. A new file of recipes is one more name in FILES."""

from __future__ import annotations

from skillgraft.errors import InputError, did_you_mean
from skillgraft.papers.recipe import Recipe
from skillgraft.papers.recipes import arithmetic, generalization, localization, multitask, regions

FILES = (localization, generalization, regions, multitask, arithmetic)
# A plain table: a recipe of one's own is one more row, added from anywhere.
RECIPES: dict[str, Recipe] = {name: one for file in FILES for name, one in file.RECIPES.items()}


def recipe(name: str) -> Recipe:
    """A recipe by name."""
    if name not in RECIPES:
        raise InputError(f"unknown recipe {name!r}; {did_you_mean(name, RECIPES)}")
    return RECIPES[name]
