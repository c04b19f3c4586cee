"""bfloat16 and float16 folders through the verbs that open a model: what they make has the folder's format, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skillgraft import Graft, apply, extract
from skillgraft.compose.continual import Learning, add
from skillgraft.compose.forgetting import forget
from skillgraft.compose.multitask import gains, purified, task_regions, unions
from skillgraft.compose.scales import search_scale
from skillgraft.compose.store import ContinualStore
from skillgraft.measure.evaluate import evaluate
from skillgraft.measure.metrics import METRICS
from skillgraft.opening.runtime import Runtime
from skillgraft.predictions.predictions import Predictions
from skillgraft.regions.localize import localize
from skillgraft.regions.search import SearchPlan
from skillgraft.regions.tuned_pair import open_pair
from skillgraft.tasks.data import Data
from skillgraft.training.finetune import finetune
from tests.compose.toy_tasks import QUICK, _one_thread, place, tasks  # noqa: F401
from tests.model_folders import content, same_weights
from tests.narrow import NARROW, formats_of, in_format

# pytest passes fixtures by their names, which are imported here
# ruff: noqa: F811

DATA = Data(shots=20)
STEPS: dict[str, Any] = {"method": "learned", "steps": 4, "lr": 1e5}
# float16 has no room for gradients: such folders are searched, and what a search finds is measured, in float32
SEARCHED_IN = {"bfloat16": "bfloat16", "float16": "float32"}


@dataclass(frozen=True)
class Folders:
    """A base in a narrow format, and two single-task fine-tunes and a multi-task one of it."""

    dtype: str
    base: Path
    tuned: dict[str, Path]
    multi: Path

    @property
    def grafts(self) -> dict[str, Graft]:
        return {task: extract(self.base, folder) for task, folder in self.tuned.items()}

    @property
    def searched(self) -> Runtime:
        return Runtime(dtype=SEARCHED_IN[self.dtype])


@pytest.fixture(scope="module", params=NARROW)
def folders(request: pytest.FixtureRequest, place: Path, tasks: list[Path]) -> Folders:
    dtype: str = request.param
    base = in_format(place / "encoder", place / f"base-{dtype}", dtype)
    plan = QUICK.with_changes(steps=60)
    tuned = {
        file.stem: finetune(base, [file], out=place / f"{file.stem}-{dtype}", plan=plan, data=DATA).path
        for file in tasks[:2]
    }
    multi = finetune(base, tasks[:2], out=place / f"multi-{dtype}", plan=QUICK.with_changes(steps=120), data=DATA).path
    return Folders(dtype, base, tuned, multi)


def accuracy(found: Predictions) -> float:
    return METRICS["accuracy"](found)


def test_a_fine_tune_has_the_bases_format_and_learns(folders: Folders, tasks: list[Path]) -> None:
    for task, file in zip(("films", "animals"), tasks, strict=False):
        assert formats_of(folders.tuned[task]) == {folders.dtype}
        assert formats_of(folders.grafts[task]) == {folders.dtype}
        found = evaluate(folders.base, [file], tuned={"t": folders.tuned[task]}, split="train", data=DATA)[task]
        assert accuracy(found["t"]) > accuracy(found["base"]) + 0.1


def test_evaluate_measures_the_folders_own_numbers(folders: Folders, tasks: list[Path], tmp_path: Path) -> None:
    """A whole graft answers as its tuned folder does, an applied one as the folder that `apply` writes: bit for bit."""
    half = 0.5 * folders.grafts["films"]
    apply(folders.base, half, out=tmp_path / "half")
    assert formats_of(tmp_path / "half") == {folders.dtype}
    found = evaluate(
        folders.base,
        tasks[:2],
        tuned={"tuned": folders.tuned["films"], "applied": tmp_path / "half"},
        grafts={"whole": folders.grafts["films"], "half": half},
    )
    for task in found:
        np.testing.assert_array_equal(found[task]["whole"].scores, found[task]["tuned"].scores)
        np.testing.assert_array_equal(found[task]["half"].scores, found[task]["applied"].scores)
        assert not np.array_equal(found[task]["half"].scores, found[task]["whole"].scores)


def test_a_searched_scale(folders: Folders, tasks: list[Path], tmp_path: Path) -> None:
    grafts = list(folders.grafts.values())
    for asked in ({}, {"rule": "ties", "keep": 0.5}, {"per_task_scales": True}):
        found = search_scale(folders.base, grafts, tasks=tasks[:2], points=3, data=DATA, **asked)
        assert {str(numbers.dtype) for numbers in found.before.values()} == {folders.dtype}
        best = found.info["recipe"]["search"]["best"]["accuracy"]
        measured = evaluate(folders.base, tasks[:2], grafts={"g": found}, split="validation", data=DATA)
        assert {task: accuracy(measured[task]["g"]) for task in measured} == best
    apply(folders.base, found, out=tmp_path / "both")
    assert formats_of(tmp_path / "both") == {folders.dtype}


def test_forgetting(folders: Folders, tasks: list[Path]) -> None:
    skill = folders.grafts["films"]
    found = forget(folders.base, skill, task=tasks[0], controls=tasks[1:2], keep=0.3, points=4, data=DATA)
    assert found.form == "exact"
    assert formats_of(found) == {folders.dtype}
    recipe = found.info["recipe"]
    assert found.digest == (-recipe["scale"] * skill).digest
    measured = evaluate(folders.base, tasks[:2], grafts={"g": found}, split="validation", data=DATA)
    assert {task: accuracy(measured[task]["g"]) for task in measured} == recipe["scores"]


def test_a_localized_skill(folders: Folders, tasks: list[Path]) -> None:
    found = localize(folders.base, folders.tuned["films"], task=tasks[0], entries=60, data=DATA, **STEPS)
    assert formats_of(found.graft) == {folders.dtype}
    assert found.graft.digest == (folders.grafts["films"] & found.graft.region).digest
    models = {"tuned": {"tuned": folders.tuned["films"]}, "grafts": {"graft": found.graft}}
    measured = evaluate(folders.base, tasks[:1], split="validation", data=DATA, runtime=folders.searched, **models)
    for model, scores in found.scores.items():
        assert scores["accuracy"]["value"] == accuracy(measured["films"][model]), model


def test_regions_of_a_multi_task_model_and_purified_unions(folders: Folders, tasks: list[Path]) -> None:
    base, multi = folders.base, folders.multi
    whole = extract(base, multi)
    found = task_regions(base, multi, tasks[:2], entries=60, data=DATA, **STEPS)
    pure = purified(base, multi, found, [list(found)], tasks[:2], lr=1e6, data=DATA)
    united = unions(found, [list(found)])
    assert pure["films+animals"].region != united["films+animals"].region
    for graft in (*found.values(), *united.values(), *pure.values()):
        assert formats_of(graft) == {folders.dtype}
        assert graft.digest == (whole & graft.region).digest, "the numbers are the multi-task model's"
    measured = evaluate(base, tasks[:2], grafts=found, split="validation", data=DATA, runtime=folders.searched)
    for task, graft in found.items():
        recorded = graft.info["scores"]["validation"]["graft"]["accuracy"]["value"]
        assert recorded == accuracy(measured[task][task])
    assert gains(base, multi, {"all": whole}, tasks[:2], data=DATA).values() == [[1.0, 1.0]]


def test_several_scales_are_searched_on_what_apply_writes(folders: Folders, tasks: list[Path], tmp_path: Path) -> None:
    """A multiple of the change is rounded to the folder's format also where the search runs in a wider one."""
    asked: dict[str, Any] = {"entries": 60, "scale": 3.0, "data": DATA, **STEPS}
    graft = localize(folders.base, folders.tuned["films"], task=tasks[0], **asked).graft
    apply(folders.base, graft, out=tmp_path / "three")
    plan = SearchPlan(entries=60, scale=3.0)
    with open_pair(folders.base, folders.tuned["films"], tasks[:1], plan=plan, data=DATA) as pair:
        inside = pair.predict("films", graft.region, pair.problem.scaled(3.0))
    written = evaluate(
        folders.base,
        tasks[:1],
        tuned={"t": tmp_path / "three"},
        split="validation",
        data=DATA,
        runtime=folders.searched,
    )
    np.testing.assert_array_equal(inside.scores, written["films"]["t"].scores)


