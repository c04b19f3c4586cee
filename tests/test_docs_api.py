"""docs/api.md is what the docstrings say now, and docs/papers.md names what exists."""

from __future__ import annotations

import importlib.util
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

from skillgraft.papers.recipes import RECIPES

DOCS = Path(__file__).parents[1] / "docs"


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_api", DOCS / "make_api.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date() -> None:
    assert (DOCS / "api.md").read_text(encoding="utf-8") == generator().page(), "run `python docs/make_api.py`"


def test_the_page_says_nothing_about_this_machine() -> None:
    assert " at 0x" not in (DOCS / "api.md").read_text(encoding="utf-8")


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
