"""docs/api.md has the public names, all of them and nothing else, and docs/papers.md names what exists."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path

import skillgraft
from skillgraft.papers.recipes import RECIPES

DOCS = Path(__file__).parents[1] / "docs"


def test_the_page_has_the_public_names_and_nothing_else() -> None:
    named = re.findall(
        r"^\.\. auto(class|function):: skillgraft\.(\w+)$", (DOCS / "api.md").read_text("utf-8"), re.MULTILINE
    )
    kinds = {name: "class" if inspect.isclass(getattr(skillgraft, name)) else "function" for name in skillgraft.__all__}
    assert len(named) == len(kinds)
    assert {name: kind for kind, name in named} == kinds


def test_every_public_name_has_a_description() -> None:
    assert [name for name in skillgraft.__all__ if not inspect.getdoc(getattr(skillgraft, name))] == []


def test_every_name_in_the_table_of_the_papers_exists() -> None:
    text = (DOCS / "papers.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[a-z_]+\.)+[A-Za-z_]+)`", text))
    assert len(named) > 30
    for name in named:
        module, _, attribute = name.rpartition(".")
        assert hasattr(import_module(f"skillgraft.{module}"), attribute), name


def test_every_recipe_stands_in_the_table_of_the_papers() -> None:
    text = (DOCS / "papers.md").read_text(encoding="utf-8")
    assert set(RECIPES) - set(re.findall(r"`([\w-]+)`", text)) == set()
