"""Sheets as CSV and LaTeX: read back, every number is there; whatever names hold, they stay text."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillgraft.report.score_sheets import evaluation_sheets
from skillgraft.report.sheet import Cell, Sheet, load_result, markdown, save_result
from skillgraft.report.sheet import Result as Found
from skillgraft.report.table_files import csv_text, latex, write_tables
from tests.family import write_family
from tests.report.making import grid
from tests.running import Run, runner

FINITE = st.floats(-1e9, 1e9)
SEVEN = tuple(0.80 + 0.01 * each for each in range(7))


def read_back(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def number(text: str) -> float | None:
    return float(text) if text else None


def table_rows(text: str) -> list[list[str]]:
    """The cells of a LaTeX table, after checking what a compiler would: commands known, braces closed, columns equal."""
    bare = re.sub(r"\\[\\{}&%$#_]", "", text)
    assert bare.count("{") == bare.count("}")
    assert [text.count(f"\\begin{{{name}}}") for name in ("table", "tabular")] == [1, 1]
    assert [text.count(f"\\end{{{name}}}") for name in ("table", "tabular")] == [1, 1]
    lines = [line.strip() for line in text.splitlines() if line.rstrip().endswith("\\\\")]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)&", line.removesuffix("\\\\"))] for line in lines]
    (columns,) = re.findall(r"\\begin\{tabular\}\{(\w+)\}", text)
    assert {len(row) for row in rows} == {len(columns)}
    known = {"par", "footnotesize", "scriptsize", "caption", "centering", "toprule", "midrule", "bottomrule", "begin", "end",
             "usepackage", "pm", "to", "le", "ge", "times", "Vert", "textbackslash", "textasciitilde", "textasciicircum",
             "textless", "textgreater", "textbar", "textquotedbl", "alpha", "gamma", "lambda", "xi", "epsilon", "delta", "theta",
             "tau"}  # fmt: skip
    assert set(re.findall(r"\\([A-Za-z]+)", re.sub(r"\\\\", "", text))) <= known
    return rows


@given(
    st.lists(st.tuples(FINITE, FINITE, FINITE, st.lists(FINITE, max_size=7)), min_size=1, max_size=4),
    st.text(max_size=9),
)
def test_csv_gives_every_number_back(numbers: list[Any], name: str) -> None:
    cells = {
        (f"{name}{at}", "x"): Cell(v, low, high, seeds=tuple(seeds)) for at, (v, low, high, seeds) in enumerate(numbers)
    }
    sheet = Sheet(name, tuple(row for row, _ in cells), ("x",), cells)
    found = read_back(csv_text([sheet]))
    assert len(found) == len(cells)
    for line, cell in zip(found, cells.values(), strict=True):
        assert [number(line[key]) for key in ("value", "low", "high", "std")] == [
            cell.value,
            cell.low,
            cell.high,
            cell.std,
        ]
        assert tuple(map(float, line["seeds"].split())) == cell.seeds
        assert line["unit"] == "fraction"
        assert not line["row"].startswith(("=", "+", "-", "@"))


def test_csv_says_why_a_number_is_missing_and_has_the_papers() -> None:
    lines = {(line["row"], line["column"]): line for line in read_back(csv_text([grid(), grid(title="Again")]))[:4]}
    assert lines["sst2", "base"]["paper"] == "0.55"
    assert (lines["trec", "graft"]["value"], lines["trec", "graft"]["missing"]) == ("", "no skill to localise")


def test_a_latex_table_by_hand() -> None:
    text = latex([grid()])
    assert "  \\caption{Accuracy (\\%)}\n  \\begin{tabular}{lrr}\n    \\toprule\n" in text
    assert table_rows(text) == [
        ["task / model", "base", "graft"],
        ["sst2", "50.0 {\\scriptsize [40.0, 60.0] (paper 55.0)}", "80.0 {\\scriptsize [70.0, 90.0]}"],
        ["trec", "25.0", "-- (a)"],
    ]
    assert "  \\par\\footnotesize (a) no skill to localise\n" in text


@pytest.mark.parametrize(
    ("seeds", "cell"),
    [
        (SEVEN[:2], "80.5 {\\scriptsize [70.0, 90.0] (80.0, 81.0)}"),
        (SEVEN[:4], "81.5 {\\scriptsize [70.0, 90.0] (80.0, 81.0, 82.0, 83.0)}"),
        (SEVEN[:5], "82.0 $\\pm$ 1.6 {\\scriptsize [70.0, 90.0]}"),
    ],
)
def test_below_five_seeds_each_is_shown_from_then_on_their_standard_deviation(seeds: Any, cell: str) -> None:
    mean = sum(seeds) / len(seeds)
    sheet = Sheet("t", ("a",), ("x",), {("a", "x"): Cell(mean, 0.7, 0.9, seeds=seeds)})
    assert table_rows(latex([sheet]))[1] == ["a", cell]


@given(st.text(max_size=30))
def test_no_name_is_a_command_of_latex(name: str) -> None:
    cells = {(row, column): Cell(-0.25) for row in (f"r{name}", "z") for column in (f"c{name}", "y")}
    sheet = Sheet(name, (f"r{name}", "z"), (f"c{name}", "y"), cells, rows_are=name, unit="number")
    rows = table_rows(latex([sheet]))
    assert rows[2] == ["z", "$-$0.25", "$-$0.25"]


@pytest.mark.parametrize("name", ["\\input{/etc/passwd}", "100% & more_of $x^2$ #1 {a} ~", 'a|b<c>"d"', "line\nend"])
def test_names_with_meaning_are_escaped(name: str) -> None:
    rows = table_rows(latex([Sheet(name, (name,), ("x",), {(name, "x"): Cell(1.0)})]))
    assert len(rows) == 2
    assert "\\input" not in rows[1][0]


def test_columns_with_units_of_their_own(tmp_path: Path) -> None:
    cells = {("a", "accuracy"): Cell(0.5), ("a", "NLL"): Cell(0.5)}
    sheet = Sheet("s", ("a",), ("accuracy", "NLL"), cells, units={"accuracy": "percent", "NLL": "number"})
    assert table_rows(latex([sheet])) == [["", "accuracy (\\%)", "NLL"], ["a", "50.0", "0.5"]]
    assert [line["unit"] for line in read_back(csv_text([sheet]))] == ["fraction", "number"]
    assert "| a | 50.0 | 0.5 |" in markdown(Found("n", "t", (sheet,)))
    save_result(Found("n", "t", (sheet,)), tmp_path / "r.json")
    assert load_result(tmp_path / "r.json").sheets == (sheet,)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    write_family(tmp_path)
    here = runner(tmp_path, monkeypatch, capsys)
    for name, tuned in (("a", "TUNED"), ("b", "OTHER")):
        assert here("extract", "BASE", tuned, "-o", f"{name}.safetensors").code == 0
    return here


def test_compare_and_diff_write_what_they_print(run: Run) -> None:
    found = run("compare", "a.safetensors", "b.safetensors", "--csv", "c.csv", "--latex", "c.tex", "--json").json
    lines = read_back(Path("c.csv").read_text("utf-8"))
    values = {(line["table"], line["row"], line["column"]): float(line["value"]) for line in lines}
    assert values["coverage", "a", "b"] == found["coverage"][0][1]
    assert values["cosine", "b", "a"] == found["cosine"][1][0]
    assert Path("c.tex").read_text("utf-8").count("\\begin{tabular}{lrr}") == 3
    found = run("diff", "BASE", "TUNED", "--csv", "d.csv", "--json").json
    lines = read_back(Path("d.csv").read_text("utf-8"))
    changed = {
        line["row"]: float(line["value"])
        for line in lines
        if "by kind" in line["table"] and line["column"] == "changed"
    }
    assert changed == {kind: facts["changed"] for kind, facts in found["by_kind"].items()}


def test_tables_are_never_written_over_a_file(run: Run) -> None:
    Path("c.csv").write_text("mine")
    ended = run("compare", "a.safetensors", "b.safetensors", "--csv", "c.csv")
    assert (ended.code, ended.out, Path("c.csv").read_text()) == (2, "", "mine")
    ended = run("compare", "a.safetensors", "b.safetensors", "--csv", "t", "--latex", "t")
    assert ended.code == 2
    assert "would both write t" in ended.err


def test_an_evaluation_becomes_a_sheet_for_each_task(tmp_path: Path) -> None:
    score = {"value": 0.5, "low": 0.4, "high": 0.6}
    mean = {"value": 0.55, "low": 0.5, "high": 0.6, "seeds": [0.5, 0.6], "std": 0.07, "interval_over": "rows"}
    one = {"task": "films", "metric": "accuracy", "n": 20, "majority": 0.5, "score": score, "nll": score}
    models = {"base": one, "full, 2 seeds": {**one, "score": mean}}
    facts = {"format": "skillgraft evaluation 1", "split": "test", "tasks": {"films": models}, "models": {}}
    (sheet,) = evaluation_sheets(facts)
    write_tables([sheet], {"csv": tmp_path / "t.csv", "latex": None})
    values = {(line["row"], line["column"]): line for line in read_back((tmp_path / "t.csv").read_text("utf-8"))}
    assert values["full, 2 seeds", "accuracy"]["seeds"] == "0.5 0.6"
    assert values["base", "NLL"]["unit"] == "number"
