"""The law of `TaskModel`: after any call its numbers are the base's, bit for bit, in every number format."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from skillgraft import Graft, Region, extract
from skillgraft.compose.forgetting import negate
from skillgraft.compose.maps import disentanglement_map, localisation_matrix, scale_curve
from skillgraft.compose.scales import Scaled, coordinate_search, grid_search
from skillgraft.errors import InputError, WrongBase
from skillgraft.opening.runtime import Runtime
from skillgraft.readouts.readout import Encoded
from skillgraft.regions.search import Searching, SearchPlan
from skillgraft.regions.sensitivity import least_sensitive
from skillgraft.regions.tuned_pair import open_pair
from skillgraft.task_model import TaskModel
from skillgraft.tasks.data import Data
from skillgraft.training.finetune import finetune
from skillgraft.training.linearised import tangent
from tests.bits import digest_of
from tests.compose.toy_tasks import QUICK, _one_thread, place, run, tasks  # noqa: F401
from tests.narrow import FORMATS, in_format
from tests.training.toys import opened_toy, tiny_bert

# pytest passes fixtures by their names, which are imported here
# ruff: noqa: F811

FEW = Data(shots=12, validation_rows=16)
LINEAR = Data(shots=12, validation_rows=16, readout="linear")
Grafts = Mapping[str, Graft]


@pytest.fixture(scope="module", params=FORMATS)
def base(request: pytest.FixtureRequest, place: Path) -> Path:
    """The sentence encoder in each number format."""
    folder = place / f"encoder-{request.param}"
    return folder if folder.exists() else in_format(place / "encoder", folder, request.param)


@pytest.fixture(scope="module")
def tuned(base: Path, tasks: list[Path]) -> dict[str, Path]:
    """A fine-tune on each of two tasks."""
    found = {}
    for file in tasks[:2]:
        out = base.with_name(f"{base.name}-{file.stem}")
        found[file.stem] = finetune(base, [file], out=out, plan=QUICK.with_changes(steps=20), data=FEW, reuse=True).path
    return found


@pytest.fixture(scope="module")
def grafts(base: Path, tuned: dict[str, Path]) -> dict[str, Graft]:
    return {task: extract(base, folder) for task, folder in tuned.items()}


@pytest.fixture(scope="module")
def opened(base: Path, tasks: list[Path]) -> TaskModel:
    return TaskModel.open(base, tasks[:2], data=FEW)


@pytest.fixture(scope="module")
def digest(base: Path, tasks: list[Path]) -> str:
    """Of a model that was opened and never asked."""
    return digest_of(TaskModel.open(base, tasks[:2]).model)


class Stop(RuntimeError):
    """What a caller's own code raises in the middle of something."""


def _stop(*_about: object) -> None:
    raise Stop


def _backward(opened: TaskModel, _grafts: Grafts) -> None:
    rows = {task: opened.rows.encoded(task, "train") for task in opened.tasks}
    steps = opened.steps(rows, batch_size=8)
    for step in range(2):
        for batch, share in steps(step):
            (opened.loss(opened.model, batch) * share).backward()
    assert any(parameter.grad is not None for parameter in opened.model.parameters())
    opened.model.zero_grad()


def _sensitivity(opened: TaskModel, _grafts: Grafts) -> None:
    rows = opened.rows.encoded("films", "train")
    least_sensitive(opened.model, opened.rows.readout("films"), rows, scope="layers", density=0.1, seed=0)


def _nested(opened: TaskModel, grafts: Grafts) -> None:
    half = Region(grafts["films"].region.scope, {next(iter(grafts["films"].region)): [0]})
    with opened.holding(grafts["films"] & half):
        opened.predict(grafts["animals"].outside(half))


