"""Steps of P1 §5 against the library called by hand, and the formulas of their cells by hand."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skillgraft.compose.continual import Learning
from skillgraft.compose.multitask import purified, task_regions, unions
from skillgraft.compose.sequences import History, after, naive_continual
from skillgraft.compose.store import ContinualStore as Skills
from skillgraft.folders.extract import extract
from skillgraft.papers import Draft, Part, Step, Store
from skillgraft.papers import formulas as f
from skillgraft.papers.calls import learn
from skillgraft.papers.profile import Profile, profile
from skillgraft.papers.recipe import Remark, filled
from skillgraft.papers.run import run
from skillgraft.papers.several_tasks import Mixture, Series
from skillgraft.papers.steps import resolved
from skillgraft.predictions.predictions import Predictions
from skillgraft.task_model import TaskModel
from skillgraft.tasks.data import Data
from skillgraft.values.region import Region, Scope
from tests.compose.toy_tasks import QUICK, TASKS, place, tasks  # noqa: F401
from tests.model_folders import same_weights

from .toys import added


@pytest.fixture(scope="module")
def toys(place: Path, tasks: list[Path]) -> Profile:  # noqa: F811
    """Twelve steps for each of three tasks that differ."""
    plan = QUICK.with_changes(lr=1e-2)
    return Profile(
        str(place / "encoder"), tasks=tuple(map(str, tasks)), plans={"sgd": plan, "inside": plan}, epochs={4096: 4},
        max_length=24, test_rows=40, region_steps=3, region_rows=64,
    )  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def mixture(toys: Profile) -> Mixture:
    return Mixture(toys, toys.tasks, 12, 0, start=0.01)


@pytest.fixture(scope="module")
def series(toys: Profile) -> Series:
    return Series(toys, toys.tasks, 12, 0, density=0.05)


def made(store: Store, *steps: Step | Part) -> list[Any]:
    """The results of steps."""
    assert run(steps, store) == {}
    return [store.read(step) for step in steps]


def test_masks_take_steps_of_the_size_that_the_profile_has_for_an_optimizer(toys: Profile) -> None:
    plans = {**toys.plans, "adamw": toys.plans["sgd"].with_changes(optimizer="adamw")}
    larger = replace(toys, plans=plans, region_lr={"adamw": 1e8})

    def step_size(**changes: str) -> float | None:
        size: float | None = Mixture(larger, toys.tasks, 12, 0, changes).graft(toys.tasks[0]).step.arguments.get("lr")
        return size

    assert (step_size(), step_size(optimizer="adamw")) == (None, 1e8)


def test_grafts_unions_and_purified_unions_are_the_librarys(mixture: Mixture, store: Store) -> None:
    group = mixture.tasks[:2]
    one, two, union, pure, model = made(
        store, *map(mixture.graft, group), mixture.union(group), mixture.purified(group), mixture.tuned()
    )
    base, search = mixture.profile.base, {"data": Data(shots=12, max_length=24), "batch_size": 64}
    expected = task_regions(base, model, mixture.tasks, of=TASKS[:2], start=0.01, steps=3, look_every=1, **search)
    assert [graft.digest for graft in (one, two)] == [graft.digest for graft in expected.values()]
    together = unions(expected, [TASKS[:2]])["films+animals"]
    assert len(together) > 0
    assert union.digest == together.digest
    again = purified(base, model, expected, [TASKS[:2]], mixture.tasks, **search)["films+animals"]
    assert pure.digest == again.digest


def test_a_mixture_takes_all_its_tasks_steps_and_keeps_the_best_on_validation(studio: Path) -> None:
    cpu = profile("cpu", base=str(studio / "bert"))
    plan = Mixture(cpu, ("sst2", "ag_news", "qnli"), 256, 0).tuned().arguments["plan"]
    alone = 15 * 256 // 16
    assert plan.steps == alone * (2 + 4 + 2)
    assert (plan.validate_every, plan.keep) == (plan.steps // 10, "best")
    assert Mixture(cpu, ("ag_news", "qnli", "sst2"), 256, 0).tuned().arguments["plan"] == plan


def test_a_series_forgets_nothing_in_its_store_and_forgets_tuned_over(series: Series, store: Store) -> None:
    first, *_, last = series.tasks
    for answers, same in ((series.store_answers, 1.0), (series.naive_answers, 0.0)):
        then, now = made(store, answers(first, first), answers(first, last))
        assert f.identical(then, now) == same
        history = History(("films",), {"films": {after("films"): then, after("colours"): now}})
        assert history.identical("films") is (same == 1.0)


def test_every_task_of_a_series_has_its_own_entries(series: Series, store: Store) -> None:
    stores = made(store, *map(series.store, series.tasks))
    regions = made(store, *map(series.region, series.tasks))
    skills = Skills.open(stores[2])
    assert skills.tasks == TASKS
    assert skills.own("films").region == regions[0]
    assert skills.own("colours").region == regions[2] - regions[1] - regions[0]
    assert f.skill_entries("colours")(stores[2]) == len(skills.own("colours"))
    assert Skills.open(stores[0]).tasks == ("films",), "an earlier store stays as it was"
    assert f.skill_bytes(stores[0]) < f.skill_bytes(stores[2])


def test_tuned_over_is_what_the_library_calls_naive(series: Series, store: Store, tmp_path: Path) -> None:
    last = series.tasks[-1]
    (model,) = made(store, series.naive(last))
    same = series.alone(last).arguments
    naive_continual(series.profile.base, series.tasks, tmp_path, learning=Learning(same["plan"], data=same["data"]))
    assert same_weights(model, tmp_path / "003-colours")
    assert f.model_bytes(model, model) == 2 * (model / "model.safetensors").stat().st_size


def test_a_task_that_a_killed_run_had_stored_is_not_learned_again(series: Series, store: Store, tmp_path: Path) -> None:
    step = series.store(series.tasks[1])
    (done,) = made(store, step)
    out = tmp_path / "skills"
    shutil.copytree(done, out)
    before = {file.name: file.stat().st_mtime_ns for file in out.iterdir()}
    learn(**resolved(step.arguments, store.read), out=out)
    assert {file.name: file.stat().st_mtime_ns for file in out.iterdir()} == before


def test_heads_stay_those_of_their_own_task(toys: Profile, store: Store) -> None:
    """A linear head that was trained on films answers for films, whatever its model was tuned on since."""
    linear = Series(replace(toys, readout="linear"), toys.tasks[:2], 12, 0)
    first, last = linear.tasks
    own, over, found = made(store, linear.naive(first), linear.naive(last), linear.naive_answers(first, last))
    heads = [extract(toys.base, folder).heads for folder in (own, over)]
    assert any(not np.array_equal(heads[0][name], heads[1][name]) for name in heads[0])
    mixed = replace(extract(toys.base, over).without_heads(), heads=heads[0])
    opened = TaskModel.open(
        toys.base, [first], data=Data(test_rows=40, max_length=24, readout="linear"), splits=("test",)
    )
    wanted = opened.predict(mixed, split="test")["films"]
    np.testing.assert_array_equal(found.scores, wanted.scores)


def region(*sites: int) -> Region:
    return Region(Scope.of("all", {"w": (8,)}), {"w": list(sites)} if sites else {})


def test_coverage_and_likeness_by_hand() -> None:
    some = [region(0, 1), region(5, 6), region(0, 1, 2, 3), region()]
    assert f.coverage(some[0], some[2]).value == 0.5
    assert f.coverage(some[2], some[0]).value == 1.0
    assert f.coverage(some[0], some[3]).reason == "the region to be covered is empty"
    sentence = f.likeness(("sst2", "ag_news", "cr", "none"))(*some)
    assert "sst2, cr" in sentence or "cr, sst2" in sentence
    assert "Groups: " in sentence
    assert "none" not in sentence
    assert f.likeness(("sst2", "none"))(some[0], some[3]).startswith("Too few regions")


def predictions(scores: Sequence[Sequence[float]]) -> Predictions:
    return Predictions(np.array(scores, np.float32), np.array([0, 1]), task="t")


def test_differences_by_hand() -> None:
    one, two = predictions([[1, 0], [0, 1]]), predictions([[1, 0], [1, 0]])
    assert f.difference(two, one).value == -0.5
    assert f.identical(two, one) == 0.5
    assert f.identical(one, one) == 1.0


def test_a_remark_is_made_or_left_out_with_its_steps(tmp_path: Path) -> None:
    step = added(7)
    draft = Draft("t", {("a", "b"): "none"}, notes=("first",), remarks=(Remark(str, (step,)),))
    assert list(draft.steps()) == [step]
    store = Store(tmp_path)
    run([step], store)
    assert filled(draft, store, {}).notes == ("first", "7")
    assert filled(draft, store, {step.key: "no data"}).notes == ("first",)
