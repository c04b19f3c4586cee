"""Regions from the base: by size and at random against brute force, and the one entry to all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillgraft import extract
from skillgraft.checkpoint import Checkpoint, MemoryTensors
from skillgraft.errors import InputError
from skillgraft.localize.from_base import BASE_METHODS, localize_base
from skillgraft.localize.lota import lota, lota_region
from skillgraft.localize.p2_ways import p2_ways
from skillgraft.localize.without_data import highest_magnitude, lowest_magnitude, random_region
from skillgraft.localize.workplace import Rows
from skillgraft.training.finetune import finetune
from tests.folders import same_weights
from tests.readouts import making
from tests.training.test_finetune import QUICK


def tensors(numbers: list[float], dtype: Any = np.float32) -> MemoryTensors:
    half = len(numbers) // 2
    arrays = {"b": np.array(numbers[half:], dtype), "a": np.array(numbers[:half], dtype)}
    return MemoryTensors(arrays)


def chosen(region: Any, base: MemoryTensors) -> list[int]:
    """Places in the joined row a, b."""
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


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    making.sentence_encoder(folder / "encoder")
    making.write_films(folder)
    return folder


@pytest.mark.parametrize("name", list(BASE_METHODS))
def test_every_method_gives_as_many_entries_as_asked_for(place: Path, name: str) -> None:
    data = Rows(rows=12, seed=3)
    sensed, fingerprint, info = localize_base(place / "encoder", place / "films.toml", name=name, data=data)
    assert len(sensed.region) == round(0.1 * sensed.region.scope.size)
    assert fingerprint == Checkpoint.open(place / "encoder").fingerprint
    assert info["method"] == name
    assert info["recipe"]["density"] == 0.1
    assert ("task" in info) == BASE_METHODS[name].reads_rows
    counted, _, _ = localize_base(place / "encoder", place / "films.toml", name=name, data=data, density=50)
    assert len(counted.region) == 50


def test_no_task_is_needed_where_no_rows_are_read(place: Path) -> None:
    by_hand = highest_magnitude(Checkpoint.open(place / "encoder"), density=0.2).region
    assert localize_base(place / "encoder", name="highest-magnitude", density=0.2)[0].region == by_hand
    first, second = (localize_base(place / "encoder", name="random-region", data=Rows(seed=s))[0] for s in (0, 1))
    assert first.region != second.region
    with pytest.raises(InputError, match="name the task"):
        localize_base(place / "encoder", name="lowest-fisher")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "highest-fischer"}, "did you mean 'highest-fisher'"),
        ({"name": "random-region", "rounds": 2}, "'random-region' takes no 'rounds'.*Known: scope, density, seed"),
        ({"density": 0.0}, r"a density lies in \(0, 1\], found 0.0"),
        ({"density": 1e9}, "more than the"),
    ],
)
def test_wrong_questions_are_refused(place: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        localize_base(place / "encoder", place / "films.toml", **settings)


def test_lota_trains_where_the_first_fine_tune_moved_most(place: Path, tmp_path: Path) -> None:
    base, task = place / "encoder", place / "films.toml"
    finetune(base, [task], tmp_path / "first", plan=QUICK)
    region = lota_region(base, tmp_path / "first", density=0.1)
    moved = extract(base, tmp_path / "first")
    inside = np.concatenate([np.abs((moved & region).delta(name)) for name in (moved & region).region])
    outside = moved.outside(region)
    rest = np.concatenate([np.abs(outside.delta(n)) for n in outside.region if n in region.scope.shapes])
    assert inside.min() >= rest.max()
    lota(base, tmp_path / "first", [task], tmp_path / "second", plan=QUICK)
    finetune(base, [task], tmp_path / "by hand", plan=QUICK, only=region)
    assert same_weights(tmp_path / "second", tmp_path / "by hand")
    assert len(extract(base, tmp_path / "second").region - region) == 0


def test_p2s_methods_share_a_plan_and_a_density(place: Path, tmp_path: Path) -> None:
    base, task = place / "encoder", place / "films.toml"
    finetune(base, [task], tmp_path / "first", plan=QUICK.with_changes(steps=3))
    ways = p2_ways(base, task, plan=QUICK, first=tmp_path / "first", data=Rows(rows=8, seed=4))
    assert list(ways) == ["full", "linear", "lora", "random", "talos", "lota"]
    assert [way.plan.method for way in ways.values()] == ["full", "linear", "lora", "full", "full", "full"]
    inside = [way.only for way in ways.values() if way.only is not None]
    assert [len(region) for region in inside] == [round(0.1 * inside[0].scope.size)] * 3
    assert ways["lota"].only == lota_region(base, tmp_path / "first")
    assert "lota" not in p2_ways(base, task, plan=QUICK, data=Rows(rows=8))
