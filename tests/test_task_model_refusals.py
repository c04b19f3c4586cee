"""What opening a task model refuses before any weights are loaded: a repeated name, a device that is not there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skillgraft import Graft, Region, extract
from skillgraft.compose.forgetting import forget
from skillgraft.compose.multitask import gains, purified, task_regions
from skillgraft.compose.scales import search_scale
from skillgraft.compose.sequences import after_each, naive_continual, separate_finetunes
from skillgraft.errors import InputError
from skillgraft.measure.evaluate import evaluate
from skillgraft.opening.runtime import Runtime
from skillgraft.regions.choose import choose_region
from skillgraft.regions.localize import localize
from skillgraft.regions.pruning import pruning_sensitivity
from skillgraft.task_model import TaskModel
from skillgraft.tasks import load_task
from skillgraft.training.finetune import finetune
from skillgraft.training.grid import finetune_recipe
from tests.compose.toy_tasks import _one_thread, place, run, tasks  # noqa: F401
from tests.running import Run

# pytest passes fixtures by their names, which are imported here
# ruff: noqa: F811


def _no_weights(*_about: object) -> None:
    raise AssertionError("the weights are loaded")


# Repeated names


@pytest.fixture
def namesakes(tasks: list[Path], tmp_path: Path) -> list[Any]:
    """Two tasks of one name that are not the same: a value, and a file with other rows."""
    text = tasks[1].read_text().replace('name = "animals"', 'name = "films"')
    other = tmp_path / "other.toml"
    other.write_text(text.replace('= "animals-', f'= "{tasks[1].parent}/animals-'))
    assert load_task(other) != load_task(tasks[0])
    return [load_task(tasks[0]), other]


@pytest.fixture
def stranger(place: Path) -> Graft:
    """Any graft."""
    scope = extract(place / "encoder", place / "encoder", entries=1).region.scope
    name = next(iter(scope.shapes))
    one = Region(scope, {name: [0]})
    return Graft(one, {name: np.zeros(1, np.float32)}, {name: np.ones(1, np.float32)})


NAMESAKES: dict[str, Callable[[Path, list[Any], Graft, Path], object]] = {
    "TaskModel.open": lambda base, two, _graft, _out: TaskModel.open(base, two),
    "evaluate": lambda base, two, _graft, _out: evaluate(base, two),
    "finetune": lambda base, two, _graft, out: finetune(base, two, out=out),
    "finetune_recipe": lambda base, two, _graft, out: finetune_recipe(base, two, out=out, recipe_name="p1"),
    "search_scale": lambda base, two, graft, _out: search_scale(base, [graft, graft], tasks=two),
    "forget": lambda base, two, graft, _out: forget(base, graft, task=two[0], controls=two[1:]),
    "forget, controls": lambda base, two, graft, _out: forget(base, graft, task=base.parent / "animals.toml", controls=two),
    "task_regions": lambda base, two, _graft, _out: task_regions(base, base, two, entries=5),
    "purified": lambda base, two, graft, _out: purified(base, base, {"films": graft}, [["films"]], two),
    "gains": lambda base, two, graft, _out: gains(base, base, {"films": graft}, two),
    "pruning_sensitivity": lambda base, two, _graft, _out: pruning_sensitivity(base, two),
    "after_each": lambda base, two, _graft, out: after_each(out, base, two),
    "naive_continual": lambda base, two, _graft, out: naive_continual(base, two, out),
    "separate_finetunes": lambda base, two, _graft, out: separate_finetunes(base, two, out),
}  # fmt: skip


@pytest.mark.parametrize("verb", NAMESAKES)
def test_a_repeated_name_is_refused_before_anything_is_loaded(
    verb: str,
    place: Path,
    namesakes: list[Any],
    stranger: Graft,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("skillgraft.readouts.readouts.Loader.__call__", _no_weights)
    with pytest.raises(InputError, match=r"each name once, found (animals, )?films, films"):
        NAMESAKES[verb](place / "encoder", namesakes, stranger, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "encoder", "--task", "films.toml", "--task", "films.toml"),
        ("finetune", "encoder", "--task", "films.toml", "--task", "films.toml", "-o", "never"),
    ],
)
@pytest.mark.usefixtures("tasks")
def test_a_repeated_name_on_the_command_line(words: tuple[str, ...], run: Run) -> None:
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert err == "error: expected at least one task and each name once, found films, films\n"
    assert not Path("never").exists()


# Devices


@pytest.mark.parametrize("device", ["quantum", "cuda:x", "meta", ""])
def test_a_device_that_is_not_there_is_refused_in_words(
    device: str, place: Path, tasks: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skillgraft.readouts.readouts.Loader.__call__", _no_weights)
    base, runtime = place / "encoder", Runtime(device=device)
    refused: list[Callable[[], object]] = [
        lambda: TaskModel.open(base, tasks[:1], device=device),
        lambda: evaluate(base, tasks[:1], runtime=runtime),
        lambda: finetune(base, tasks[:1], out=tmp_path / "out", runtime=runtime),
        lambda: localize(base, base, task=tasks[0], entries=5, runtime=runtime),
        lambda: choose_region(base, task=tasks[0], runtime=runtime),
    ]
    for call in refused:
        with pytest.raises(
            InputError, match=rf"^device '{device}' cannot be used here \(.+\); `skillgraft doctor` lists"
        ):
            call()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("verb", ["evaluate", "finetune"])
@pytest.mark.usefixtures("tasks")
def test_a_device_that_is_not_there_on_the_command_line(verb: str, run: Run) -> None:
    out = ("-o", "never") if verb == "finetune" else ()
    code, printed, err = run(verb, "encoder", "--task", "films.toml", "--device", "quantum", *out)
    assert (code, printed) == (2, "")
    assert err.startswith("error: device 'quantum' cannot be used here (")
    assert err.count("\n") == 1
    assert not Path("never").exists()
