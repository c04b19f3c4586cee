"""skillgraft reproduce: listing, planning, running, refusing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from skillgraft.papers.recipes import RECIPES
from skillgraft.report.sheet import Result, load_result
from tests.running import Run, runner, start


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(tmp_path, monkeypatch, capsys)


def words(studio: Path, *more: object) -> list[object]:
    base, task = studio / "bert", studio / "films.toml"
    return ["reproduce", "table2", "--base", base, "--task", task, "--profile", "smoke", "--shots", 4, *more]


def test_the_list_has_every_recipe_and_where_it_stands_in_its_paper(run: Run) -> None:
    listed = run("reproduce", "list", "--json").json["recipes"]
    assert listed.keys() == RECIPES.keys()
    assert listed["table2"]["paper"] == "P1 table 2"
    assert "P1 figure 7" in run("reproduce", "list").out


def test_a_dry_run_makes_nothing(studio: Path, run: Run, tmp_path: Path) -> None:
    planned = run(*words(studio, "--dry-run", "--json")).json
    assert [step["function"] for step in planned["steps"]].count("finetune") == 1
    assert planned["seconds"] > 0
    assert "steps to run, about" in run(*words(studio, "--dry-run")).out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("_no_pictures")
def test_a_run_writes_its_results_and_says_where(studio: Path, run: Run, tmp_path: Path) -> None:
    ended = run(*words(studio, "-o", "out", "--json")).json
    assert ended == {"results": {"table2": "out/table2.json"}}
    made = load_result(tmp_path / "out" / "table2.json").made
    assert made["command"].startswith("skillgraft reproduce table2 --base bert --task films.toml")
    tables = run(*words(studio, "-o", "out", "--csv", "t.csv", "--latex", "t.tex", "--pdf", "--json")).json
    assert tables == ended, "table2 has no figure that a PDF could be made of"
    lines = [line.split(",") for line in (tmp_path / "t.csv").read_text("utf-8").splitlines()]
    sheets = load_result(tmp_path / "out" / "table2.json").sheets
    assert len(lines) - 1 == sum(len(sheet.cells) for sheet in sheets)
    assert (tmp_path / "t.tex").read_text("utf-8").count("\\begin{tabular}") == len(sheets)
    planned = run(*words(studio, "-o", "out", "--dry-run", "--json")).json
    assert all(step["done"] for step in planned["steps"])
    assert planned["seconds"] == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["table2"], "give --base BASE"),
        (["tabel2", "--base", "b"], "did you mean 'table2'"),
        (["table2", "--base", "b", "--profile", "gpu"], "unknown profile 'gpu'"),
        (["table2", "--base", "BASE", "--task", "sst3"], "did you mean 'sst2'"),
        (["table2", "--base", "nowhere", "--task", "reviews"], "nowhere"),
        (["table2", "--base", "b", "--jobs", "0"], "at least 1"),
    ],
)
def test_wrong_input_ends_before_any_work(
    given: list[str], message: str, studio: Path, run: Run, tmp_path: Path
) -> None:
    ended = run("reproduce", *(str(studio / "bert") if word == "BASE" else word for word in given))
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err
    assert list(tmp_path.iterdir()) == []


def test_what_is_refused_does_not_wait_for_torch(studio: Path, tmp_path: Path) -> None:
    words = ["reproduce", "table2", "--base", str(studio / "bert"), "--task", "sst3"]
    code = (
        "import sys, atexit\n"
        "atexit.register(lambda: print('torch' in sys.modules))\n"
        f"sys.argv = ['skillgraft', *{words}]\n"
        "from skillgraft.cli.main import main\n"
        "main()\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (2, "False\n")
    assert "did you mean 'sst2'" in ended.stderr


def numbers(result: Result) -> list[object]:
    return [(sheet.title, sorted(sheet.cells.items())) for sheet in result.sheets]


def complete(folder: Path, *given: object) -> None:
    process = start(folder, *given)
    _, err = process.communicate()
    assert process.returncode == 0, err


@pytest.mark.long
def test_killed_or_side_by_side_it_ends_with_the_same_numbers(studio: Path, tmp_path: Path) -> None:
    """One run as it is, one that is killed in its midst and started again, one with two processes: equal cells."""
    complete(tmp_path, *words(studio, "-o", "whole"))
    killed, store = words(studio, "-o", "killed"), tmp_path / "killed" / "store"
    process = start(tmp_path, *killed)
    while not (tuned := list(store.glob("finetune-*/step.json"))):
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "killed" / "table2.json").exists()
    made = tuned[0].stat().st_mtime_ns
    complete(tmp_path, *killed)
    assert tuned[0].stat().st_mtime_ns == made
    complete(tmp_path, *words(studio, "-o", "beside", "--jobs", 2))
    expected = numbers(load_result(tmp_path / "whole" / "table2.json"))
    for name in ("killed", "beside"):
        assert numbers(load_result(tmp_path / name / "table2.json")) == expected
