"""A step's key: the content of everything that decides its result, and nothing else; and what stands for other steps."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from skillgraft.errors import InputError
from skillgraft.papers import Step, steps
from skillgraft.papers.calls import ask
from skillgraft.papers.profile import profile
from skillgraft.papers.recipes import recipe
from skillgraft.papers.steps import Part, content, in_order, resolved, steps_in
from skillgraft.tasks import load_task
from skillgraft.tasks.data import Data
from skillgraft.training.plan import TrainingPlan
from skillgraft.values.region import Region, Scope

from .toys import add, added, slow_step


@pytest.fixture
def _fresh() -> Iterator[None]:
    """Contents are remembered by path; a test that changes files forgets them."""
    forget()
    yield
    forget()


def forget() -> None:
    for remembered in (steps.base_content, steps.task_content, steps.task_of):
        remembered.cache_clear()


def test_equal_steps_are_one_whatever_the_order_of_their_arguments() -> None:
    one = Step(add, {"number": 1, "seed": 2})
    two = Step(add, {"seed": 2, "number": 1})
    assert one == two
    assert hash(one) == hash(two)
    assert one.key == two.key
    assert Step(add, {"number": 1, "seed": 3}) != one


@dataclass(frozen=True)
class Settings:
    rate: float = 0.5
    names: tuple[str, ...] = ()


def test_a_value_counts_by_what_differs_from_its_defaults() -> None:
    """So a plan that gets one more field keeps its keys, and a field set to its default is no other plan."""
    assert content(Settings()) == content(Settings(rate=0.5, names=()))
    assert content(Settings()) == ["Settings", {}]
    assert content(Settings(rate=0.25)) == ["Settings", {"rate": 0.25}]
    assert len({str(content(each)) for each in (Settings(), Settings(0.25), Settings(names=("a",)))}) == 3


def test_a_key_follows_what_is_needed_and_in_which_order() -> None:
    below, other = added(1), added(2)
    assert added(3, below).key != added(3, other).key
    assert added(3, below, other).key != added(3, other, below).key


def test_a_key_follows_which_part_is_needed() -> None:
    tuned = slow_step("a")
    needed = [tuned, tuned.region, tuned.facts, tuned.checkpoint("1"), tuned.checkpoint("2"), tuned["1"], tuned.at(1)]
    keys = {Step(add, {"number": 1, "others": [each]}).key for each in needed}
    assert len(keys) == len(needed)


def test_a_new_version_of_a_function_is_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = added(1).key
    monkeypatch.setattr(steps, "VERSIONS", {"add": 2})
    assert added(1).key != before


def test_a_keyword_that_the_function_does_not_have_is_known_before_anything_runs() -> None:
    with pytest.raises(TypeError, match="sead"):
        Step(add, {"number": 1, "sead": 2})


def test_frozen_values_go_by_all_their_fields() -> None:
    plan, data = TrainingPlan(steps=3), Data(shots=4)
    assert content(plan) == content(TrainingPlan(steps=3))
    assert content(plan) != content(plan.with_changes(lr=0.5))
    assert content(data) != content(replace(data, seed=1))
    scope = Scope.of("all", {"w": (8,)})
    assert content(Region(scope, {"w": [1]})) == content(Region(scope, {"w": np.array([1])}))
    assert content(Region(scope, {"w": [1]})) != content(Region(scope, {"w": [2]}))
    assert content({"a": 1, "b": 2}) != content({"b": 2, "a": 1}), "which of two tasks is the first may matter"


def test_what_has_no_content_is_refused() -> None:
    with pytest.raises(InputError, match="plain JSON, a frozen value or a step; found PosixPath: somewhere"):
        _ = Step(add, {"number": Path("somewhere")}).key


def test_steps_come_once_and_after_what_they_need() -> None:
    shared = added(1)
    left, right = added(2, shared), added(3, shared)
    top = added(4, left, right)
    assert in_order([top, left]) == [shared, left, right, top]
    assert in_order([top.region]) == [shared, left, right, top]


@dataclass(frozen=True)
class Choice:
    """A value that may hold a step."""

    name: str
    where: Any = None


def test_results_take_the_place_of_steps_however_deep() -> None:
    step = slow_step("a")
    value = {"plain": [1, 2], "ways": {"one": Choice("x", step.region), "two": Choice("y")}, "list": [step]}
    assert list(steps_in(value)) == [step, step]

    def read(each: Step | Part) -> str:
        return each.name

    found = resolved(value, read)
    assert found == {"plain": [1, 2], "ways": {"one": Choice("x", "region"), "two": Choice("y")}, "list": ["slow"]}
    assert found["plain"] is value["plain"]


@pytest.mark.usefixtures("_fresh")
def test_a_base_goes_by_its_content_and_not_by_its_folder(studio: Path, tmp_path: Path) -> None:
    def key(base: Path) -> str:
        steps.base_content.cache_clear()
        return Step(ask, {"base": str(base)}).key

    there = tmp_path / "elsewhere"
    shutil.copytree(studio / "bert", there)
    here = key(studio / "bert")
    assert key(there) == here
    assert key(studio / "gpt2") != here
    config = (there / "config.json").read_bytes()
    (there / "config.json").write_text("{}", encoding="utf-8")
    assert key(there) != here
    (there / "config.json").write_bytes(config)
    (there / "README.md").write_text("what people read", encoding="utf-8")
    assert key(there) == here
    (there / "pooling").mkdir()
    (there / "pooling" / "config.json").write_text("{}", encoding="utf-8")
    assert key(there) != here


@pytest.mark.usefixtures("_fresh")
def test_any_entry_of_a_base_counts(studio: Path, tmp_path: Path) -> None:
    """The fingerprint samples a tensor; a base in which one number changed elsewhere is another base."""
    shutil.copytree(studio / "bert", tmp_path / "other")
    file = tmp_path / "other" / "model.safetensors"
    tensors = safetensors.numpy.load_file(file)
    largest = max(tensors, key=lambda name: tensors[name].size)
    keys = {steps.base_content(str(studio / "bert"))}
    for index in range(0, tensors[largest].size, tensors[largest].size // 7):
        changed = {**tensors, largest: tensors[largest].copy()}
        changed[largest].reshape(-1)[index] += 1
        safetensors.numpy.save_file(changed, file, metadata={"format": "pt"})
        steps.base_content.cache_clear()
        keys.add(steps.base_content(str(tmp_path / "other")))
    assert len(keys) == 9


@pytest.mark.usefixtures("_fresh")
def test_a_task_goes_by_its_definition_and_its_rows(studio: Path, tmp_path: Path) -> None:
    for name in ("films.toml", "x.jsonl", "y.jsonl"):
        shutil.copyfile(studio / name, tmp_path / name)
    copy = str(tmp_path / "films.toml")
    assert steps.task_content(copy) == steps.task_content(str(studio / "films.toml"))
    assert content(load_task(copy)) == steps.task_content(copy)
    with (tmp_path / "y.jsonl").open("a", encoding="utf-8") as rows:
        rows.write('{"text": "one more", "label": 1}\n')
    steps.task_content.cache_clear()
    assert steps.task_content(copy) != steps.task_content(str(studio / "films.toml"))


@pytest.mark.usefixtures("_fresh")
def test_rows_go_by_the_question_too_that_they_are_asked(studio: Path) -> None:
    films, plays, songs = (str(studio / f"{name}.toml") for name in ("films", "plays", "songs"))
    tasks = [songs, f"{songs} as {films}", f"{songs} as {plays}", f"{plays} as {films}"]
    assert len({Step(ask, {"task": task}).key for task in tasks}) == len(tasks)
    assert len({Step(ask, {"task": load_task(task)}).key for task in tasks}) == len(tasks)
    assert Step(ask, {"task": load_task(tasks[1])}).key == Step(ask, {"task": tasks[1]}).key
    assert Step(ask, {"task": tasks[1]}).title == "ask songs as films"


@pytest.mark.usefixtures("_fresh")
def test_a_task_without_its_data_has_a_key_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SKILLGRAFT_DATA", raising=False)
    assert steps.task_content("mpqa") != steps.task_content("sentiment")


def keys(studio: Path, **changes: object) -> dict[str, set[str]]:
    """The keys of table 2's steps, by function."""
    asked = profile("smoke", base=str(studio / "bert"), tasks=(str(studio / "films.toml"),), shots=(4,), **changes)
    found = in_order(step for draft in recipe("table2").draft(asked) for step in draft.steps())
    return {name: {step.key for step in found if step.name == name} for name in ("finetune", "localize", "ask")}


