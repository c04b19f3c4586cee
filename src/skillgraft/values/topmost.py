"""The largest of many numbers without sorting them: by a partition, or by counting bits where they are never all in memory.

    ones = np.array([3, 1, 2, 2], np.float32).view(np.uint32)
    edge_of(lambda: [ones], 2)        # the bits of 2.0, of which 1 is among the two largest

The bits of float32 numbers that are not negative sort as the numbers do. Of equal numbers the first are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint32]
Tally = npt.NDArray[np.int64]
BUCKETS = 1 << 16
INFINITE = 0x7F80  # the leading bits of infinity; those of NaN are higher
_HALF, _LOW = np.uint32(16), np.uint32(BUCKETS - 1)


@dataclass(frozen=True)
class TopEdge:
    """Where the topmost numbers end: the bits of the least, how many of its equals are taken, the leading bits of the largest."""

    bits: np.uint32
    ties: int
    peak: int


def edge_of(
    patterns: Callable[[], Iterable[Bits]], count: int, summed: Callable[[Tally], Tally] = lambda t: t
) -> TopEdge:
    """The edge of the `count` largest. `patterns` gives the numbers' bits, part by part, each time that it is called.

    They are counted by their leading half, and those of the edge's bucket by the other. `summed` adds up what several processes
    have counted.
    """
    tally = summed(_tally(bits >> _HALF for bits in patterns()))
    leading, above = bucket_of(tally, count)
    rests = summed(_tally(bits[bits >> _HALF == leading] & _LOW for bits in patterns()))
    rest, above_rest = bucket_of(rests, count - above)
    return TopEdge(np.uint32(leading << 16 | rest), count - above - above_rest, int(np.flatnonzero(tally)[-1]))


def bucket_of(tally: Tally, count: int) -> tuple[int, int]:
    """The bucket that holds the `count`-th largest of what was counted, and how many lie in buckets above it."""
    reached = np.cumsum(tally[::-1])[::-1]
    bucket = int(np.flatnonzero(reached >= count)[-1])
    return bucket, int(reached[bucket] - tally[bucket])


def above_and_tied(
    numbers: npt.NDArray[np.floating[Any]], count: int
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.intp]]:
    """Which numbers are above the count-th largest, and where those are that equal it."""
    edge = np.partition(numbers, len(numbers) - count)[len(numbers) - count]
    return numbers > edge, np.flatnonzero(numbers == edge)


def topmost(numbers: npt.NDArray[np.floating[Any]], count: int) -> npt.NDArray[np.bool_]:
    """Which `count` are the largest."""
    kept, tied = above_and_tied(numbers, count)
    kept[tied[: count - int(kept.sum())]] = True
    return kept


def _tally(buckets: Iterable[Bits]) -> Tally:
    tally = np.zeros(BUCKETS, np.int64)
    for each in buckets:
        tally += np.bincount(each, minlength=BUCKETS)
    return tally