def test_a_store_stays_as_it_was(folders: Folders, tasks: list[Path], tmp_path: Path) -> None:
    """P1 §5.2's law: after another task, the model for the first has the same bits; and so has every file."""
    learning = Learning(QUICK.with_changes(steps=12, lr=1e-2), search={"density": 0.05, **STEPS}, data=Data(shots=12))
    store = tmp_path / "S"
    first = add(store, folders.base, tasks[0], learning=learning)
    first.use(folders.base, "films", tmp_path / "then")
    files = {name: digest for name, digest in content(store).items() if name.endswith("films.safetensors")}
    answers = evaluate(folders.base, tasks[:1], grafts={"g": first.graft("films")})["films"]["g"]
    add(store, folders.base, tasks[1], learning=learning)
    now = ContinualStore.open(store)
    now.use(folders.base, "films", tmp_path / "now")
    assert files.items() <= content(store).items()
    assert same_weights(tmp_path / "then", tmp_path / "now")
    again = evaluate(folders.base, tasks[:1], grafts={"g": now.graft("films")}, tuned={"t": tmp_path / "now"})["films"]
    np.testing.assert_array_equal(again["g"].scores, answers.scores)
    np.testing.assert_array_equal(again["t"].scores, answers.scores)
    now.use(folders.base, "animals", tmp_path / "animals")
    assert now.own("films").region.isdisjoint(now.own("animals").region)
    for task in ("films", "animals"):
        assert formats_of(now.own(task)) == {folders.dtype}
        moved = sum(
            int((now.own(task).change[name] != now.own(task).before[name]).sum()) for name in now.own(task).region
        )
        assert moved > 0, "training inside the region moves it"
    assert formats_of(tmp_path / "animals") == {folders.dtype}
    whole = extract(folders.base, tmp_path / "animals")
    assert whole.digest == (now.graft("animals") & whole.region).digest, "nothing else is changed"
