"""The entries that moved the most between two sets of tensors: exact, over all tensors together, out of core.

Movement is |tuned − base|, taken in float64; ties go to the smaller name, then the smaller index. One pass with a rising
threshold is enough for small budgets. Large ones take a first pass that counts movements by their leading bits, so that
the second starts with nearly the right threshold: memory follows the budget, never the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from skillgraft.checkpoint import Tensors, chunks
from skillgraft.dtypes import Array, widen
from skillgraft.errors import InputError
from skillgraft.region import Region, Scope

Progress = Callable[[int, int], None]
Floats = npt.NDArray[np.float64]
# Small enough for two inputs and the difference to stay in a core's cache, large enough to drown numpy's call overhead.
_BLOCK = 128 * 1024
_ONE_PASS_BUDGET = 4_000_000


def silent(done: int, total: int) -> None:
    """The progress of those who do not want to know."""


def count_of(budget: float, scope: Scope) -> int:
    """A budget as a number of entries: a float up to 1.0 is a density of the scope (1.0 all of it), others are counts.

    At least one entry. The int 1 is one entry.
    """
    if not math.isfinite(budget) or budget <= 0:
        raise InputError(f"a budget is a density up to 1.0 or a count of entries, found {budget}")
    if isinstance(budget, float) and budget <= 1:
        return max(1, round(budget * scope.size))
    if budget != int(budget):
        raise InputError(f"a budget above 1 is a count of entries and must be whole, found {budget}")
    count = int(budget)
    if count > scope.size:
        raise InputError(f"a budget of {count:,} entries is more than the {scope.size:,} of the scope {scope.label!r}")
    return count


def most_moved(base: Tensors, tuned: Tensors, scope: Scope, budget: float, *, progress: Progress = silent) -> Region:
    """The region of exactly `budget` entries of the scope with the largest |tuned − base|."""
    count = count_of(budget, scope)
    threshold = _first_threshold(base, tuned, scope, count) if count > _ONE_PASS_BUDGET else 0.0
    names = sorted(scope.shapes)
    kept = _Topmost(count, threshold)
    done, size = 0, scope.size
    for number, name in enumerate(names):
        try:
            for low, before, after in _blocks(base, tuned, name):
                kept.offer(number, low, before, after)
        except InputError as error:
            raise error.within(name) from None
        done += math.prod(scope.shapes[name])
        progress(done, size)
    numbers, indices = kept.result()
    return Region(scope, {name: np.sort(indices[numbers == number]) for number, name in enumerate(names)})


def _blocks(base: Tensors, tuned: Tensors, name: str) -> Iterator[tuple[int, Array, Array]]:
    for low, high in chunks(math.prod(base.shapes[name]), base.dtypes[name].itemsize):
        before, after = base.flat(name, low, high), tuned.flat(name, low, high)
        for place in range(0, high - low, _BLOCK):
            yield low + place, before[place : place + _BLOCK], after[place : place + _BLOCK]


class _Topmost:
    """Collects candidates and, whenever there are too many, keeps the topmost and raises the threshold.

    float32 rounding keeps order (x ≥ y implies round(x) ≥ round(y)), so comparing rounded movements with the rounded
    threshold never loses a candidate; the exact float64 movements of the few survivors decide.
    """

    def __init__(self, count: int, threshold: float) -> None:
        self.count, self.threshold, self.full = count, threshold, False
        self.movements: list[Floats] = []
        self.numbers: list[npt.NDArray[np.int32]] = []
        self.indices: list[npt.NDArray[np.int64]] = []
        self.held = 0
        self.room = 2 * count + 4 * _BLOCK

    def offer(self, number: int, low: int, before: Array, after: Array) -> None:
        movement = _movement(before, after)
        peak = movement.max()  # a NaN comes through
        if not np.isfinite(peak):
            raise InputError("base or tuned holds NaN or infinite numbers here, or their difference overflows")
        edge = self.edge(movement.dtype)
        if peak < edge:
            return
        at = np.flatnonzero(movement >= edge)
        self.movements.append(np.abs(after[at].astype(np.float64) - before[at].astype(np.float64)))
        self.numbers.append(np.full(len(at), number, np.int32))
        self.indices.append(low + at)
        self.held += len(at)
        if self.held > self.room:
            self.shrink()

    def edge(self, dtype: np.dtype[Any]) -> np.floating[Any]:
        """The least movement that may still win. With enough held, entries that did not move no longer can."""
        least = np.finfo(dtype).smallest_subnormal if self.full else dtype.type(0)
        with np.errstate(over="ignore"):
            edge: np.floating[Any] = max(least, dtype.type(self.threshold))
        return edge

    def shrink(self) -> None:
        """Keep the topmost `count` of what is held."""
        movements = np.concatenate(self.movements)
        numbers, indices = np.concatenate(self.numbers), np.concatenate(self.indices)
        if len(movements) > self.count:
            kept = _topmost(movements, self.count)
            movements, numbers, indices = movements[kept], numbers[kept], indices[kept]
            self.threshold, self.full = float(movements.min()), True
        self.movements, self.numbers, self.indices, self.held = [movements], [numbers], [indices], len(movements)

    def result(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        self.shrink()
        return self.numbers[0], self.indices[0]


def _movement(before: Array, after: Array) -> npt.NDArray[np.floating[Any]]:
    """|after − before|: exact for float64 inputs' own precision, rounded once to float32 for all others."""
    wide = (after, before) if before.dtype == np.float64 else (widen(after), widen(before))
    with np.errstate(over="ignore", invalid="ignore"):  # the caller refuses what is not finite
        difference: npt.NDArray[np.floating[Any]] = np.subtract(*wide)
    np.abs(difference, out=difference)
    return difference


def _topmost(movements: Floats, count: int) -> npt.NDArray[np.bool_]:
    """Which `count` to keep. Candidates are in name and index order, so of equal ones the first stay."""
    edge = np.partition(movements, len(movements) - count)[len(movements) - count]
    kept: npt.NDArray[np.bool_] = movements > edge
    ties = np.flatnonzero(movements == edge)
    kept[ties[: count - int(kept.sum())]] = True
    return kept


def _first_threshold(base: Tensors, tuned: Tensors, scope: Scope, count: int) -> float:
    """A movement that at least `count` entries reach, close below the right one: its leading 16 bits are counted."""
    tally = np.zeros(1 << 16, np.int64)
    for name in scope.shapes:
        for _, before, after in _blocks(base, tuned, name):
            with np.errstate(over="ignore", under="ignore"):
                pattern = _movement(before, after).astype(np.float32, copy=False).view(np.uint32)
            tally += np.bincount(pattern >> np.uint32(16), minlength=1 << 16)
    reached = np.cumsum(tally[::-1])[::-1] >= count
    leading = int(np.flatnonzero(reached)[-1])
    # float64 movements were rounded, perhaps up to this bound: the number below it is one that they surely reach.
    bound = np.array([leading << 16], np.uint32).view(np.float32)[0]
    return float(np.nextafter(bound, np.float32(0)))
