"""A recipe's grid: what each point trains, what an interrupted grid keeps, and several processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skillgraft.errors import InputError
from skillgraft.opening.runtime import Runtime
from skillgraft.tasks import Task, load_task
from skillgraft.tasks.data import Data
from skillgraft.training import grid
from skillgraft.training.finetune import Tuned, finetune
from skillgraft.training.grid import finetune_recipe
from tests.readouts import making
from tests.running import start

SMALL = {"lr": 0.05, "dropout": False, "steps": 2}  # of the recipe p1 this leaves three batch sizes


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence encoder and a task of 40 rows."""
    folder = tmp_path_factory.mktemp("place")
    making.sentence_encoder(folder / "encoder")
    making.write_films(folder, train=40)
    return folder


@pytest.fixture
def task(place: Path) -> Task:
    return load_task(place / "films.toml")


def planned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **request: Any) -> list[tuple[int, int]]:
    """(batch size, steps) of every run that a request asks for, without running any."""
    asked = []

    def note(_base: Path, _tasks: list[Task], *, out: Path, plan: Any, **_rest: Any) -> Tuned:
        asked.append((plan.batch_size, plan.steps))
        out.mkdir(parents=True)
        return Tuned(out, "text-head", 1, plan.steps, (), {"films": 0.5})

    monkeypatch.setattr(grid, "finetune", note)
    finetune_recipe("encoder", out=tmp_path / "out", **request)
    return asked


def test_epochs_follow_each_points_batch_size(task: Task, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """16 rows, twice: 32 rows in steps of 2, 4 and 8."""
    asked = planned(
        monkeypatch, tmp_path, tasks=[task], recipe_name="p1", settings={"lr": 0.05}, epochs=2, data=Data(shots=8)
    )
    assert asked == [(2, 16), (4, 8), (8, 4)]


def test_the_papers_steps_follow_the_shots(task: Task, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """16 · 2 labels · 8 shots."""
    asked = planned(monkeypatch, tmp_path, tasks=[task], recipe_name="p1", data=Data(shots=8))
    assert asked == [(size, 256) for size in (2, 4, 8) for _lr in range(3)]
    with pytest.raises(InputError, match="give --shots or --steps"):
        finetune_recipe("encoder", [task], out=tmp_path / "other", recipe_name="p1")
    with pytest.raises(InputError, match="steps or epochs, not both"):
        finetune_recipe("encoder", [task], out=tmp_path / "other", settings={"steps": 3}, epochs=1)


def test_an_interrupted_grid_keeps_what_this_request_has_finished(
    task: Task, place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trained: list[tuple[int, int]] = []
    breaks = iter([True])

    def interrupted(*words: Any, **options: Any) -> Tuned:
        size, steps = options["plan"].batch_size, list[int]()
        if size == 8 and next(breaks, False):
            raise KeyboardInterrupt
        found = finetune(*words, **options, runtime=Runtime(progress=lambda step, *_: steps.append(step)))
        trained.extend([(size, options["data"].shots)] if steps else [])
        return found

    monkeypatch.setattr(grid, "finetune", interrupted)

    def ask(shots: int) -> Tuned:
        return finetune_recipe(
            place / "encoder", [task], out=tmp_path / "out", recipe_name="p1", settings=SMALL, data=Data(shots=shots)
        )

    with pytest.raises(KeyboardInterrupt):
        ask(4)
    assert trained == [(2, 4), (4, 4)]
    best = ask(4)
    assert trained[2:] == [(8, 4)], "the two finished points are not trained again"
    assert (best.readout, best.steps, len(best.log)) == ("text-head", 2, 2)
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


def test_what_another_request_has_finished_is_not_taken(
    task: Task, place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trained: list[int] = []

    def fails_at_the_last(*words: Any, **options: Any) -> Tuned:
        if options["plan"].batch_size == 8 and options["data"].shots == 4:
            raise KeyboardInterrupt
        trained.append(options["data"].shots)
        return finetune(*words, **options)

    monkeypatch.setattr(grid, "finetune", fails_at_the_last)
    request = {"recipe_name": "p1", "settings": SMALL}
    with pytest.raises(KeyboardInterrupt):
        finetune_recipe(place / "encoder", [task], out=tmp_path / "out", data=Data(shots=4), **request)
    finetune_recipe(place / "encoder", [task], out=tmp_path / "out", data=Data(shots=5), **request)
    assert trained == [4, 4, 5, 5, 5]
    assert [file.name for file in tmp_path.iterdir()] == ["out"], "the other request's folders go, too"


@pytest.mark.long
def test_two_processes_write_one_output(place: Path, tmp_path: Path) -> None:
    words = (
        "finetune",
        "encoder",
        "--task",
        "films.toml",
        "--recipe",
        "p1",
        "--lr",
        "0.05",
        "--steps",
        2,
        "--shots",
        4,
    )
    run = start(place, *words, "-o", tmp_path / "out", "--json", processes=2)
    out, err = run.communicate(timeout=180)
    assert run.returncode == 0, err
    assert json.loads(out)["steps"] == 2
    assert [file.name for file in tmp_path.iterdir()] == ["out"]
