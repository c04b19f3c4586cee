"""Regions from the base: by size and at random against brute force, and the one entry to all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillgraft import Data, Runtime, choose_region, extract, load_region, save_region
from skillgraft.errors import InputError
from skillgraft.folders.checkpoint import Checkpoint, MemoryTensors
from skillgraft.regions.choose import (
    BASE_METHODS,
    choose,
    highest_magnitude,
    lota,
    lota_region,
    lowest_magnitude,
    p2_methods,
    random_region,
)
from skillgraft.training.finetune import finetune
from tests.model_folders import same_weights
from tests.regions.films import QUICK, Films


def tensors(numbers: list[float], dtype: Any = np.float32) -> MemoryTensors:
    half = len(numbers) // 2
    arrays = {"b": np.array(numbers[half:], dtype), "a": np.array(numbers[:half], dtype)}
    return MemoryTensors(arrays)


def chosen(region: Any, base: MemoryTensors) -> list[int]:
    """Indices in the joined row a, b."""
    masks = [region.mask(name).reshape(-1) if name in region.scope.shapes else [] for name in sorted(base.arrays)]
    return np.flatnonzero(np.concatenate(masks)).tolist()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_magnitudes_by_hand(dtype: Any) -> None:
    base = tensors([3.0, -4.0, 0.5, 0.0, -0.25, 4.0, 1.0, -2.0], dtype)
    assert chosen(highest_magnitude(base, scope="all", density=0.25).region, base) == [1, 5]
    assert chosen(lowest_magnitude(base, scope="all", density=0.25).region, base) == [3, 4]


@given(st.lists(st.sampled_from([-2.0, -1.0, 0.0, 0.5, 1.0, 3.0]), min_size=4, max_size=30), st.floats(0.05, 1.0))
def test_magnitudes_are_a_stable_sort(numbers: list[float], density: float) -> None:
    base = tensors(numbers)
    count = max(1, round(density * len(numbers)))
    sizes = np.abs(np.array(numbers, np.float32))
    for method, order in ((highest_magnitude, -sizes), (lowest_magnitude, sizes)):
        expected = sorted(np.argsort(order, kind="stable")[:count].tolist())
        assert chosen(method(base, scope="all", density=density).region, base) == expected


def test_random_regions_are_the_seeds_own_and_spread_evenly() -> None:
    base = MemoryTensors({"a": np.zeros((100, 100), np.float32), "b": np.zeros(10_000, np.float32)})
    first, again, other = (random_region(base, scope="all", density=0.1, seed=seed).region for seed in (1, 1, 2))
    assert first == again
    assert len(first) == 2000
    assert first.jaccard(other) == pytest.approx(0.1 / 1.9, abs=0.02)
    assert len(first.sites["a"]) == pytest.approx(1000, abs=100)


@pytest.mark.parametrize("method", list(BASE_METHODS))
def test_every_method_gives_as_many_entries_as_asked_for(films: Films, method: str, tmp_path: Path) -> None:
    data = Data(train_rows=12, seed=3)
    found = choose(films.base, task=films.task, method=method, data=data, runtime=Runtime(command="made by hand"))
    assert len(found.region) == round(0.1 * found.region.scope.size)
    assert found.base_fingerprint == Checkpoint.open(films.base).fingerprint
    assert found.info["method"] == method
    assert found.info["recipe"]["density"] == 0.1
    assert found.info["command"] == "made by hand"
    assert ("task" in found.info) == BASE_METHODS[method].reads_rows
    counted = choose_region(films.base, task=films.task, method=method, data=data, entries=50)
    assert len(counted) == 50
    save_region(found.region, tmp_path / "r", base_fingerprint=found.base_fingerprint, info=found.info)
    assert (
        load_region(tmp_path / "r")
        == found.region
        == choose_region(films.base, task=films.task, method=method, data=data, density=0.1)
    )


@pytest.mark.parametrize("entries", [1, 2, 3, 7, 333, 4095])
def test_a_count_is_taken_exactly(films: Films, entries: int) -> None:
    assert len(choose_region(films.base, method="random-region", entries=entries)) == entries


def test_no_task_is_needed_where_no_rows_are_read(films: Films) -> None:
    by_hand = highest_magnitude(Checkpoint.open(films.base), density=0.2).region
    assert choose_region(films.base, method="highest-magnitude", density=0.2) == by_hand
    first, second = (choose_region(films.base, method="random-region", data=Data(seed=seed)) for seed in (0, 1))
    assert first != second
    with pytest.raises(InputError, match="name the task"):
        choose(films.base, method="lowest-fisher")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "highest-fischer"}, "did you mean 'highest-fisher'"),
        ({"method": "random-region", "rounds": 2}, "'random-region' takes no 'rounds'.*Known: scope, density, seed"),
        ({"density": 0.0}, "a density is a share of the scope, above 0 and at most 1; found 0.0"),
        ({"entries": 10**9}, "more than the"),
    ],
)
def test_wrong_questions_are_refused(films: Films, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        choose(films.base, task=films.task, **settings)


def test_lota_trains_where_the_first_fine_tune_moved_most(films: Films, tmp_path: Path) -> None:
    finetune(films.base, [films.task], out=tmp_path / "first", plan=QUICK)
    region = lota_region(films.base, tmp_path / "first", density=0.1)
    moved = extract(films.base, tmp_path / "first")
    inside = np.concatenate([np.abs((moved & region).delta(name)) for name in (moved & region).region])
    outside = moved.outside(region)
    rest = np.concatenate([np.abs(outside.delta(n)) for n in outside.region if n in region.scope.shapes])
    assert inside.min() >= rest.max()
    lota(films.base, tmp_path / "first", [films.task], out=tmp_path / "second", plan=QUICK)
    finetune(films.base, [films.task], out=tmp_path / "by hand", plan=QUICK, inside=region)
    assert same_weights(tmp_path / "second", tmp_path / "by hand")
    assert len(extract(films.base, tmp_path / "second").region - region) == 0


def test_p2s_methods_share_a_plan_and_a_density(films: Films, tmp_path: Path) -> None:
    finetune(films.base, [films.task], out=tmp_path / "first", plan=QUICK.with_changes(steps=3))
    asked: dict[str, Any] = {"plan": QUICK, "data": Data(train_rows=8, seed=4)}
    methods = p2_methods(films.base, films.task, first=tmp_path / "first", **asked)
    assert list(methods) == ["full", "linear", "lora", "random", "talos", "lota"]
    assert [each.plan.method for each in methods.values()] == ["full", "linear", "lora", "full", "full", "full"]
    inside = [each.inside for each in methods.values() if each.inside is not None]
    assert [len(region) for region in inside] == [round(0.1 * inside[0].scope.size)] * 3
    assert methods["lota"].inside == lota_region(films.base, tmp_path / "first")
    assert "lota" not in p2_methods(films.base, films.task, **asked)
