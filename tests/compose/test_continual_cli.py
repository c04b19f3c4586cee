"""`skillgraft continual` as a user runs it, and docs/continual.md as a user reads it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from skillgraft.cli.main import app
from skillgraft.compose.store import ContinualStore
from skillgraft.measure.evaluate import evaluate
from skillgraft.tasks.data import Data
from tests.compose.toy_tasks import _one_thread, place, run, tasks  # noqa: F401
from tests.model_folders import same_weights
from tests.test_docs_tasks import first_cells, write_example

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "continual.md").read_text(encoding="utf-8")
SECTION = (DOCS / "cli.md").read_text(encoding="utf-8").split("\n## continual\n")[1].split("\n## ")[0]
LEARN = ("--shots", 12, "--optimizer", "adamw", "--lr", 1e-2, "--batch-size", 8, "--steps", 8, "--inside-steps", 5,
         "--density", 0.05, "--mask-steps", 3, "--mask-lr", 1e5, "--start", "empty")  # fmt: skip


def documented(action: str) -> list[str]:
    parts = re.split(r"`list` has|`use` has", SECTION.split("JSON fields: ")[1])
    return re.findall(r"`(\w+)`", parts[("add", "list", "use").index(action)].split(",\nas")[0])


def test_add_list_use(run: Callable[..., Any], place: Path, tasks: list[Path]) -> None:  # noqa: F811
    added = []
    for task in tasks[:2]:
        code, out, err = run("continual", "add", "skills", "encoder", "--task", task.name, *LEARN, "--json")
        assert (code, err) == (0, "")
        added.append(json.loads(out))
    assert list(added[0]) == [name for name in documented("add") if name != "add"]
    code, out, err = run("continual", "list", "skills", "--json")
    assert (code, err) == (0, "")
    listing = json.loads(out)
    assert list(listing) == documented("list")[:6]
    assert listing["tasks"] == [{k: v for k, v in one.items() if k != "store"} for one in added]
    assert listing["entries"] == sum(one["entries"] for one in added)
    assert set(added[1]["validation"]) == {"base", "tuned", "graft"}
    code, out, err = run("continual", "use", "skills", "encoder", "--task", "animals", "-o", "for-animals", "--json")
    assert (code, err) == (0, "")
    used = json.loads(out)
    assert list(used) == documented("use")[:7]
    assert used["grafts"] == ["films", "animals"]
    assert used["entries"] == listing["entries"]
    store = ContinualStore.open(place / "skills")
    recipe = store.own("animals").info["recipe"]
    assert (recipe["plan"]["steps"], recipe["inside"]["steps"], recipe["after"]) == (8, 5, ["films"])
    assert (
        store.own("animals").info["command"].startswith("skillgraft continual add skills encoder --task animals.toml")
    )
    asked = {"grafts": {"g": store.graft("animals")}, "split": "validation", "data": Data(shots=12)}
    found = evaluate(place / "encoder", [tasks[1]], **asked)["animals"]["g"]
    assert float((found.predicted == found.labels).mean()) == added[1]["validation"]["graft"]["accuracy"]["value"]


def test_for_people(run: Callable[..., Any], place: Path, tasks: list[Path]) -> None:  # noqa: F811
    code, out, err = run("continual", "add", "more", "encoder", "--task", tasks[0].name, *LEARN)
    assert (code, err) == (0, "")
    assert out.startswith("more: films is task 1\n")
    code, out, _ = run("continual", "list", "more")
    lines = out.splitlines()
    assert re.fullmatch(r"more: 1 tasks on encoder, [\d,]+ entries, [\d.]+ kB", lines[0])
    assert lines[1].split() == ["task", "entries", "density", "bytes", "base", "tuned", "store"]
    assert lines[2].startswith("films ")
    code, out, err = run("continual", "use", "more", "encoder", "--task", "films.toml", "-o", "for-films")
    assert (code, err) == (0, "")
    assert re.fullmatch(r"for-films: the model for films; [\d,]+ entries of films on encoder\ndigest of .*\n", out)
    assert not same_weights(place / "for-films", place / "encoder")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("list NOWHERE", "NOWHERE is not a store: it has no store.json"),
        ("use NOWHERE encoder --task films -o x", "NOWHERE is not a store"),
        ("use NOWHERE encoder --task films", "say where, with -o"),
        ("use NOWHERE --task films -o x", "continual use needs STORE, BASE and --task T"),
        ("add NOWHERE encoder", "continual add needs STORE, BASE and --task T"),
        ("add NOWHERE encoder --task films.toml -o x", "leave out -o"),
        ("add NOWHERE encoder --task flims", "no task 'flims'"),
        ("add NOWHERE encoder --task films.toml --shots 999", "the largest usable number of shots"),
        ("add NOWHERE encoder --task films.toml --optimizer adam", "did you mean 'adamw'"),
        ("add NOWHERE nothing --task films.toml", "nothing does not exist; expected a model folder"),
        ("add encoder encoder --task films.toml", "encoder is no store and not empty"),
        ("remove NOWHERE", "'remove' is not one of 'add', 'use', 'list'"),
    ],
)
@pytest.mark.usefixtures("tasks")
def test_wrong_input_is_one_or_two_lines(run: Callable[..., Any], place: Path, words: str, message: str) -> None:  # noqa: F811
    code, out, err = run("continual", *words.split())
    assert (code, out) == (2, "")
    assert message in err, err
    assert err.count("\n") <= 2
    assert not (place / "NOWHERE").exists()


def test_every_option_is_described() -> None:
    command = typer.main.get_command(app).commands["continual"]  # type: ignore[attr-defined]
    options = {name for one in command.params for name in one.opts if name.startswith("--")}
    described = {name.split()[0] for name in first_cells(SECTION) if name.startswith("--")}
    assert options - {"--json", "--out", "--help"} == described


@pytest.mark.long
def test_the_page_runs(tmp_path: Path) -> None:
    folder = write_example(tmp_path)
    (shell,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    commands = [["-m", *shlex.split(line)] for line in shell.splitlines()] + [["-c", code]]
    for words in commands:
        ended = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stderr) == (0, ""), words
    visible = {file.name for file in (folder / "STORE").iterdir() if not file.name.startswith(".")}
    assert visible == {"store.json", "001-reviews.safetensors"}
    assert (folder / "FOR_REVIEWS" / "model.safetensors").is_file()
    assert ContinualStore.open(folder / "SKILLS").tasks == ("reviews",)
