"""Several grafts as one, window by window: their sites lined up, their deltas side by side, a rule for each column.

summed([g, h])           what `total` gives, as a stream
joined([g, h], join)     any function of a column of deltas
chosen([g, h], owner)    each site as one of them has it

Absent sites count as 0. Refused: grafts that disagree about the base's number at a site that they share, or its format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import numpy.typing as npt

from skillgraft.errors import WrongBase, listed
from skillgraft.values.numbers import Array, bits, round_once
from skillgraft.values.region import Indices, Region, Scope
from skillgraft.values.stream import (
    EVERY,
    Floats,
    GraftStream,
    Mask,
    Stretch,
    Where,
    aligned,
    in_order,
    joined_names,
    positions,
    where_of,
)
from skillgraft.values.threads import together

# Deltas of one window, a row for each graft, -0.0 where it has no site → the joined delta, and which entries it keeps.
Join = Callable[["Deltas"], tuple[Floats, Mask | None]]

Positions = npt.NDArray[np.intp]
_BLOCK = 1 << 13  # columns of deltas that are joined at a time: they stay in a core's cache
_FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True)
class Deltas:
    """Some columns of several grafts' deltas: `rows` has a row for each graft, `held` tells which of them have the site."""

    rows: Floats
    held: Mask


def summed(grafts: Sequence[GraftStream]) -> GraftStream:
    """The sum, where a missing site counts as 0; grafts that share no entry, exact and of one scale, stay exact."""
    if len(grafts) == 1:
        return grafts[0]
    together = added(grafts)
    return side_by_side(grafts) if len(together) == sum(map(len, grafts)) else together


def added(grafts: Sequence[GraftStream]) -> GraftStream:
    """The sum of the deltas, always in the arithmetic form."""
    return joined(grafts, _sum)


def averaged(grafts: Sequence[GraftStream]) -> GraftStream:
    """At each site the mean of the deltas of the grafts that have it, always in the arithmetic form."""
    return joined(grafts, lambda d: (d.rows.sum(axis=0, initial=-0.0) / np.count_nonzero(d.held, axis=0), None))


def joined(grafts: Sequence[GraftStream], join: Join, *, thins: bool = False) -> GraftStream:
    """One arithmetic graft over all sites, each window's deltas joined in float64 and rounded once.

    A join that `thins` does not keep every site: then it is run once to count those that it keeps.
    """
    # Two numbers add up alike in either order.
    ordered = [grafts[place] for place in in_order(grafts)] if len(grafts) > 2 else list(grafts)
    frame = framed(ordered)

    def stretches(name: str) -> Iterator[Stretch]:
        for here in aligned(ordered, name):
            stretch = _joined_window(name, ordered, here, join)
            if len(stretch):
                yield stretch

    joint = replace(frame, stretches=stretches, form="arithmetic", scale=1.0)
    if thins:
        counts = together(lambda name: sum(map(len, stretches(name))), joint.counts)
        joint = replace(joint, counts={name: n for name, n in zip(joint.counts, counts, strict=True) if n})
    return joint


# Deltas of one window → for each column the row of the graft that has it.
Owner = Callable[[Deltas], Positions]


def chosen(grafts: Sequence[GraftStream], owner: Owner) -> GraftStream:
    """Each site as the one graft has it that `owner` names; exact where those that have any are exact and of one scale."""
    frame = framed(grafts)

    def owned(name: str) -> Iterator[tuple[Stretch, Positions, list[tuple[int, Stretch, Where]]]]:
        for here in aligned(grafts, name):
            empty = _joined_window(name, grafts, here, _nothing)
            there = [(row, each) for row, each in enumerate(here) if each is not None]
            found = _places(here, empty.where, empty.high - empty.low)
            present = [(row, each, place) for (row, each), place in zip(there, found, strict=True)]
            lined_up = _Rows(grafts, here, [(grafts[row], each, place) for row, each, place in present], len(empty))
            yield empty, owner(lined_up.columns(EVERY)), present

    taken = np.zeros(len(grafts), np.int64)
    for name in frame.counts:
        for _, rows, _ in owned(name):
            taken += np.bincount(rows, minlength=len(grafts))
    takers = [graft for graft, count in zip(grafts, taken, strict=True) if count] or list(grafts[:1])
    exact = all(graft.form == "exact" and graft.scale == takers[0].scale for graft in takers)

    def stretches(name: str) -> Iterator[Stretch]:
        for empty, rows, present in owned(name):
            change = np.empty(len(empty), empty.before.dtype if exact else _FLOAT32)
            for row, each, place in present:
                mine = rows[place] == row
                numbers = each.change if exact else round_once(grafts[row].delta(each), _FLOAT32)
                here = change[place]
                here[mine] = numbers[mine]
                change[place] = here
            yield replace(empty, change=change)

    return replace(
        frame, stretches=stretches, form="exact" if exact else "arithmetic", scale=takers[0].scale if exact else 1.0
    )


