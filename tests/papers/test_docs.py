"""docs/reproduce.md tells the truth: its recipe drafts, its table of profiles is the program's."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from skillgraft.papers.profile import PROFILES, profile

PAGE = (Path(__file__).parents[2] / "docs" / "reproduce.md").read_text(encoding="utf-8")


def test_the_example_of_a_recipe_drafts(studio: Path, tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    path = tmp_path / "sizes.py"
    path.write_text(code, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("sizes", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    asked = profile("smoke", base=str(studio / "bert"), tasks=(str(studio / "films.toml"),))
    (draft,) = module.RECIPES["sizes"].draft(asked)
    assert list(draft.cells) == [("films", name) for name in ("base", "tuned", "graft 0.01 %", "graft 1 %")]
    assert {step.name for step in draft.steps()} == {"ask"}


def test_the_profiles_are_those_of_the_program() -> None:
    (header,) = re.findall(r"^\| \| (.*) \|$", PAGE, flags=re.MULTILINE)
    assert set(re.findall(r"`([\w-]+)`", header)) == set(PROFILES)
    for name in PROFILES:
        chosen = profile(name, base="b")
        assert f"{chosen.few} and {chosen.many}" in PAGE
        assert f"{chosen.region_steps} steps of {chosen.region_rows:,} rows" in PAGE
