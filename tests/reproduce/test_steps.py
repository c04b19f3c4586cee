"""A step's key: the content of everything that decides its artefacts, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from skillgraft.errors import InputError
from skillgraft.reproduce import Step, content
from skillgraft.reproduce.jobs import JOBS, job
from skillgraft.reproduce.jobs.job import Job
from skillgraft.reproduce.profile import profile
from skillgraft.reproduce.recipes import recipe
from skillgraft.reproduce.step import in_order

from .toys import TOYS, added


@pytest.fixture
def _toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skillgraft.reproduce.jobs.JOBS", TOYS)


@pytest.fixture
def _fresh() -> None:
    """Contents are remembered by path; a test that changes files forgets them."""
    for remembered in (content.base_content, content.task_content):
        remembered.cache_clear()


@pytest.mark.usefixtures("_toys")
def test_equal_steps_are_one_whatever_the_order_of_their_settings() -> None:
    one = Step("add", {"number": 1, "seed": 2})
    two = Step("add", {"seed": 2, "number": 1})
    assert one == two
    assert hash(one) == hash(two)
    assert one.key == two.key
    assert Step("add", {"number": 1, "seed": 3}) != one


@pytest.mark.usefixtures("_toys")
def test_a_key_follows_what_is_needed_and_in_which_role() -> None:
    below, other = added(1), added(2)
    assert added(3, below).key != added(3, other).key
    assert added(3, below, other).key != added(3, other, below).key


def test_a_new_version_of_a_job_is_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skillgraft.reproduce.jobs.JOBS", TOYS)
    before = added(1).key
    newer = Job(TOYS["add"].run, TOYS["add"].tokens, version=2)
    monkeypatch.setattr("skillgraft.reproduce.jobs.JOBS", {"add": newer})
    assert added(1).key != before


@pytest.mark.usefixtures("_toys")
def test_steps_come_once_and_after_what_they_need() -> None:
    shared = added(1)
    left, right = added(2, shared), added(3, shared)
    top = added(4, left, right)
    order = in_order([top, left])
    assert order == [shared, left, right, top]


@pytest.mark.usefixtures("_fresh")
def test_a_base_goes_by_its_content_and_not_by_its_place(studio: Path, tmp_path: Path) -> None:
    shutil.copytree(studio / "bert", tmp_path / "elsewhere")
    here, there = (Step("say", {"base": str(base)}) for base in (studio / "bert", tmp_path / "elsewhere"))
    assert here.key == there.key
    assert Step("say", {"base": str(studio / "gpt2")}).key != here.key
    (tmp_path / "elsewhere" / "config.json").write_text("{}", encoding="utf-8")
    content.base_content.cache_clear()
    assert Step("say", {"base": str(tmp_path / "elsewhere")}).key != here.key


@pytest.mark.usefixtures("_fresh")
def test_a_task_goes_by_its_definition_and_its_rows(studio: Path, tmp_path: Path) -> None:
    for name in ("films.toml", "x.jsonl", "y.jsonl"):
        shutil.copyfile(studio / name, tmp_path / name)
    copy = str(tmp_path / "films.toml")
    assert content.task_content(copy) == content.task_content(str(studio / "films.toml"))
    with (tmp_path / "y.jsonl").open("a", encoding="utf-8") as rows:
        rows.write('{"text": "one more", "label": 1}\n')
    content.task_content.cache_clear()
    assert content.task_content(copy) != content.task_content(str(studio / "films.toml"))


@pytest.mark.usefixtures("_fresh")
def test_a_task_without_its_data_has_a_key_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SKILLGRAFT_DATA", raising=False)
    assert content.task_content("mpqa") != content.task_content("sentiment")
    content.task_content.cache_clear()


def keys(studio: Path, **changes: object) -> dict[str, set[str]]:
    """The keys of table 2's steps, by job."""
    asked = profile("smoke", base=str(studio / "bert"), tasks=(str(studio / "films.toml"),), shots=(4,), **changes)
    steps = in_order(step for draft in recipe("table2").draft(asked) for step in draft.steps())
    return {name: {step.key for step in steps if step.job == name} for name in JOBS}


def test_another_seed_makes_anew_only_what_it_decides(studio: Path) -> None:
    one, two = keys(studio, seeds=(0,)), keys(studio, seeds=(1,))
    assert not one["tune"] & two["tune"]
    assert not one["localize"] & two["localize"]
    assert len(one["say"] & two["say"]) == 1  # what the base says
    both = keys(studio, seeds=(0, 1))
    assert all(both[name] == one[name] | two[name] for name in JOBS)


def test_more_test_rows_leave_models_and_grafts_alone(studio: Path) -> None:
    one, two = keys(studio, test_rows=24), keys(studio, test_rows=30)
    assert one["tune"] == two["tune"]
    assert one["localize"] == two["localize"]
    # What base and tuned say about the validation rows stays; the three answers about the test rows do not.
    assert len(one["say"] & two["say"]) == 2


def test_an_unknown_job_is_refused() -> None:
    with pytest.raises(InputError, match="unknown job 'tuen'; did you mean 'tune'"):
        job("tuen")


def test_a_title_tells_steps_apart() -> None:
    step = Step("localize", {"task": "sst2", "name": "learned", "budget": 1e-4, "data": {"shots": 64, "seed": 1}})
    assert step.title == "localize sst2 learned 0.0001 64 shots seed 1"
