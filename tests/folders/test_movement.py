"""The topmost movements are exact: compared with sorting everything, in one pass and in two, whatever the blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skillgraft.errors import InputError
from skillgraft.folders import checkpoint, movement
from skillgraft.folders.checkpoint import MemoryTensors
from skillgraft.folders.movement import count_of, most_moved
from skillgraft.values.numbers import BFLOAT16
from skillgraft.values.region import Scope

FORMATS = [np.dtype(np.float32), BFLOAT16, np.dtype(np.float16), np.dtype(np.float64)]
# Few values make many ties; the last ones sit at the edges of the formats.
VALUES = [0.0, -0.0, 0.5, 1.0, 1.0078125, -1.0, 2.0, 1e-7, 6e-8, 3e4, -3e4]
WIDE = [*VALUES, 1e-45, 1e-40, 1e-30, 1e37]
DOUBLE = [*WIDE, 1e-60, 5e-324, 1e-320, 1 + 2**-40, 1 - 2**-30, 1e300]
few = settings(max_examples=40, deadline=None)


@pytest.fixture(params=["one pass", "two passes"])
def passes(request, monkeypatch):
    if request.param == "two passes":
        monkeypatch.setattr(movement, "_ONE_PASS_BUDGET", 0)


@pytest.fixture(params=[1, 3, 128 * 1024], ids="block {}".format)
def blocks(request, monkeypatch):
    monkeypatch.setattr(movement, "_BLOCK", request.param)
    monkeypatch.setattr(checkpoint, "CHUNK_BYTES", 40 if request.param < 4 else 64 * 1024 * 1024)


def tensors(data: st.DataObject, dtype: np.dtype, sizes: list[int]) -> MemoryTensors:
    values = {4: WIDE, 2: VALUES, 8: DOUBLE}[dtype.itemsize]
    row = {
        f"t{place}": data.draw(st.lists(st.sampled_from(values), min_size=n, max_size=n))
        for place, n in enumerate(sizes)
    }
    return MemoryTensors({name: np.array(numbers, np.float64).astype(dtype) for name, numbers in row.items()})


def brute_force(base: MemoryTensors, tuned: MemoryTensors, count: int) -> set[tuple[str, int]]:
    """Sort every entry by falling |difference| in float64, then name, then index."""
    ranked = []
    for name in sorted(base.arrays):
        differences = np.abs(tuned.arrays[name].astype(np.float64) - base.arrays[name].astype(np.float64))
        ranked += [(-float(difference), name, index) for index, difference in enumerate(differences)]
    return {(name, index) for _, name, index in sorted(ranked)[:count]}


@pytest.mark.usefixtures("passes", "blocks")
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@given(data=st.data())
@settings(few, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_topmost_equals_sorting_everything(dtype, data):
    sizes = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(sum))
    base, tuned = tensors(data, dtype, sizes), tensors(data, dtype, sizes)
    count = data.draw(st.integers(1, sum(sizes)))
    region = most_moved(base, tuned, Scope.of("all", base.shapes), count)
    assert len(region) == count
    assert {(name, int(i)) for name, at in region.sites.items() for i in at} == brute_force(base, tuned, count)


def test_threshold_rises_across_many_blocks(monkeypatch):
    """So many candidates that the collection shrinks again and again, most of them tied."""
    monkeypatch.setattr(movement, "_BLOCK", 16)
    random = np.random.default_rng(0)
    base = MemoryTensors({name: np.zeros(5000, np.float32) for name in "ab"})
    tuned = MemoryTensors({name: random.integers(0, 5, 5000).astype(np.float32) for name in "ab"})
    for count in (1, 7, 100, 1999, 9999):
        region = most_moved(base, tuned, Scope.of("all", base.shapes), count)
        assert {(n, int(i)) for n, at in region.sites.items() for i in at} == brute_force(base, tuned, count)


def test_formats_may_differ_between_tensors(monkeypatch):
    monkeypatch.setattr(movement, "_BLOCK", 2)
    base = {"a": np.zeros(6, np.float64), "b": np.zeros(6, np.float32), "c": np.zeros(6, BFLOAT16)}
    tuned = {
        "a": np.array([1e300, 1e-300, 0, 1e-46, 2, 0]),
        "b": np.array([0, 1e-45, 3e38, 0, 2, 1], np.float32),
        "c": np.array([0, 0, 2, 1, 1e-38, 0], BFLOAT16),
    }
    ours, theirs = MemoryTensors(base), MemoryTensors(tuned)
    for budget in (0, 10**6):
        monkeypatch.setattr(movement, "_ONE_PASS_BUDGET", budget)
        for count in range(1, 19):
            region = most_moved(ours, theirs, Scope.of("all", ours.shapes), count)
            assert {(n, int(i)) for n, at in region.sites.items() for i in at} == brute_force(ours, theirs, count)


def test_progress_ends_at_the_whole_scope():
    base = MemoryTensors({"a": np.zeros(3, np.float32), "b": np.zeros(5, np.float32)})
    seen: list[tuple[int, int]] = []
    most_moved(base, base, Scope.of("all", base.shapes), 1, progress=lambda done, total: seen.append((done, total)))
    assert seen in ([(3, 8), (8, 8)], [(5, 8), (8, 8)])  # whichever thread is first


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.usefixtures("passes")
def test_numbers_that_are_not_finite_are_refused(dtype, wrong):
    base = MemoryTensors({"a": np.zeros(3, dtype)})
    tuned = MemoryTensors({"a": np.array([0, wrong, 1], dtype)})
    with pytest.raises(InputError, match="a: base or tuned holds NaN or infinite numbers"):
        most_moved(base, tuned, Scope.of("all", base.shapes), 1)


def test_difference_that_overflows_is_refused():
    base, tuned = (
        MemoryTensors({"a": np.array([3e38], np.float32)}),
        MemoryTensors({"a": np.array([-3e38], np.float32)}),
    )
    with pytest.raises(InputError, match="their difference overflows"):
        most_moved(base, tuned, Scope.of("all", base.shapes), 1)


SCOPE = Scope.of("layers", {"w": (10, 100)})


@pytest.mark.parametrize(
    ("budget", "count"),
    [
        ({"entries": 1}, 1),
        ({"density": 1.0}, 1000),
        ({"density": 1}, 1000),
        ({"entries": 1000}, 1000),
        ({"entries": 2.0}, 2),
        ({"density": 0.01}, 10),
        ({"density": 0.0125}, 12),
        ({"density": 1e-9}, 1),
    ],
    ids=str,
)
def test_a_share_and_a_count_are_two_arguments(budget, count):
    assert count_of(SCOPE, **budget) == count


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        ({"density": 0}, "above 0 and at most 1; found 0"),
        ({"density": -3}, "found -3"),
        ({"density": float("nan")}, "found nan"),
        ({"density": float("inf")}, "found inf"),
        ({"density": 2.0}, r"found 2.0: for a count use entries=2 \(--entries\)"),
        ({"entries": 0}, "a whole number of 1 or more, found 0; for a share use density"),
        ({"entries": -3}, "found -3"),
        ({"entries": float("nan")}, "found nan"),
        ({"entries": float("inf")}, "found inf"),
        ({"entries": 1.5}, "a whole number of 1 or more, found 1.5"),
        ({"entries": 1001}, "1,001 entries are more than the 1,000 of the scope 'layers'"),
        ({"density": 0.5, "entries": 3}, "a density or a number of entries, not both; found 0.5 and 3"),
        ({}, "how many entries"),
    ],
    ids=str,
)
def test_impossible_budgets_are_refused(budget, expected):
    with pytest.raises(InputError, match=expected):
        count_of(SCOPE, **budget)
