"""Profiles: how long, how many, what replaces what."""

from __future__ import annotations

from pathlib import Path

import pytest

from skillgraft.errors import InputError
from skillgraft.papers.profile import PROFILES, profile
from skillgraft.papers.samples import Sample, draws, ladder, retrained, sized


def test_the_cpu_profile_trains_30_epochs_of_few_examples_and_15_of_many() -> None:
    cpu = profile("cpu", base="b")
    assert cpu.plan("sgd", "sst2", 64, seed=0).steps == 30 * 2 * 64 // 16
    assert cpu.plan("sgd", "sst2", 512, seed=0).steps == 15 * 2 * 512 // 16 == 960
    assert cpu.plan("sgd", "ag_news", 512, seed=0).steps == 960, "15 epochs would be 1920 steps"
    assert "30 or 15 epochs at most and 960 steps at most" in cpu.words
    assert (cpu.region_steps, cpu.region_rows, cpu.max_length, cpu.test_rows) == (40, 256, 64, 1000)


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "inside"])
def test_p1s_runs_clip_gradients_and_keep_the_best_checkpoint(name: str, optimizer: str) -> None:
    plan = profile(name, base="b").plan(optimizer, "sst2", 64, seed=0)
    assert (plan.clip_norm, plan.keep) == (1.0, "best")
    assert plan.validate_every == max(1, plan.steps // 15)


def test_a_profiles_precision_is_that_of_its_runs_and_searches() -> None:
    asked = profile("cpu-100m", base="b")
    assert asked.plan("sgd", "sst2", 64, seed=0).mixed_precision == "bf16"
    sample = Sample(asked, "sst2", 64, 0)
    assert sample.graft(method="budgeted").arguments["mixed_precision"] == "bf16"
    assert asked.plans["p2"].mixed_precision == "bf16"


def test_small_profiles_train_p2s_vectors_for_few_steps() -> None:
    lengths = {name: (profile(name, base="b").plans["p2"].steps, profile(name, base="b").rows) for name in PROFILES}
    assert lengths == {"cpu": (250, 1536), "cpu-100m": (250, 1536), "paper": (2000, None), "smoke": (3, 16)}


def test_a_task_with_a_small_class_trains_on_as_many_rows_in_natural_proportion(studio: Path) -> None:
    smoke, films = profile("smoke", base="b"), str(studio / "films.toml")
    assert [sample.most for sample in draws(smoke, films, 2)] == [None]
    assert [sample.most for sample in draws(smoke, films, 5000)] == [5000]


def test_the_papers_profile_has_its_steps_and_batches() -> None:
    paper = profile("paper", base="b")
    assert paper.plan("sgd", "sst2", 64, seed=0).steps == 16 * 2 * 64
    assert paper.plan("sgd", "sst2", 4096, seed=0).steps == 16 * 2 * 512
    assert (paper.region_steps, paper.region_rows, paper.seeds_at(4096)) == (100, 1024, (0, 1, 2, 3, 4))


def test_what_is_asked_for_replaces_the_recipes_own() -> None:
    cpu = profile("cpu", base="b")
    assert cpu.tasks_or("sst2") == ("sst2",)
    assert cpu.shots_or("few", "many") == (64, 512)
    assert (cpu.seeds_at(64), cpu.seeds_at(512)) == ((0, 1), (0,))
    assert cpu.seeds_at(512, least=3) == (0, 1, 2)
    asked = profile("cpu", base="b", tasks=("qnli",), shots=(16,), seeds=(7,), readout=None)
    assert (asked.tasks_or("sst2"), asked.shots_or("many"), asked.seeds_at(16, least=3)) == (("qnli",), (16,), (7,))
    assert asked.readout == "auto"


def test_samples_are_one_for_each_seed_and_shots_grow_fourfold() -> None:
    cpu = profile("cpu", base="b")
    assert [(sample.seed, sample.shots) for sample in draws(cpu, "sst2", 64)] == [(0, 64), (1, 64)]
    assert ladder(cpu) == (64, 256, 512)
    assert ladder(profile("cpu", base="b", shots=(8, 9))) == (8, 9)


def test_a_graft_of_a_ten_thousandth_starts_from_a_tenth_of_that() -> None:
    assert sized(1e-4) == {"density": 1e-4, "start": 1e-5}
    assert sized(1e-3) == {"density": 1e-3, "start": 1e-3}


def test_a_re_trained_region_is_that_of_the_same_samples_graft(studio: Path) -> None:
    sample = Sample(profile("cpu", base=str(studio / "bert")), "sst2", 64, 0)
    graft = sample.graft(**sized(1e-4))
    assert sample.tuned(inside=graft.region).arguments["inside"] == graft.region
    assert retrained(sample)["tuned"].arguments["inside"] == graft.region


@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_tells_itself_in_a_line(name: str) -> None:
    words = profile(name, base="b").words
    assert words.startswith(f"Profile {name}: ")
    assert words.count("\n") == 0


def test_what_is_unknown_is_refused() -> None:
    with pytest.raises(InputError, match="unknown profile 'gpu'"):
        profile("gpu", base="b")
    with pytest.raises(InputError, match="has no optimizer 'adam'; did you mean 'adamw'"):
        profile("cpu", base="b").plan("adam", "sst2", 64, seed=0)


def test_two_tasks_of_one_name_are_refused(studio: Path) -> None:
    films = str(studio / "films.toml")
    with pytest.raises(InputError, match="two tasks are called 'films'"):
        profile("cpu", base="b", tasks=(films, films)).tasks_or()