CALLS: dict[str, Callable[[TaskModel, Grafts], object]] = {
    "predict": lambda opened, _grafts: opened.predict(),
    "predict, all splits": lambda opened, _: [opened.predict(split=each) for each in ("train", "validation", "test")],
    "predict with a graft": lambda opened, grafts: opened.predict(grafts["films"]),
    "predict with a scaled graft": lambda opened, grafts: opened.predict(-0.3 * grafts["films"]),
    "predict with an arithmetic graft": lambda opened, grafts: opened.predict(grafts["films"] + grafts["animals"]),
    "predict with one graft in another": _nested,
    "scaled": lambda opened, grafts: Scaled(opened, tuple(grafts.values())).predict(0.3, -1.5),
    "linearised": lambda opened, grafts: Scaled(opened, tuple(grafts.values()), linear=True).predict(0.3, -1.5),
    "tangent": lambda opened, grafts: tangent(opened, "films", grafts),
    "one scale searched": lambda opened, grafts: grid_search(Scaled(opened, (grafts["films"],)), points=3),
    "a scale for each": lambda opened, grafts: coordinate_search(Scaled(opened, tuple(grafts.values())), points=2),
    "negated": lambda opened, grafts: negate(
        Scaled(opened, (grafts["films"],)), target="films", controls=["animals"], points=3, keep=0.1, or_base=True
    ),
    "disentanglement": lambda opened, grafts: disentanglement_map(opened, grafts, alphas=(0.5, 1.0)),
    "localisation": lambda opened, grafts: localisation_matrix(opened, grafts),
    "a curve": lambda opened, grafts: scale_curve(opened, grafts["films"], (0.0, 0.5)),
    "gradients": _backward,
    "sensitivity": _sensitivity,
}  # fmt: skip


def test_while_a_graft_is_on_they_are_not(opened: TaskModel, grafts: Grafts, digest: str) -> None:
    with opened.holding(grafts["films"]) as model:
        assert model is opened.model
        assert digest_of(model) != digest
    with opened.holding(None) as model:
        assert digest_of(model) == digest


@pytest.mark.parametrize("call", CALLS)
def test_after_any_call_the_numbers_are_the_bases(call: str, opened: TaskModel, grafts: Grafts, digest: str) -> None:
    CALLS[call](opened, grafts)
    assert digest_of(opened.model) == digest
    assert not opened.model.training
    assert all(parameter.requires_grad for parameter in opened.model.parameters())


def _held(opened: TaskModel, grafts: Grafts) -> None:
    with opened.holding(grafts["films"]):
        raise Stop


def test_balanced_steps_have_as_many_rows_of_each_class() -> None:
    rows = [Encoded({"input_ids": [1, 2]}, label, 2) for label in [0] * 30 + [1] * 7 + [2] * 3]
    opened = opened_toy(tiny_bert(), rows)
    for balanced, wanted in ((True, [4, 4, 4]), (False, None)):
        steps = opened.steps({"toy": rows}, batch_size=12, balanced=balanced)
        counts = []
        for step in range(20):
            labels = torch.cat([batch["labels"] for (_, batch), _ in steps(step)])
            counts.append(torch.bincount(labels, minlength=3).tolist())
        assert all(sum(each) == 12 for each in counts)
        assert (counts == [wanted] * 20) == (wanted is not None)


def _held_in_steps(opened: TaskModel, grafts: Grafts) -> None:
    with opened.holding(0.5 * grafts["films"]) as model:
        rows = {"films": opened.rows.encoded("films", "train")}
        for batch, _ in opened.steps(rows, batch_size=8)(0):
            opened.loss(model, batch).backward()
        raise Stop


def _stranger(opened: TaskModel, grafts: Grafts) -> None:
    """A graft of another base, put on after one that fits."""
    graft = grafts["films"]
    before = {name: numbers + numbers.dtype.type(1) for name, numbers in graft.before.items()}
    opened.predict(Graft(graft.region, before, graft.change, base_fingerprint="0" * 64))


FAILURES: dict[str, tuple[type[Exception], Callable[[TaskModel, Grafts], object]]] = {
    "while a graft is on": (Stop, _held),
    "between gradients": (Stop, _held_in_steps),
    "while predicting": (Stop, lambda opened, grafts: opened.predict(grafts["films"], progress=_stop)),
    "while searching": (Stop, lambda opened, grafts: grid_search(Scaled(opened, (grafts["films"],)), progress=_stop)),
    "a graft of another base": (WrongBase, _stranger),
    "an unknown task": (InputError, lambda opened, grafts: opened.predict(grafts["films"], tasks=["flims"])),
    "an unknown split": (InputError, lambda opened, grafts: opened.predict(grafts["films"], split="tests")),
}