def side_by_side(grafts: Sequence[GraftStream]) -> GraftStream:
    """Grafts that share no entry: exact where all are exact and of one scale, else their sum."""
    if not all(graft.form == "exact" and graft.scale == grafts[0].scale for graft in grafts):
        return added(grafts)
    return chosen(grafts, first_holder)


def first_holder(deltas: Deltas) -> Positions:
    """For each column the first graft that has it."""
    return np.asarray(deltas.held.argmax(axis=0))


def largest_holder(deltas: Deltas) -> Positions:
    """For each column the graft that changes it most; of equal ones the first."""
    return np.asarray(np.where(deltas.held, np.abs(deltas.rows), -1.0).argmax(axis=0))


def _nothing(deltas: Deltas) -> tuple[Floats, Mask | None]:
    return np.zeros(deltas.rows.shape[1]), None


def framed(grafts: Sequence[GraftStream]) -> GraftStream:
    """What the union of grafts has without its numbers: scope, sites, how many there are, number formats, base."""
    names = joined_names(grafts)

    def sites(name: str) -> Iterator[Stretch]:
        none = np.empty(0, _FLOAT32)
        for here in aligned(grafts, name, numbers=False):
            low, high = _edges(here)
            yield Stretch(low, high, _union(here, high - low), none, none)

    def count(name: str) -> int:
        holders = [graft for graft in grafts if name in graft.counts]
        if len(holders) == 1 or any(graft.full(name) for graft in holders):
            return max(graft.counts[name] for graft in holders)
        return sum(len(each.positions) for each in sites(name))

    return replace(
        grafts[0],
        scope=reduce(Scope.join, (graft.scope for graft in grafts)),
        counts=dict(zip(names, together(count, names), strict=True)),
        formats={name: _format(name, grafts) for name in names},
        places=sites,
        heads={},
    )


def restricted(graft: GraftStream, region: Region, *, inside: bool = True) -> GraftStream:
    """The graft inside a region alone, or outside it; the scope stays the graft's own."""
    Scope.join(graft.scope, region.scope)  # refuses a region of another model

    def kept(name: str, stretch: Stretch) -> Mask:
        at = region.sites.get(name, np.empty(0, np.int64))
        low, high = np.searchsorted(at, (stretch.low, stretch.high))
        there = np.zeros(stretch.high - stretch.low, bool)
        there[at[low:high] - stretch.low] = True
        return np.asarray(there[stretch.where] == inside)

    def count(name: str) -> int:
        return sum(int(np.count_nonzero(kept(name, each))) for each in graft.sites(name))

    def stretches(name: str) -> Iterator[Stretch]:
        for stretch in graft.stretches(name):
            mask = kept(name, stretch)
            if mask.any():
                yield stretch.kept(mask)

    counts = zip(graft.counts, together(count, graft.counts), strict=True)
    return replace(graft, stretches=stretches, places=None, counts={name: n for name, n in counts if n})


def share_entries(a: GraftStream, b: GraftStream) -> bool:
    """Whether any entry is in both."""
    for name in a.counts.keys() & b.counts.keys():
        for mine, theirs in aligned([a, b], name, numbers=False):
            if mine is not None and theirs is not None and (mine.mask & theirs.mask).any():
                return True
    return False


def _format(name: str, grafts: Sequence[GraftStream]) -> np.dtype[np.generic]:
    formats = {graft.formats[name] for graft in grafts if name in graft.counts}
    if len(formats) > 1:
        raise WrongBase(
            f"{name}: the grafts hold {listed(sorted(map(str, formats)))} numbers; combine grafts of one format"
        )
    return formats.pop()


def _edges(here: Sequence[Stretch | None]) -> tuple[int, int]:
    return next((each.low, each.high) for each in here if each is not None)


