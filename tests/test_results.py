"""docs/results.md and the pages of results: they are what the JSON files say, and a claim names cells that exist."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from skillgraft.errors import InputError
from skillgraft.report.sheet import load_result
from tests.readouts import making

ROOT = Path(__file__).parents[1]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(ROOT / "examples")
    yield importlib.import_module("result_pages")
    for name in ("result_pages", "first_screen", "results"):
        sys.modules.pop(name, None)


def test_the_pages_are_what_the_results_say(made: ModuleType) -> None:
    for path, text in made.pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path}: run examples/results.py --write"


def test_every_result_has_its_page_and_every_page_its_result(made: ModuleType) -> None:
    results = {path.with_suffix(".md") for path in ROOT.glob("docs/results/*/*.json")}
    assert results == set(ROOT.glob("docs/results/*/*.md")) == set(made.pages()) - {made.PAGE, made.README}


def test_every_result_is_measured_once_what_tells_most_first(made: ModuleType) -> None:
    order = [part["id"] for part in made.in_turn()]
    first = made._file("results.toml")["first"]
    assert order[: len(first)] == first
    assert sorted(order) == sorted(part["id"] for part in made.parts() if "recipe" in part)


@pytest.mark.long
def test_every_result_can_be_planned(made: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its recipe, profile, tasks and methods exist; no data and none of the models are needed to know that."""
    monkeypatch.setenv("SKILLGRAFT_DATA", str(tmp_path))
    results, base = importlib.import_module("results"), making.bert(tmp_path / "bert")
    monkeypatch.setattr(results, "base_folder", lambda _name: str(base))
    for part in made.in_turn():
        assert results.left(part, 1).startswith(f"{part['id']}: "), part["id"]


def test_a_claim_shows_the_numbers_of_its_cells(made: ModuleType) -> None:
    """One of them read by hand."""
    (sheet,) = load_result(ROOT / "docs" / "results" / "fig2-512" / "fig2.json").sheets
    cell = sheet.cells["0.001", "learned"]
    assert cell.value is not None
    assert cell.low is not None
    assert cell.high is not None
    expected = f"learned {100 * cell.value:.1f} [{100 * cell.low:.1f}, {100 * cell.high:.1f}], movement"
    (line,) = (line for line in made.pages()[made.PAGE].splitlines() if "movement above random" in line)
    assert expected in line
    assert "(results/fig2-512/fig2.md)" in line


def test_a_verdict_has_no_numbers_of_its_own(made: ModuleType) -> None:
    """P1, L1, γ_base and the shots that name a result are not measurements."""
    for claim in made._file("claims.toml")["claim"]:
        assert not re.findall(r"\d", re.sub(r"P\d|L1|\d+ rows", "", claim["verdict"])), claim["verdict"]


def test_the_command_has_all_that_the_part_says(made: ModuleType) -> None:
    part = {
        "id": "x",
        "recipe": "fig2",
        "base": "b",
        "profile": "cpu-100m",
        "tasks": ["sst2"],
        "shots": [64],
        "looks": 3,
    }
    assert (
        made.command(part) == "skillgraft reproduce fig2 --base b --task sst2 --shots 64 --profile cpu-100m (looks = 3)"
    )


def test_the_readmes_numbers_are_those_of_the_results(made: ModuleType) -> None:
    """Two of them read by hand; a task without a number has a dash."""
    (sheet,) = (
        each for each in load_result(made.RESULTS / "table2-512" / "table2.json").sheets if each.title.startswith("512")
    )
    score, ece = (sheet.cells["qnli", column].value for column in ("graft", "graft ECE"))
    lines = made.first_screen.kept().splitlines()
    (line,) = (each for each in lines if "P1's search learned" in each)
    assert line.endswith(f"| {100 * score:.1f} ({100 * ece:.1f}) |")
    assert lines[-1].split(" | ")[2] == "–", "no such task in the table of continual learning"


def test_numbers_that_share_a_name_stand_behind_it(made: ModuleType) -> None:
    numbers = [(("sst2", "tuned"), "12.6"), (("sst2", "graft"), "5.2"), (("qnli", "tuned"), "17.6")]
    assert made._listed(numbers) == "sst2 tuned 12.6, graft 5.2; qnli tuned 17.6"
    assert made._listed([((), "3.0")]) == "3.0"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"row": "0.002"}, "has no '0.002'; did you mean '0.001'"),
        ({"column": "learnt"}, "has no 'learnt'; did you mean 'learned'"),
        ({"sheet": "qqp"}, "expected one sheet that begins with 'qqp', found 0"),
        ({"result": "fig2-511"}, "no result 'fig2-511'; did you mean 'fig2-512'"),
    ],
)
def test_a_claim_about_cells_that_do_not_exist_is_refused(
    made: ModuleType, wrong: dict[str, str], message: str
) -> None:
    line = {"name": "n", "result": "fig2-512", "sheet": "sst2", "row": "0.001", "column": "learned", **wrong}
    with pytest.raises(InputError, match=message):
        list(made._numbers(line))
