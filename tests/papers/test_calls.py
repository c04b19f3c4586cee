"""What recipes call, against the library called by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skillgraft.errors import InputError
from skillgraft.files.graft_file import load_region
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.folders.extract import extract
from skillgraft.measure.evaluate import evaluate
from skillgraft.papers import Step, Store, calls
from skillgraft.papers.calls import all_rows, ask, ticket_graft, ticket_region
from skillgraft.papers.run import run
from skillgraft.regions.localize import Localization, localize
from skillgraft.task_model import TaskModel
from skillgraft.tasks.data import Data
from skillgraft.training.finetune import finetune
from skillgraft.training.plan import TrainingPlan
from skillgraft.values.graft import Graft
from skillgraft.values.region import Region, Scope

DATA = Data(shots=8, max_length=16)
ROWS = Data(test_rows=24, max_length=16)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("store"), 1)


@pytest.fixture(scope="module")
def asked(studio: Path) -> dict[str, Any]:
    return {"base": str(studio / "bert"), "task": str(studio / "films.toml")}


@pytest.fixture(scope="module")
def tuning(asked: dict[str, Any]) -> Step:
    """A fine-tune with a checkpoint after each second step."""
    plan = TrainingPlan(lr=0.05, batch_size=8, steps=4, checkpoint_every=2)
    return Step(finetune, {"base": asked["base"], "tasks": [asked["task"]], "plan": plan, "data": DATA})


@pytest.fixture(scope="module")
def tuned(tuning: Step, store: Store) -> Path:
    """Its folder."""
    assert run([tuning], store) == {}
    folder: Path = store.read(tuning)
    return folder


@pytest.fixture(scope="module")
def graft(asked: dict[str, Any], tuned: Path) -> Graft:
    return extract(asked["base"], tuned, entries=40)


def test_a_fine_tune_is_a_step_with_its_model_and_its_checkpoints(tuning: Step, tuned: Path, store: Store) -> None:
    assert (tuned / "model.safetensors").is_file()
    assert (store.read(tuning.checkpoint("step-000002")) / "model.safetensors").is_file()
    assert not list(tuned.parent.glob("*.resume*")), "nothing that a finished run no longer needs"


def test_a_fine_tune_that_was_killed_after_its_last_file_is_not_run_again(
    tuning: Step, tuned: Path, store: Store, tmp_path: Path
) -> None:
    other = Store(tmp_path, store.threads)
    work = other.path(tuning).with_name(f"{other.path(tuning).name}.work")
    work.mkdir()
    (work / "model").mkdir()
    for file in tuned.iterdir():
        (work / "model" / file.name).hardlink_to(file)
    assert run([tuning], other) == {}
    assert (other.read(tuning) / "model.safetensors").samefile(tuned / "model.safetensors")


def test_what_base_tuned_and_graft_answer_is_what_evaluate_measures(
    tuned: Path, graft: Graft, asked: dict[str, Any]
) -> None:
    half = 0.5 * extract(asked["base"], tuned)
    wanted = evaluate(
        asked["base"],
        [asked["task"]],
        tuned={"tuned": tuned},
        grafts={"graft": 0.5 * graft, "half": half},
        data=ROWS,
    )["films"]
    models: dict[str, dict[str, Any]] = {
        "base": {},
        "tuned": {"tuned": tuned},
        "graft": {"graft": graft, "scale": 0.5},
        "half": {"tuned": tuned, "scale": 0.5},
    }
    for name, model in models.items():
        np.testing.assert_array_equal(ask(**asked, **model, data=ROWS).scores, wanted[name].scores)
    changed = wanted["tuned"].scores != wanted["base"].scores
    assert changed.all(axis=1).any(), "models that answer the same show nothing"


MEALS = """
name = "meals"
train = "meals.jsonl"
test = "meals.jsonl"
text = "review"
label = "stars"
labels = ["fine", "bad"]
[prompt.masked]
template = "what does {review} stand for ? {mask}"
words = { fine = "Yes", bad = "No" }
[describe]
fine = "a quick red mouse"
bad = "the blue house"
"""


@pytest.fixture(scope="module")
def meals(studio: Path) -> str:
    """The test rows of films under other names, with a question of their own."""
    films = [json.loads(line) for line in (studio / "y.jsonl").read_text(encoding="utf-8").splitlines()]
    rows = [{"review": row["text"], "stars": ["bad", "fine"][row["label"]]} for row in films]
    (studio / "meals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (studio / "meals.toml").write_text(MEALS, encoding="utf-8")
    return str(studio / "meals.toml")


@pytest.mark.parametrize("readout", ["masked", "text-head", "linear"])
def test_other_rows_are_asked_with_the_words_descriptions_or_head_of_the_source(
    readout: str, meals: str, asked: dict[str, Any], tmp_path: Path
) -> None:
    """The same rows under other names: the source's question about them is the source's own, answer by answer."""
    base, films = asked["base"], asked["task"]
    data = Data(max_length=16, readout=readout)
    plan = TrainingPlan(lr=0.05, batch_size=8, steps=4)
    tuned = finetune(base, [films], out=tmp_path / "tuned", plan=plan, data=replace(data, shots=8)).path
    models: list[dict[str, Any]] = [{"tuned": tuned}, {"graft": extract(base, tuned, entries=40)}]
    for model in models:
        own, other = (ask(base, task, **model, data=data) for task in (films, f"{meals} as {films}"))
        np.testing.assert_array_equal(other.scores, own.scores)
        assert (other.labels.tolist(), other.label_names) == (own.labels.tolist(), ("bad", "good"))
        assert other.task == "meals as films"
    if readout != "linear":
        assert not np.array_equal(ask(base, meals, tuned=tuned, data=data).scores, own.scores)
    found = evaluate(
        base, [films, f"{meals} as {films}"], grafts={"graft": models[1]["graft"]}, data=data, with_base=False
    )
    np.testing.assert_array_equal(found["meals as films"]["graft"].scores, found["films"]["graft"].scores)


def test_rows_of_a_run_are_those_that_it_trained_and_validated_on(asked: dict[str, Any]) -> None:
    for split in ("train", "validation"):
        wanted = evaluate(asked["base"], [asked["task"]], split=split, data=DATA)["films"]["base"]
        found = ask(**asked, split=split, data=DATA)
        np.testing.assert_array_equal(found.scores, wanted.scores)
        assert found.made_by["split"] == split


def test_the_opened_base_serves_the_next_question(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for remembered in (calls._opened, calls._model):
        remembered.cache_clear()
    opened: list[object] = []
    really = TaskModel.open
    monkeypatch.setattr(TaskModel, "open", lambda *given, **rest: opened.append(given) or really(*given, **rest))
    first = ask(**asked, data=ROWS)
    assert ask(**asked, data=ROWS) == first
    ask(**asked, split="train", data=replace(DATA, shots=4))
    assert len(opened) == 1


def test_a_base_has_no_score_under_a_head_that_comes_with_tuning(asked: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="neither base nor graft has one"):
        ask(**asked, data=replace(ROWS, readout="linear"))


def test_a_ticket_is_tuned_inside_its_region_and_zero_elsewhere_in_the_scope(
    tuned: Path, asked: dict[str, Any]
) -> None:
    base, after = Checkpoint.open(asked["base"]), Checkpoint.open(tuned)
    scope = Scope.select("layers", base.shapes)
    draw = np.random.default_rng(0)
    region = Region.from_masks(scope, {name: draw.random(shape) < 0.3 for name, shape in scope.shapes.items()})
    graft = ticket_graft(extract(asked["base"], tuned), region, base)
    for name in scope.shapes:
        mask = region.mask(name).reshape(-1)
        np.testing.assert_array_equal(graft.written(name), np.where(mask, after.flat(name), 0))
    assert len(graft) == scope.size
    wanted = evaluate(asked["base"], [asked["task"]], grafts={"ticket": graft}, data=ROWS)["films"]["ticket"]
    np.testing.assert_array_equal(ask(**asked, tuned=tuned, ticket=region, data=ROWS).scores, wanted.scores)


def test_a_lottery_search_leaves_its_region_alone(
    tuning: Step, tuned: Path, asked: dict[str, Any], store: Store
) -> None:
    step = Step(ticket_region, {**asked, "tuned": tuning, "data": DATA, "method": "movement", "density": 0.5})
    assert run([step], store) == {}
    largest = store.read(step)
    assert sorted(file.name for file in store.path(step).iterdir()) == ["facts.json", "region.safetensors", "step.json"]
    after = Checkpoint.open(tuned)
    every = np.sort(np.concatenate([abs(after.flat(name)) for name in largest.scope.shapes]))[::-1]
    inside = np.concatenate([abs(after.flat(name)[at]) for name, at in largest.sites.items()])
    np.testing.assert_array_equal(np.sort(inside)[::-1], every[: len(largest)])
    assert load_region(store.path(step) / "region.safetensors") == largest


def test_a_search_may_start_from_the_region_of_another(tuning: Step, asked: dict[str, Any], store: Store) -> None:
    largest = Step(ticket_region, {**asked, "tuned": tuning, "data": DATA, "method": "movement", "density": 0.01})
    given = {
        **asked,
        "tuned": tuning,
        "data": DATA,
        "method": "learned",
        "density": 0.01,
        "start": largest,
        "steps": 1,
        "lr": 1e-30,
    }
    search = Step(ticket_region, given)
    assert run([search], store) == {}
    assert store.read(search) == store.read(largest), "a step of no size leaves γ_base as it was"


def test_nested_densities_are_those_of_one_search(
    tuning: Step, tuned: Path, asked: dict[str, Any], store: Store
) -> None:
    densities = (0.001, 0.01)
    options: dict[str, Any] = {"data": DATA, "method": "learned", "start": 1e-3, "steps": 3, "batch_size": 16}
    whole = Step(localize, {**asked, "tuned": tuning, "density": 0.01, "densities": densities, **options})
    assert run([whole], store) == {}
    found = [store.read(whole.at(density)) for density in densities]
    for density, graft in zip(densities, found, strict=True):
        alone: Localization = localize(**asked, tuned=tuned, density=density, **options)
        assert graft.digest == alone.graft.digest
        assert graft.info["task"] == "films"
    assert found[1].region.coverage(of=found[0].region) == 1.0
    assert len(found[0]) < len(found[1])


def test_all_rows_are_counted_with_a_twentieth_left_to_validate(asked: dict[str, Any], store: Store) -> None:
    task = asked["task"]
    assert all_rows(task, most=50_000, data=Data(seed=1)) == Data(train_rows=114, seed=1)  # 95 % of 120
    assert all_rows(task, most=20, data=Data()) == Data(train_rows=38)  # two classes
    counted = Step(all_rows, {"task": task, "most": 20, "data": Data(seed=1)})
    run([counted], store)
    assert store.read(counted) == Data(train_rows=38, seed=1)
