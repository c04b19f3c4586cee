"""Sheets and results: what they refuse, how they are written, that files give them back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillgraft.errors import InputError
from skillgraft.report.blocks import table_of
from skillgraft.report.sheet import Cell, Result, Sheet, load_result, mark, markdown, save_result, seeds_shown
from skillgraft.values.printing import Unit, shown

from .making import curve, grid, html


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.847, "percent", "84.7"), (-0.0004, "percent", "-0.04"), (1e-4, "percent", "0.01"), (1e-6, "percent", "0.0001"),
        (-1e-7, "percent", "0.0"), (-0.0, "number", "0"), (1, "percent", "100.0"),
        (8500, "number", "8,500"), (0.32174, "number", "0.3217"),
        (1e-5, "number", "1e-05"), (0, "number", "0"), (-2.0, "number", "-2"), (999, "bytes", "999 B"),
        (336_200, "bytes", "336.2 kB"),
        (5e12, "bytes", "5000.0 GB"),
    ],
)  # fmt: skip
def test_numbers_as_a_reader_sees_them(value: float, unit: Unit, text: str) -> None:
    assert shown(value, unit) == text


def test_an_interval_needs_both_ends() -> None:
    assert Cell(0.5, 0.4, 0.6).interval == (0.4, 0.6)
    assert Cell(0.5, 0.4).interval is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cell(), "carries the reason why"),
        (lambda: Cell(float("nan")), "finite number, found nan"),
        (lambda: Cell(0.5, float("-inf"), 1.0), "finite number, found -inf"),
        (lambda: grid("pie"), "unknown look 'pie'; Known: table, lines, bars, heatmap"),
        (lambda: grid("lines"), "rows of lines are numbers (the x axis), found 'sst2'"),
        (lambda: grid(unit="procent"), "unknown unit 'procent'; did you mean 'percent'?"),
        (lambda: Sheet("t", ("a", "a"), ("x",), {("a", "x"): Cell(1.0)}), "found one twice"),
        (
            lambda: Sheet("t", ("a",), ("x", "y"), {("a", "x"): Cell(1.0)}),
            "1 cells are missing, the first is ('a', 'y')",
        ),
    ],
)
def test_what_is_refused(make: Any, message: str) -> None:
    with pytest.raises(InputError) as error:
        make()
    assert message in str(error.value)


def test_markdown() -> None:
    assert markdown(Result("table2", "Grafts", (grid(notes=("64 shots.",)),), ("CPU profile.",))) == (
        "## table2: Grafts\n\n**Accuracy** (%)\n\n| task / model | base | graft |\n| --- | ---: | ---: |\n"
        "| sst2 | 50.0 [40.0, 60.0] (paper 55.0) | 80.0 [70.0, 90.0] |\n| trec | 25.0 | – (a) |\n\n"
        "(a) no skill to localise\n\n64 shots.\n\n- CPU profile.\n"
    )


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (Cell(0.847, 0.824, 0.869, seeds=(0.841, 0.853)), "84.7 [82.4, 86.9] (seeds 84.1, 85.3)"),
        (
            Cell(0.847, 0.824, 0.869, paper=0.91, seeds=(0.841, 0.853)),
            "84.7 [82.4, 86.9] (seeds 84.1, 85.3; paper 91.0)",
        ),
        (Cell(0.5, seeds=(0.4, 0.5, 0.6, 0.45, 0.55), paper=0.5), "50.0 (5 seeds, std 7.9; paper 50.0)"),
        (Cell(0.5, 0.4, 0.6), "50.0 [40.0, 60.0]"),
    ],
)
def test_the_seeds_numbers_stand_beside_the_mean(cell: Cell, text: str) -> None:
    sheet = Sheet("t", ("r",), ("c",), {("r", "c"): cell})
    assert f"| r | {text} |" in markdown(Result("n", "t", (sheet,)))
    page = html(table_of(sheet))
    assert seeds_shown(cell, "percent") in page
    assert ("seeds" in page) == ("seeds" in text)


def test_the_spread_of_seeds() -> None:
    assert Cell(0.5, seeds=(0.4, 0.6)).std == pytest.approx(0.02**0.5)
    assert Cell(0.5).std is None


def test_marks_go_on_after_the_alphabet() -> None:
    assert [mark(0), mark(25), mark(26)] == ["(a)", "(z)", "(27)"]


numbers = st.floats(-1e6, 1e6)
cells = st.builds(
    Cell, numbers, numbers | st.none(), numbers | st.none(), numbers | st.none(), note=st.text(max_size=5),
    seeds=st.lists(numbers, max_size=3).map(tuple),
)  # fmt: skip


@given(st.data())
def test_a_file_gives_the_result_back(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    names = st.lists(st.text(max_size=6), min_size=1, max_size=3, unique=True).map(tuple)
    rows, columns = data.draw(names), data.draw(names)
    fields: dict[str, Any] = {
        "values_are": data.draw(st.text(max_size=4)),
        "centre": data.draw(numbers | st.none()),
        "log_values": data.draw(st.booleans()),
        "look": data.draw(st.sampled_from(["table", "bars", "heatmap"])),
        "unit": data.draw(st.sampled_from(["percent", "number", "bytes"])),
    }
    found = {(row, column): data.draw(cells | st.just(Cell(reason="why"))) for row in rows for column in columns}
    result = Result("r", "title", (Sheet("t", rows, columns, found, **fields),), ("note",), {"command": "x"})
    path = tmp_path_factory.mktemp("results") / "r.json"
    save_result(result, path)
    assert load_result(path) == result


def test_a_file_without_the_later_fields_is_read(tmp_path: Path) -> None:
    result = Result("r", "title", (curve(),))
    save_result(result, tmp_path / "r.json")
    facts = json.loads((tmp_path / "r.json").read_text())
    for key in ("values_are", "log_values", "centre"):
        del facts["sheets"][0][key]
    (tmp_path / "r.json").write_text(json.dumps(facts))
    assert load_result(tmp_path / "r.json") == Result("r", "title", (curve(values_are=""),))


def spoilt(change: Any, tmp_path: Path) -> Path:
    save_result(Result("r", "title", (grid(),)), tmp_path / "r.json")
    facts = json.loads((tmp_path / "r.json").read_text())
    change(facts)
    (tmp_path / "r.json").write_text(json.dumps(facts))
    return tmp_path / "r.json"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.update(format="other"), "expected a result file ('skillgraft result 1')"),
        (lambda f: f.pop("name"), "damaged result file ('name')"),
        (lambda f: f.update(name=3), "expected text, found 3"),
        (lambda f: f["sheets"][0].update(look="pie"), "unknown look 'pie'"),
        (lambda f: f["sheets"][0].update(log_x="yes"), "log_x is 'yes'"),
        (lambda f: f["sheets"][0].update(rows=["sst2", 4]), "expected text, found 4"),
        (lambda f: f["sheets"][0].pop("title"), "title"),
        (lambda f: f["sheets"][0]["cells"].pop(), "1 cells are missing"),
        (lambda f: f["sheets"][0]["cells"][0].update(value="high"), "must be real number"),
        (lambda f: f["sheets"][0]["cells"][0].update(low="high"), "must be real number"),
        (lambda f: f["sheets"][0]["cells"][0].update(seeds=[0.5, "high"]), "must be real number"),
        (lambda f: f["sheets"][0]["cells"][0].update(seeds=0.5), "not iterable"),
        (lambda f: f["sheets"][0]["cells"][0].update(reason=["x"]), "expected text, found ['x']"),
        (lambda f: f["sheets"][0]["cells"][0].update(colour="red"), "unexpected keyword argument 'colour'"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    with pytest.raises(InputError) as error:
        load_result(spoilt(change, tmp_path))
    assert message in str(error.value)
    assert str(error.value).startswith(str(tmp_path / "r.json"))


def test_what_is_not_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text("{")
    with pytest.raises(InputError, match="not a result file"):
        load_result(tmp_path / "r.json")