def test_another_seed_makes_anew_only_what_it_decides(studio: Path) -> None:
    one, two = keys(studio, seeds=(0,)), keys(studio, seeds=(1,))
    assert not one["finetune"] & two["finetune"]
    assert not one["localize"] & two["localize"]
    assert len(one["ask"] & two["ask"]) == 1  # what the base answers
    both = keys(studio, seeds=(0, 1))
    assert all(both[name] == one[name] | two[name] for name in one)


def test_more_test_rows_leave_models_and_grafts_alone(studio: Path) -> None:
    one, two = keys(studio, test_rows=24), keys(studio, test_rows=30)
    assert one["finetune"] == two["finetune"]
    assert one["localize"] == two["localize"]
    # What base and tuned answer about the validation rows stays; the answers about the test rows do not.
    assert len(one["ask"] & two["ask"]) == 2


def test_a_title_tells_steps_apart(studio: Path) -> None:
    asked = profile("smoke", base=str(studio / "bert"), tasks=("sst2",), shots=(64,), seeds=(1,))
    titles = {step.title for draft in recipe("table2").draft(asked) for step in in_order(draft.steps())}
    assert "localize sst2 learned 0.0001 64 shots seed 1 of tuned" in titles
    assert "finetune sst2 64 shots seed 1" in titles
    assert "ask sst2 seed 0 of graft" in titles