def _union(here: Sequence[Stretch | None], length: int) -> Where:
    """The sites of all, in a window."""
    present = [each for each in here if each is not None]
    if len(present) == 1:
        return present[0].where
    if any(each.full for each in present):
        return EVERY
    if 32 * sum(map(len, present)) < length:
        return np.unique(np.concatenate([each.positions for each in present]))
    mask = present[0].mask.copy()  # it may be the stretch's own
    for each in present[1:]:
        mask[each.where] = True
    return where_of(mask)


def _places(here: Sequence[Stretch | None], union: Where, length: int) -> list[Where]:
    """Where the sites of each stretch that is there stand among those of the union."""
    found: list[Where] = []
    at = np.empty(0, np.int64) if isinstance(union, slice) else positions(union, length)
    size = length if isinstance(union, slice) else len(at)
    rank: Indices = np.empty(0, np.int64)
    if 32 * len(at) >= length:
        rank = np.empty(length, np.int64)
        rank[at] = np.arange(size)
    for each in here:
        if each is None:
            continue
        if len(each) == size:
            found.append(EVERY)
        elif isinstance(union, slice):
            found.append(each.positions)
        else:
            found.append(rank.take(each.positions) if len(rank) else np.searchsorted(at, each.positions))
    return found


def _joined_window(name: str, grafts: Sequence[GraftStream], here: Sequence[Stretch | None], join: Join) -> Stretch:
    low, high = _edges(here)
    union = _union(here, high - low)
    size = len(positions(union, high - low))
    there = [(graft, each) for graft, each in zip(grafts, here, strict=True) if each is not None]
    found_places = _places(here, union, high - low)
    present = [(graft, each, place) for (graft, each), place in zip(there, found_places, strict=True)]
    before = _before(name, size, [(each, place) for _, each, place in present])
    result, kept = np.empty(size, _FLOAT32), np.ones(size, bool)
    lined_up = _Rows(grafts, here, present, size)
    for start in range(0, size, _BLOCK):
        block = slice(start, start + _BLOCK)
        numbers, chosen = join(lined_up.columns(block))
        result[block] = round_once(numbers, _FLOAT32)
        if chosen is not None:
            kept[block] = chosen
    found = Stretch(low, high, union, before, result)
    return found if kept.all() else found.kept(kept)


class _Rows:
    """The numbers of several stretches lined up, and their deltas a few columns at a time."""

    def __init__(
        self,
        grafts: Sequence[GraftStream],
        here: Sequence[Stretch | None],
        present: Sequence[tuple[GraftStream, Stretch, Where]],
        size: int,
    ) -> None:
        self.size = size
        self.dense: list[tuple[int, GraftStream, Stretch]] = []
        self.spread: list[tuple[int, Floats, Mask]] = []
        rows = {id(each): row for row, each in enumerate(here) if each is not None}
        self.count = len(grafts)
        for graft, each, place in present:
            if isinstance(place, slice):
                self.dense.append((rows[id(each)], graft, each))
            else:
                deltas, held = np.full(size, -0.0), np.zeros(size, bool)
                deltas[place] = graft.delta(each)
                held[place] = True
                self.spread.append((rows[id(each)], deltas, held))

    def columns(self, block: slice) -> Deltas:
        width = len(range(*block.indices(self.size)))
        rows, held = np.full((self.count, width), -0.0), np.zeros((self.count, width), bool)
        for row, graft, each in self.dense:
            rows[row] = graft.delta(replace(each, before=each.before[block], change=each.change[block]))
            held[row] = True
        for row, deltas, has in self.spread:
            rows[row], held[row] = deltas[block], has[block]
        return Deltas(rows, held)


def _sum(deltas: Deltas) -> tuple[Floats, Mask | None]:
    return deltas.rows.sum(axis=0, initial=-0.0), None  # -0.0 + x is x for every x; 0.0 + -0.0 is not


def _before(name: str, size: int, parts: Sequence[tuple[Stretch, Where]]) -> Array:
    """The base's numbers at the sites of all; grafts that disagree about one are not of one base."""
    first, place = parts[0]
    if len(parts) == 1:
        return first.before
    result = first.before
    if not isinstance(place, slice):
        result = np.empty(size, first.before.dtype)
        for each, where in parts:
            result[where] = each.before
    differ = sum(int(np.count_nonzero(bits(result[where]) != bits(each.before))) for each, where in parts)
    if differ:
        raise WrongBase(f"{name}: the grafts disagree about the base's number at {differ} shared sites")
    return result
