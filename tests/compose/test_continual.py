"""Continual learning on tiny models: nothing is forgotten, bit for bit; what exists is not made anew; sequences of tasks."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skillgraft import apply, extract, grafted
from skillgraft.compose.continual import Learning, add
from skillgraft.compose.sequences import after_each, naive_continual, separate_finetunes
from skillgraft.compose.store import ContinualStore
from skillgraft.errors import InputError
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.live.grafted import tensors_of
from skillgraft.measure.evaluate import evaluate
from skillgraft.opening.runtime import Progress, Runtime, silent
from skillgraft.predictions.predictions import Predictions
from skillgraft.task_model import TaskModel
from skillgraft.tasks import load_task
from skillgraft.tasks.data import Data
from skillgraft.training.finetune import finetune
from skillgraft.training.plan import TrainingPlan
from tests.compose.three_stored import LEARNING, PLAN, _one_thread, encoder, history, place, store, tasks  # noqa: F401
from tests.compose.toy_tasks import TASKS
from tests.model_folders import content, same_weights

# pytest passes fixtures by their names, which are imported here
# ruff: noqa: F811


def _predictions(base: Path, task: Path, store: ContinualStore) -> Predictions:
    name = load_task(task).name
    return evaluate(base, [task], grafts={"g": store.graft(name)})[name]["g"]


# Laws


def test_nothing_is_ever_written_again(history: list[dict[str, str]], store: ContinualStore) -> None:
    for before, after in pairwise(history):
        grafts = {name: digest for name, digest in before.items() if name != "store.json"}
        assert grafts.items() <= after.items()
    assert store.tasks == TASKS
    assert set(history[-1]) == {
        "store.json",
        *(f"00{number}-{name}.safetensors" for number, name in enumerate(TASKS, 1)),
    }


def test_regions_are_disjoint_and_lie_in_the_tasks_own(store: ContinualStore) -> None:
    regions = [store.own(task).region for task in TASKS]
    assert all(a.isdisjoint(b) for a, b in combinations(regions, 2))
    assert len(regions[0]) == store.own("films").info["recipe"]["region"]
    for task, region in zip(TASKS, regions, strict=True):
        assert 0 < len(region) <= store.own(task).info["recipe"]["region"]


def test_before_is_the_bases_number_everywhere(store: ContinualStore, encoder: Path) -> None:
    base = Checkpoint.open(encoder)
    for task in TASKS:
        graft = store.own(task)
        for name, at in graft.region.sites.items():
            np.testing.assert_array_equal(base.flat(name)[at], graft.before[name])
        moved = sum(int((graft.change[name] != graft.before[name]).sum()) for name in graft.region)
        assert moved > 0.5 * len(graft), "training inside the region moves it"


def test_the_first_task_keeps_its_bits(encoder: Path, tasks: list[Path], tmp_path: Path) -> None:
    """Numbers and predictions right after it was learned, and after two more tasks: folder, live model, scores."""
    add(tmp_path / "S", encoder, tasks[0], learning=LEARNING)
    first = ContinualStore.open(tmp_path / "S")
    first.use(encoder, "films", tmp_path / "then")
    then = _predictions(encoder, tasks[0], first)
    for task in tasks[1:]:
        add(tmp_path / "S", encoder, task, learning=LEARNING)
    now = ContinualStore.open(tmp_path / "S")
    now.use(encoder, "films", tmp_path / "now")
    assert same_weights(tmp_path / "then", tmp_path / "now")
    assert content(tmp_path / "then") == content(tmp_path / "now")
    assert now.graft("films") == first.graft("films")
    np.testing.assert_array_equal(_predictions(encoder, tasks[0], now).scores, then.scores)


def test_a_model_is_the_base_with_the_grafts_up_to_its_task(
    store: ContinualStore, encoder: Path, tmp_path: Path
) -> None:
    for count, task in enumerate(TASKS, 1):
        outcome = store.use(encoder, task, tmp_path / task)
        assert outcome.entries == sum(len(store.own(one)) for one in TASKS[:count]) == len(store.graft(task))
        assert store.graft(task).form == "exact"
        assert extract(encoder, tmp_path / task).region == store.graft(task).region & _changed(store, task)
        opened = TaskModel.open(encoder, [encoder.parent / "films.toml"])
        with grafted(opened.model, store.graft(task)):
            live = tensors_of(opened.model).arrays
            folder = Checkpoint.open(tmp_path / task)
            assert all(np.array_equal(folder.read(name), live[name]) for name in folder.shapes)


def _changed(store: ContinualStore, task: str) -> Any:
    """The entries whose number differs from the base's: training may have left one as it was."""
    graft = store.graft(task)
    sites = {name: at[graft.change[name] != graft.before[name]] for name, at in graft.region.sites.items()}
    return type(graft.region)(graft.region.scope, sites)


def test_bytes_follow_the_entries(store: ContinualStore, encoder: Path, tasks: list[Path], tmp_path: Path) -> None:
    """12 bytes an entry (index, old and new number) and a header that does not grow with them."""
    search = {**LEARNING.search, "density": 0.1}
    twice = add(tmp_path / "S", encoder, tasks[0], learning=Learning(PLAN, search=search, data=LEARNING.data))
    sizes = [(one.path / one.kept[0].file).stat().st_size for one in (store, twice)]
    entries = [one.kept[0].entries for one in (store, twice)]
    assert entries[1] == pytest.approx(2 * entries[0], abs=1)
    assert sizes[1] - sizes[0] == pytest.approx(12 * (entries[1] - entries[0]), rel=0.3)


