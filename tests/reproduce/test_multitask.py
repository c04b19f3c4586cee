"""Steps of P1 §5 against the library called by hand, and the formulas of their cells by hand."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from skillgraft.compose.continual import Learning
from skillgraft.compose.multitask import purified, task_regions, unions
from skillgraft.compose.sequences import History, after, naive_continual
from skillgraft.compose.store import Store as Skills
from skillgraft.extraction import extract
from skillgraft.graft_file import load, save_region
from skillgraft.localize.skill import Rows
from skillgraft.measure.predictions import Predictions
from skillgraft.region import Region, Scope
from skillgraft.reproduce import Draft, Step, Store
from skillgraft.reproduce import formulas as f
from skillgraft.reproduce.jobs.artefacts import GRAFT, MODEL, REGION, SAID, change_of, region_of
from skillgraft.reproduce.jobs.continual import SKILLS, learn
from skillgraft.reproduce.mixtures import Mixture, Series
from skillgraft.reproduce.profile import Profile, profile
from skillgraft.reproduce.recipe import Remark, filled
from skillgraft.reproduce.run import run
from skillgraft.training.plan import Plan
from tests.compose.toy_tasks import QUICK, TASKS, place, tasks  # noqa: F401
from tests.folders import same_weights


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


def made(store: Store, *steps: Step) -> list[Path]:
    assert run(steps, store) == {}
    return [store.path(step) for step in steps]


def test_masks_take_steps_of_the_size_that_the_profile_has_for_an_optimizer(toys: Profile) -> None:
    plans = {**toys.plans, "adamw": toys.plans["sgd"].with_changes(optimizer="adamw")}
    larger = replace(toys, plans=plans, region_lr={"adamw": 1e8})

    def step_size(**changes: str) -> float | None:
        size: float | None = Mixture(larger, toys.tasks, 12, 0, changes).graft(toys.tasks[0]).settings.get("lr")
        return size

    assert (step_size(), step_size(optimizer="adamw")) == (None, 1e8)


def test_grafts_unions_and_purified_unions_are_the_librarys(mixture: Mixture, store: Store) -> None:
    group = mixture.tasks[:2]
    one, two, union, pure, model = made(
        store, *map(mixture.graft, group), mixture.union(group), mixture.purified(group), mixture.tuned()
    )
    base, data = mixture.profile.base, Rows(shots=12, batch_size=64, max_length=24)
    expected = task_regions(
        base, model / MODEL, mixture.tasks, of=TASKS[:2], start=0.01, steps=3, look_every=1, data=data
    )
    assert [load(step / GRAFT).digest for step in (one, two)] == [graft.digest for graft in expected.values()]
    together = unions(expected, [TASKS[:2]])["films+animals"]
    assert len(together) > 0
    assert load(union / GRAFT).digest == together.digest
    again = purified(base, model / MODEL, expected, [TASKS[:2]], mixture.tasks, data=data)["films+animals"]
    assert load(pure / GRAFT).digest == again.digest


def test_a_mixture_takes_all_its_tasks_steps_and_keeps_the_best_on_validation(studio: Path) -> None:
    cpu = profile("cpu", base=str(studio / "bert"))
    plan = Mixture(cpu, ("sst2", "ag_news", "qnli"), 256, 0).tuned().settings["plan"]
    alone = 15 * 256 // 16
    assert plan["steps"] == alone * (2 + 4 + 2)
    assert (plan["validate_every"], plan["keep"]) == (plan["steps"] // 10, "best")
    assert Mixture(cpu, ("ag_news", "qnli", "sst2"), 256, 0).tuned().settings["plan"] == plan


def test_a_series_forgets_nothing_in_its_store_and_forgets_tuned_over(series: Series, store: Store) -> None:
    first, *_, last = series.tasks
    for says, same in ((series.store_says, 1.0), (series.naive_says, 0.0)):
        then, now = made(store, says(first, first), says(first, last))
        assert f.same_scores(then, now) == same
        told = History(("films",), {"films": {after("films"): f.read(then), after("colours"): f.read(now)}})
        assert told.identical("films") is (same == 1.0)


def test_every_task_of_a_series_has_its_own_entries(series: Series, store: Store) -> None:
    steps = [series.store(task) for task in series.tasks]
    stores = made(store, *steps, *map(series.region, series.tasks))
    skills = Skills.open(stores[2] / SKILLS)
    assert skills.tasks == TASKS
    regions = [region_of(step) for step in stores[3:]]
    assert skills.own("films").region == regions[0]
    assert skills.own("colours").region == regions[2] - regions[1] - regions[0]
    assert f.skill_entries("colours")(stores[2]) == len(skills.own("colours"))
    assert Skills.open(stores[0] / SKILLS).tasks == ("films",), "an earlier store stays as it was"
    assert f.skill_bytes(stores[0]) < f.skill_bytes(stores[2])


def test_tuned_over_is_what_the_library_calls_naive(series: Series, store: Store, tmp_path: Path) -> None:
    last = series.tasks[-1]
    (model,) = made(store, series.naive(last))
    plan = Plan(**series.alone(last).settings["plan"])
    naive_continual(
        series.profile.base,
        series.tasks,
        tmp_path,
        learning=Learning(plan, data=Rows(shots=12, max_length=24)),
        rows=40,
    )
    assert same_weights(model / MODEL, tmp_path / "003-colours")
    assert f.model_bytes(model, model) == 2 * (model / MODEL / "model.safetensors").stat().st_size


def test_a_task_that_a_killed_run_had_stored_is_not_learned_again(series: Series, store: Store, tmp_path: Path) -> None:
    step = series.store(series.tasks[1])
    (done,) = made(store, step)
    shutil.copytree(done / SKILLS, tmp_path / SKILLS)
    before = {file.name: file.stat().st_mtime_ns for file in (tmp_path / SKILLS).iterdir()}
    learn(tmp_path, {role: store.path(need) for role, need in step.needs.items()}, **step.settings)
    assert {file.name: file.stat().st_mtime_ns for file in (tmp_path / SKILLS).iterdir()} == before


def test_heads_stay_those_of_their_own_task(toys: Profile, store: Store) -> None:
    """A linear head that was trained on films answers for films, whatever its model was tuned on since."""
    linear = Series(replace(toys, readout="linear"), toys.tasks[:2], 12, 0)
    first, last = linear.tasks
    own, over, _ = made(store, linear.naive(first), linear.naive(last), linear.naive_says(first, last))
    mixed = change_of({"tuned": over, "heads": own}, toys.base)
    heads = [extract(toys.base, step / MODEL).heads for step in (own, over)]
    assert mixed.heads
    for name, head in mixed.heads.items():
        np.testing.assert_array_equal(head, heads[0][name])
    assert any(not np.array_equal(heads[0][name], heads[1][name]) for name in heads[0])
    assert mixed.without_heads().digest == extract(toys.base, over / MODEL).without_heads().digest


def region_step(folder: Path, *sites: int) -> Path:
    folder.mkdir()
    scope = Scope.of("all", {"w": (8,)})
    save_region(Region(scope, {"w": list(sites)} if sites else {}), folder / REGION)
    return folder


def test_coverage_and_likeness_by_hand(tmp_path: Path) -> None:
    some = [region_step(tmp_path / str(n), *sites) for n, sites in enumerate([(0, 1), (5, 6), (0, 1, 2, 3), ()])]
    assert f.coverage(some[0], some[2]).value == 0.5
    assert f.coverage(some[2], some[0]).value == 1.0
    assert f.coverage(some[0], some[3]).reason == "the region to be covered is empty"
    told = f.likeness(("sst2", "ag_news", "cr", "none"))(*some)
    assert "sst2, cr" in told or "cr, sst2" in told
    assert "Groups: " in told
    assert "none" not in told
    assert f.likeness(("sst2", "none"))(some[0], some[3]).startswith("Too few regions")


def said(folder: Path, scores: Sequence[Sequence[float]]) -> Path:
    folder.mkdir()
    Predictions(np.array(scores, np.float32), np.array([0, 1]), task="t").save(folder / SAID)
    return folder


def test_differences_by_hand(tmp_path: Path) -> None:
    one, two = said(tmp_path / "1", [[1, 0], [0, 1]]), said(tmp_path / "2", [[1, 0], [1, 0]])
    assert f.difference(two, one).value == -0.5
    assert f.same_scores(two, one) == 0.5
    assert f.same_scores(one, one) == 1.0


def test_a_remark_is_told_or_left_out_with_its_steps(tmp_path: Path) -> None:
    step = Step("recall", {"task": "sst2"})
    draft = Draft("t", {("a", "b"): "none"}, notes=("first",), remarks=(Remark(lambda path: path.name[:6], (step,)),))
    assert list(draft.steps()) == [step]
    store = Store(tmp_path)
    assert filled(draft, store, {}).notes == ("first", "recall")
    assert filled(draft, store, {step.key: "no data"}).notes == ("first",)
