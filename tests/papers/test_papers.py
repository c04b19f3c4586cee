"""The papers' numbers: complete rows, and averages that are averages."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from skillgraft.papers.recipe import FOLDER, paper, paper_note
from skillgraft.papers.recipes.localization import AVERAGES

P1: dict[str, Any] = tomllib.loads((FOLDER / "p1.toml").read_text(encoding="utf-8"))
SINGLE, PAIRS = AVERAGES


@pytest.mark.parametrize("name", P1)
def test_every_row_fits_its_columns(name: str) -> None:
    table = P1[name]
    assert table["about"]
    assert len(set(table["columns"])) == len(table["columns"])
    for row in table["rows"].values():
        assert len(row) in (len(table["columns"]), len(table["columns"]) - 1)  # agreement may be missing
        assert all(0 <= number <= 100 for number in row)


def test_all_tables_are_there() -> None:
    tables = {name.split("-")[0] for name in P1}
    assert tables >= {f"table{number}" for number in range(1, 10)}


@pytest.mark.parametrize("shots", [64, 4096])
@pytest.mark.parametrize(("average", "tasks"), AVERAGES.items())
def test_table_2s_averages_are_the_means_of_its_rows(shots: int, average: str, tasks: tuple[str, ...]) -> None:
    """To the digit that the paper prints; its single-sentence agreement and ECE are within half a point."""
    rows = P1[f"table2-{shots}"]["rows"]
    known = [rows[task] for task in tasks if task in rows]
    for place, number in enumerate(rows[average]):
        assert sum(row[place] for row in known) / len(known) == pytest.approx(number, abs=0.5)


def test_table_6s_averages_are_the_means_of_its_tasks() -> None:
    for row in P1["table6"]["rows"].values():
        for place in (0, 1):
            assert sum(row[place:8:2]) / 4 == pytest.approx(row[8 + place], abs=0.11)


def test_table_7s_averages_are_the_means_of_its_tasks() -> None:
    for name, row in P1["table7"]["rows"].items():
        assert (row[0] + row[3]) / 2 == pytest.approx(row[6], abs=0.11)
        slack = 1.51 if name == "Pfeiffer 16" else 0.16  # the paper's own slip
        assert (row[1] + row[2] + row[4] + row[5]) / 4 == pytest.approx(row[7], abs=slack)


def test_tables_agree_where_they_tell_the_same_number() -> None:
    for task in ("sst2", "ag_news", "qnli", "qqp"):
        for column in ("tuned", "graft"):
            assert paper("table1", task, column) == paper("table2-4096", task, column)
        assert paper("table8", f"{task} 0.01 %", "graft") == paper("table1", task, "graft")
        assert paper("table6", "graft 0.01 %", task) == paper("table1", task, "graft")
    assert paper("table7", "graft 0.01 %", "qnli → snli_01") == paper("table3", "qnli → snli_01", "graft")


def test_what_the_paper_does_not_have_is_none() -> None:
    assert paper("table2-4096", "trec", "tuned") is None
    assert paper("table2-4096", PAIRS, "agreement") is None
    assert paper("table2-64", SINGLE, "agreement") is None
    assert paper("no such table", "sst2", "tuned") is None
    assert paper_note("no such table") == ""