def test_training_aims_at_the_bases_own_readout(
    store: ContinualStore, encoder: Path, tasks: list[Path], tmp_path: Path
) -> None:
    """A learning rate of 0 leaves base + start, and its first loss is that of the base's label embeddings."""
    task, start = load_task(tasks[1]), store.graft("films")
    still = PLAN.with_changes(lr=0.0, weight_decay=0.0, steps=1, batch_size=24)
    losses: list[float] = []
    watched = Runtime(progress=lambda _done, _total, entry: losses.append(entry["loss"]))
    finetune(encoder, [task], out=tmp_path / "t", plan=still, start=start, data=LEARNING.data, runtime=watched)
    apply(encoder, store.upto("films")[0], out=tmp_path / "applied")
    assert same_weights(tmp_path / "t", tmp_path / "applied")
    found = TaskModel.open(encoder, [task], data=LEARNING.data).predict(start, split="train")[task.name]
    assert losses[0] == pytest.approx(_cross_entropy(found), rel=1e-5)


def _cross_entropy(found: Predictions) -> float:
    scores = found.scores.astype(np.float64)
    logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    return float(-logs[np.arange(len(logs)), found.labels].mean())


def test_a_finished_fine_tune_is_taken_as_it_is(encoder: Path, tasks: list[Path], tmp_path: Path) -> None:
    def tune(out: str, plan: TrainingPlan = PLAN, **rest: Any) -> Any:
        return finetune(encoder, [tasks[0]], out=tmp_path / out, plan=plan, data=LEARNING.data, **rest)

    first = tune("a", reuse=True)
    tune("b")
    assert same_weights(tmp_path / "a", tmp_path / "b")
    written = content(tmp_path / "a")
    assert tune("a", reuse=True) == first
    assert content(tmp_path / "a") == written
    with pytest.raises(InputError, match="made with other settings"):
        tune("a", PLAN.with_changes(lr=1e-3), reuse=True)
    with pytest.raises(InputError, match="exists"):
        tune("a")


def test_a_linear_head_travels_with_its_task(place: Path, tasks: list[Path], tmp_path: Path) -> None:
    learning = Learning(PLAN, search=LEARNING.search, data=Data(shots=12, readout="linear"))
    scores = []
    for task in tasks[:2]:
        store = add(tmp_path / "S", place / "masked", task, learning=learning)
        found = evaluate(place / "masked", [tasks[0]], grafts={"g": store.graft("films")}, data=learning.data)
        scores.append(found["films"]["g"].scores)
    np.testing.assert_array_equal(scores[0], scores[1])
    heads = [store.own(name).heads["classifier.weight"] for name in TASKS[:2]]
    assert not np.array_equal(heads[0], heads[1])
    store.use(place / "masked", "films", tmp_path / "films")
    assert Checkpoint.open(tmp_path / "films").read("classifier.weight").tobytes() == heads[0].tobytes()
    store.use(place / "masked", "animals", tmp_path / "animals")
    assert Checkpoint.open(tmp_path / "animals").read("classifier.weight").tobytes() == heads[1].tobytes()


# Reuse


def test_a_fine_tune_or_a_region_that_exists_is_not_made_anew(
    store: ContinualStore,
    encoder: Path,
    tasks: list[Path],
    tmp_path: Path,
) -> None:
    folders = separate_finetunes(encoder, tasks[:1], tmp_path / "single", learning=LEARNING)
    watched: list[str] = []

    def watch(stage: str) -> Progress:
        watched.append(stage)
        return silent

    again = add(tmp_path / "S", encoder, tasks[0], learning=LEARNING, tuned=folders["films"], on_stage=watch)
    assert watched == ["localizing", "inside"]
    assert again.own("films").digest == store.own("films").digest
    region = store.own("films").region
    watched.clear()
    third = add(tmp_path / "T", encoder, tasks[0], learning=LEARNING, region=region, on_stage=watch)
    assert watched == ["inside"]
    assert third.own("films").digest == store.own("films").digest
    assert third.own("films").info["method"] == "given"


# Sequences


def test_the_store_forgets_nothing_where_naive_tuning_does(
    encoder: Path,
    tasks: list[Path],
    store: ContinualStore,
    tmp_path: Path,
) -> None:
    kept = after_each(tmp_path / "S", encoder, tasks, learning=_tested(LEARNING))
    assert ContinualStore.open(tmp_path / "S").kept == store.kept
    assert all(kept.identical(task) for task in TASKS)
    table = kept.scores()
    assert table.rows == ("base", "after films", "after animals", "after colours")
    assert table["after films", "films"] == table["after colours", "films"]
    assert table["after films", "colours"].value is None
    longer = _tested(Learning(PLAN.with_changes(steps=40), data=LEARNING.data))
    naive = naive_continual(encoder, tasks, tmp_path / "naive", learning=longer)
    assert not naive.identical("films")
    assert naive.identical("colours"), "the last task has only one stage"
    last = evaluate(encoder, [tasks[2]], tuned={"t": tmp_path / "naive" / "003-colours"}, data=longer.data)
    np.testing.assert_array_equal(naive.predictions["colours"]["after colours"].scores, last["colours"]["t"].scores)
    again = naive_continual(encoder, tasks, tmp_path / "naive", learning=longer)
    assert again.scores() == naive.scores()


def _tested(learning: Learning) -> Learning:
    """The same, measured on 30 test rows."""
    return replace(learning, data=replace(learning.data, test_rows=30))


def test_a_store_of_other_tasks_is_not_continued(store: ContinualStore, encoder: Path, tasks: list[Path]) -> None:
    with pytest.raises(InputError, match="which is not how animals, films begins"):
        after_each(store.path, encoder, [tasks[1], tasks[0]], learning=LEARNING)
    with pytest.raises(InputError, match="each name once, found films, films"):
        after_each(store.path, encoder, [tasks[0], tasks[0]], learning=LEARNING)
