"""The entries that moved the most between two sets of tensors: exact, over all tensors together, out of core.

Movement is |tuned − base|, taken in float64; ties go to the smaller name, then the smaller index. One pass with a rising
threshold is enough for small budgets. Large ones take a first pass that counts movements by their leading bits, so that
the second starts with nearly the right threshold: memory follows the budget, never the model.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from skillgraft.errors import InputError
from skillgraft.folders.checkpoint import Tensors, chunks
from skillgraft.values.numbers import Array, widen
from skillgraft.values.region import Region, Scope
from skillgraft.values.threads import THREADS, SharedProgress, ahead, together
from skillgraft.values.topmost import BUCKETS as BUCKETS
from skillgraft.values.topmost import bucket_of, topmost

Progress = Callable[[int, int], None]
Floats = npt.NDArray[np.float64]
# Small enough for two inputs and the difference to stay in a core's cache, large enough to drown numpy's call overhead.
_BLOCK = 128 * 1024
_ONE_PASS_BUDGET = 4_000_000


def silent(done: int, total: int) -> None:
    """A progress callback that shows nothing."""


def check_budget(density: float | None, entries: int | None) -> None:
    """A share and a count are never one argument: at most one of them is given, and each is of its own kind."""
    if density is not None and entries is not None:
        raise InputError(f"give a density or a number of entries, not both; found {density:g} and {entries}")
    if density is not None and not 0 < density <= 1:
        hint = f": for a count use entries={density:.0f} (--entries)" if density > 1 else ""
        raise InputError(f"a density is a share of the scope, above 0 and at most 1; found {density}{hint}")
    if entries is not None and (not entries >= 1 or entries % 1 != 0):
        raise InputError(
            f"entries is a whole number of 1 or more, found {entries}; for a share use density (--density)"
        )


def count_of(scope: Scope, *, density: float | None = None, entries: int | None = None) -> int:
    """A budget as a number of entries of the scope: a share of it (at least one entry), or the count itself."""
    check_budget(density, entries)
    if density is not None:
        return max(1, round(density * scope.size))
    if entries is None:
        raise InputError("how many entries? give a density or a number of entries")
    if entries > scope.size:
        raise InputError(f"{entries:,} entries are more than the {scope.size:,} of the scope {scope.label!r}")
    return int(entries)


def most_moved(base: Tensors, tuned: Tensors, scope: Scope, count: int, *, progress: Progress = silent) -> Region:
    """The region of exactly `count` entries of the scope with the largest |tuned − base|."""
    count = count_of(scope, entries=count)
    threshold = _first_threshold(base, tuned, scope, count) if count > _ONE_PASS_BUDGET else 0.0
    names = sorted(scope.shapes)
    stretches = deque(
        (number, low, high)
        for number, name in enumerate(names)
        for low, high in chunks(math.prod(scope.shapes[name]), base.dtypes[name].itemsize)
    )
    tally = SharedProgress(progress, scope.size)

    def collect(kept: _Topmost) -> _Topmost:
        """Whichever thread is free takes the next stretch, so each of them sees its own in order."""
        while stretches:
            with suppress(IndexError):  # the other one took the last
                number, low, high = stretches.popleft()
                try:
                    for place, before, after in _blocks(base, tuned, names[number], low, high):
                        kept.offer(number, place, before, after)
                except InputError as error:
                    stretches.clear()
                    raise error.within(names[number]) from None
                tally.add(high - low)
        kept.shrink()
        return kept

    found = together(collect, [_Topmost(count, threshold) for _ in range(THREADS)])
    numbers, indices = _Topmost.of(count, found).result()
    return Region(scope, {name: np.sort(indices[numbers == number]) for number, name in enumerate(names)})


def blocks(base: Tensors, tuned: Tensors, name: str) -> Iterator[tuple[int, Array, Array]]:
    """(first index, base's numbers, tuned's numbers) of each stretch of a tensor, small enough for a core's cache."""
    for low, high in chunks(math.prod(base.shapes[name]), base.dtypes[name].itemsize):
        yield from _blocks(base, tuned, name, low, high)


def _blocks(base: Tensors, tuned: Tensors, name: str, low: int, high: int) -> Iterator[tuple[int, Array, Array]]:
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
        self.movements: list[Floats] = [np.empty(0)]
        self.numbers: list[npt.NDArray[np.int32]] = [np.empty(0, np.int32)]
        self.indices: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
        self.held = 0
        self.room = 2 * count + 4 * _BLOCK

    @classmethod
    def of(cls, count: int, parts: Sequence[_Topmost]) -> _Topmost:
        """What several collections of different entries hold, in name and index order."""
        whole = cls(count, 0.0)
        numbers = np.concatenate([each for part in parts for each in part.numbers])
        indices = np.concatenate([each for part in parts for each in part.indices])
        movements = np.concatenate([each for part in parts for each in part.movements])
        order = np.lexsort((indices, numbers))
        whole.numbers, whole.indices, whole.movements = [numbers[order]], [indices[order]], [movements[order]]
        return whole

    def offer(self, number: int, low: int, before: Array, after: Array) -> None:
        movement = movement_of(before, after)
        peak = check_finite(movement)
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
            kept = topmost(movements, self.count)
            movements, numbers, indices = movements[kept], numbers[kept], indices[kept]
            self.threshold, self.full = float(movements.min()), True
        self.movements, self.numbers, self.indices, self.held = [movements], [numbers], [indices], len(movements)

    def result(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        self.shrink()
        return self.numbers[0], self.indices[0]


def movement_of(before: Array, after: Array) -> npt.NDArray[np.floating[Any]]:
    """|after − before|: exact for float64 inputs' own precision, rounded once to float32 for all others."""
    wide = (after, before) if before.dtype == np.float64 else (widen(after), widen(before))
    with np.errstate(over="ignore", invalid="ignore"):  # `check_finite` refuses what is not
        difference: npt.NDArray[np.floating[Any]] = np.subtract(*wide)
    np.abs(difference, out=difference)
    return difference


def check_finite(movement: npt.NDArray[np.floating[Any]]) -> np.floating[Any]:
    """The largest movement; raise where one is not a finite number."""
    peak: np.floating[Any] = movement.max()  # a NaN comes through
    if not np.isfinite(peak):
        raise InputError("base or tuned holds NaN or infinite numbers here, or their difference overflows")
    return peak


def leading_bits(movement: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.uint32]:
    """The leading 16 bits of each movement as float32, which sort as the movements do: one of `BUCKETS` values."""
    with np.errstate(over="ignore", under="ignore"):
        pattern = movement.astype(np.float32, copy=False).view(np.uint32)
    found: npt.NDArray[np.uint32] = pattern >> np.uint32(16)
    return found


def _first_threshold(base: Tensors, tuned: Tensors, scope: Scope, count: int) -> float:
    """A movement that at least `count` entries reach, close below the right one: its leading 16 bits are counted."""

    def counted(name: str) -> npt.NDArray[np.int64]:
        tally = np.zeros(BUCKETS, np.int64)
        for _, before, after in blocks(base, tuned, name):
            tally += np.bincount(leading_bits(movement_of(before, after)), minlength=BUCKETS)
        return tally

    found = np.zeros(BUCKETS, np.int64)
    for tally in ahead(counted, scope.shapes):
        found += tally
    leading, _ = bucket_of(found, count)
    # float64 movements were rounded, perhaps up to this bound: the number below it is one that they surely reach.
    bound = np.array([leading << 16], np.uint32).view(np.float32)[0]
    return float(np.nextafter(bound, np.float32(0)))