@pytest.mark.parametrize("what", FAILURES)
def test_after_any_failure_the_numbers_are_the_bases(what: str, opened: TaskModel, grafts: Grafts, digest: str) -> None:
    error, call = FAILURES[what]
    with pytest.raises(error):
        call(opened, grafts)
    opened.model.zero_grad()
    assert digest_of(opened.model) == digest
    assert opened.predict(grafts["films"]), "and it can be asked again"
    assert digest_of(opened.model) == digest


# Searches


SEARCHES: dict[str, dict[str, Any]] = {
    "learned": {"method": "learned", "steps": 3, "lr": 1e5},
    "learned, as many as it likes": {"method": "learned", "steps": 3, "lr": 1e5, "look_every": 1},
    "learned, keeping a share": {"method": "learned", "keep": 0.3, "steps": 2},
    "learned, scales": {"method": "learned", "entries": 20, "scale": "auto", "steps": 2},
    "learned from tuned's labels": {"method": "learned", "entries": 20, "labels": "tuned", "steps": 2},
    "lottery": {"entries": 20, "reference": "zero", "steps": 2},
    "budgeted": {"method": "budgeted", "entries": 20, "steps": 3},
    "movement": {"method": "movement", "entries": 20},
    "random": {"method": "random", "entries": 20},
    "attribution": {"method": "attribution", "entries": 20},
}


@pytest.mark.parametrize("name", SEARCHES)
def test_after_a_search_the_numbers_are_the_bases(
    name: str, base: Path, tuned: dict[str, Path], tasks: list[Path]
) -> None:
    plan = SearchPlan.of(**SEARCHES[name])
    with open_pair(base, tuned["films"], tasks[:2], plan=plan, data=FEW) as pair:
        before = digest_of(pair.opened.model)
        for own in (pair, pair.of(["films"])):
            found = Searching(own.problem, plan, own).best(own.start(plan.start))
            own.scores("films", found.region, found.problem)
            assert digest_of(pair.opened.model) == before
    assert before == digest_of(_opened_as(pair.opened, base, tasks[:2]))


def _opened_as(opened: TaskModel, base: Path, tasks: list[Path]) -> torch.nn.Module:
    return TaskModel.open(base, tasks, data=opened.rows.data, dtype=opened.rows.loader.dtype).model


def test_an_exception_in_a_search_leaves_the_base_and_takes_tuned_heads_off(
    place: Path, tasks: list[Path], tmp_path: Path
) -> None:
    """A linear head: base has none, so that the model holds tuned's as long as the pair is open."""
    base, task = place / "masked", tasks[:1]
    plan = QUICK.with_changes(steps=5)
    finetune(base, task, out=tmp_path / "tuned", plan=plan, data=LINEAR)
    search = SearchPlan.of(entries=20, steps=3)
    fresh = digest_of(TaskModel.open(base, task, data=LINEAR).model)
    models: list[torch.nn.Module] = []

    def stopped() -> None:
        with open_pair(base, tmp_path / "tuned", task, plan=search, data=LINEAR) as pair:
            models.append(pair.opened.model)
            assert digest_of(pair.opened.model) != fresh, "tuned's head is on"
            Searching(pair.problem, search, pair, runtime=Runtime(progress=_stop)).best(pair.start("empty"))

    with pytest.raises(Stop):
        stopped()
    assert [digest_of(model) for model in models] == [fresh]


def test_a_fine_tune_works_on_a_copy_of_its_own(opened: TaskModel, base: Path, tasks: list[Path], digest: str) -> None:
    """Whatever else is open in the process."""
    finetune(base, tasks[:1], out=base.with_name(f"{base.name}-copy"), plan=QUICK.with_changes(steps=2), data=FEW)
    assert digest_of(opened.model) == digest
    shutil.rmtree(base.with_name(f"{base.name}-copy"))
