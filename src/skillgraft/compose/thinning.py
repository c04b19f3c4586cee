"""What is left of one graft before it is joined with others: the largest changes, a random draw, what lies between both tails.

largest(stream, 0.1)        at most a tenth of the scope
for each, draw in draws([g, h], seed=0): dropped(each, 0.1, draw)

A thinned graft depends on the graft itself (and a seed), never on the grafts that it will be joined with. Everything goes
stretch by stretch: what has to be known of a whole graft (the size that the largest reach) is found in passes of its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from skillgraft.errors import InputError
from skillgraft.values.numbers import round_once
from skillgraft.values.region import Indices, Shape
from skillgraft.values.stream import Floats, GraftStream, Mask, Stretch, rewindowed
from skillgraft.values.threads import ahead, together
from skillgraft.values.topmost import bucket_of

_GATHERED = 1 << 21  # numbers of one size class that are held at a time
_Tallied = tuple[Floats, npt.NDArray[np.intp]]  # values, and how often each is there
# A parameter's name → random numbers of its own.
Draw = Callable[[str], np.random.Generator]
TRIMS = ("scope", "tensor")


def check_share(name: str, share: float) -> None:
    """Refuse what is no share of entries."""
    if not 0 < share <= 1:
        raise InputError(f"{name} must lie above 0 and be at most 1, found {share}")


def largest(graft: GraftStream, keep: float, *, trim: str = "scope") -> GraftStream:
    """The graft's entries with the largest |delta|, so many that their density is at most `keep`; of equal ones the first.

    The share is that of the whole scope, or with `trim="tensor"` of each parameter.
    """
    if trim == "scope":
        count = round(keep * graft.scope.size)
        cuts = {} if count >= len(graft) else dict.fromkeys(graft.counts, cut(graft, list(graft.counts), count))
    else:
        wanted = {name: round(keep * graft.size(name)) for name in graft.counts}
        wanted = {name: most for name, most in wanted.items() if most < graft.counts[name]}
        cuts = dict(zip(wanted, together(lambda name: cut(graft, [name], wanted[name]), wanted), strict=True))
    if not cuts:
        return graft

    def chosen(name: str) -> Iterator[tuple[Stretch, Mask]]:
        return cuts[name].masks(graft, name) if name in cuts else _all(graft, name)

    counts = {name: cuts[name].counts[name] if name in cuts else count for name, count in graft.counts.items()}
    return masked(graft, chosen, counts)


def between_tails(graft: GraftStream, keep: float, drop: float) -> GraftStream:
    """In each parameter the largest |delta| go, a share `drop` of the graft's own, and the next stay, a share `keep` of all."""

    def cuts(name: str) -> tuple[Cut, Cut]:
        highest = cut(graft, [name], round(drop * graft.counts[name]))
        return highest, cut(graft, [name], sum(highest.counts.values()) + round(keep * graft.size(name)))

    found = dict(zip(graft.counts, together(cuts, graft.counts), strict=True))
    outliers, upper = ({name: both[place] for name, both in found.items()} for place in (0, 1))

    def middle(name: str) -> Iterator[tuple[Stretch, Mask]]:
        both = zip(upper[name].masks(graft, name), outliers[name].masks(graft, name), strict=True)
        for (stretch, within), (_, beyond) in both:
            yield stretch, within & ~beyond

    counts = {name: upper[name].counts[name] - outliers[name].counts[name] for name in graft.counts}
    return masked(graft, middle, counts)


def draws(grafts: Sequence[GraftStream], seed: int) -> Iterator[tuple[GraftStream, Draw]]:
    """Each graft with random numbers that its content, the parameter and `seed` decide. Equal grafts get different ones."""
    copies: Counter[str] = Counter()
    for graft in grafts:
        content, copy = int(graft.digest, 16), copies[graft.digest]
        copies[graft.digest] += 1
        yield graft, _Draws((seed, copy, content))


@dataclass(frozen=True)
class _Draws:
    seeds: tuple[int, ...]

    def __call__(self, name: str) -> np.random.Generator:
        return np.random.default_rng([*self.seeds, int.from_bytes(name.encode(), "little")])


def dropped(graft: GraftStream, keep: float, draw: Draw) -> GraftStream:
    """Each entry stays with probability `keep` and is divided by it, so that its expectation is what it was."""

    def drawn(name: str) -> Iterator[tuple[Stretch, Mask]]:
        random = draw(name)
        for stretch in graft.stretches(name):
            # float32 draws cost half as much, and a share needs no more digits.
            yield stretch, random.random(len(stretch), dtype=np.float32) < keep

    def count(name: str) -> int:
        random = draw(name)
        return sum(
            int(np.count_nonzero(random.random(len(each), dtype=np.float32) < keep)) for each in graft.sites(name)
        )

    return (1.0 / keep) * masked(graft, drawn, {name: count(name) for name in graft.counts})


def dropped_by_rank(graft: GraftStream, keep: float, epsilon: float, draw: Draw) -> GraftStream:
    """MagPrune: larger entries of a row stay more often, with probabilities from keep − ε/2 to keep + ε/2.

    Each is divided by its own probability: an arithmetic graft.
    """

    def rows(name: str) -> Iterator[Stretch]:
        """Whole rows at a time, with what is left of them."""
        shape, random = graft.scope.shapes[name], draw(name)
        width = _width(shape)
        blocks = rewindowed(graft.stretches(name), graft.size(name), max(width, 1 << 18) // width * width)
        for block in blocks:
            delta = graft.delta(block)
            chances = keep + epsilon * (_rank_in_row(np.abs(delta), block.sites - block.low, width) - 0.5)
            stays = random.random(len(block)) < chances
            change = round_once(delta / chances, np.dtype(np.float32))
            yield replace(block, change=change).kept(stays)

    def left(name: str) -> Iterator[Stretch]:
        return rewindowed(rows(name), graft.size(name))

    counts = {name: sum(map(len, rows(name))) for name in graft.counts}
    return replace(
        graft, stretches=left, places=None, form="arithmetic", scale=1.0, counts={n: c for n, c in counts.items() if c}
    )


def _width(shape: Shape) -> int:
    """How long a row is: a matrix's last axis; a vector is one row."""
    return (shape[-1] if len(shape) > 1 else math.prod(shape)) or 1


def _rank_in_row(sizes: Floats, at: Indices, width: int) -> Floats:
    """The rank of each size among those of its row, from 0 for the smallest to 1 for the largest; ½ where it is alone.

    Of equal ones the later ranks higher.
    """
    rows = at // width
    starts = np.flatnonzero(np.diff(rows, prepend=-1))
    lengths = np.diff(starts, append=len(rows))
    room = (int(rows[-1]) + 1) * width if len(rows) else 0
    if 8 * len(at) >= room:  # sorting a whole table row by row is ten times as fast as a sort of all of it
        table = np.full(room, np.inf)
        table[at] = sizes
        order = table.reshape(-1, width).argsort(axis=1, kind="stable")
        ranks = np.empty_like(order)
        np.put_along_axis(ranks, order, np.arange(width)[None], axis=1)
        rank = ranks.reshape(-1)[at]
    else:
        rank = np.empty(len(at), np.intp)
        rank[np.lexsort((sizes, rows))] = np.arange(len(at)) - np.repeat(starts, lengths)
    highest = np.repeat(lengths - 1, lengths)
    return np.where(highest > 0, rank / np.maximum(highest, 1), 0.5)


@dataclass(frozen=True)
class Cut:
    """The largest |delta| of some parameters: all above `least`, and of those equal to it the first few of each.

    `counts` has how many entries each parameter keeps.
    """

    least: float
    ties: Mapping[str, int]
    counts: Mapping[str, int]

    def masks(self, graft: GraftStream, name: str) -> Iterator[tuple[Stretch, Mask]]:
        """Every stretch of a parameter, and which of its sites are kept."""
        ties = self.ties.get(name, 0)
        for stretch in graft.stretches(name):
            delta = graft.delta(stretch)
            sizes = np.abs(delta, out=delta)
            chosen: Mask = sizes > self.least
            if ties:
                equal = np.flatnonzero(sizes == self.least)[:ties]
                chosen[equal] = True
                ties -= len(equal)
            yield stretch, chosen


def cut(graft: GraftStream, names: Sequence[str], count: int) -> Cut:
    """Where the `count` largest |delta| of these parameters end; the first of equal ones are taken.

    Sizes are counted by the leading half of their float32 bits, which keep their order; the class in which the cut lies is
    counted by the other half where it is large, and then gathered and looked at exactly.
    """
    entries = sum(graft.counts[name] for name in names)
    if count >= entries:
        return Cut(-1.0, {}, {name: graft.counts[name] for name in names})
    if count == 0:
        return Cut(math.inf, {}, dict.fromkeys(names, 0))
    # The cut lies among the keys [low, high), `wanted` entries into them from above.
    low, high, wanted = 0, 1 << 32, count
    for shift in (16, 0):
        table = np.zeros(1 << 16, np.int64)
        for counted in ahead(partial(_counted, graft, low=low, high=high, shift=shift), names):
            table += counted
        row, above = bucket_of(table, wanted)
        wanted -= above
        low, high = low + (row << shift), low + ((row + 1) << shift)
        if table[row] <= _GATHERED:
            break
    return _exact_cut(graft, names, low, high, wanted)


def _counted(graft: GraftStream, name: str, *, low: int, high: int, shift: int) -> npt.NDArray[np.int64]:
    """How many sizes of a parameter have each value of the 16 bits from `shift` on, of those with keys [low, high)."""
    table = np.zeros(1 << 16, np.int64)
    for sizes in _sizes(graft, name):
        keys = _keys(sizes)
        if not shift:
            keys = keys[(keys >= low) & (keys < high)]
            keys -= np.uint32(low)
        table += np.bincount(keys >> np.uint32(shift), minlength=1 << 16)
    return table


def _exact_cut(graft: GraftStream, names: Sequence[str], low: int, high: int, wanted: int) -> Cut:
    found = dict(zip(names, ahead(partial(_gathered, graft, low=low, high=high), names), strict=True))
    above = Counter({name: count for name, (count, _) in found.items()})
    classes = {name: inside for name, (_, inside) in found.items()}
    values = np.concatenate([each for inside in classes.values() for each, _ in inside])
    numbers = np.concatenate([each for inside in classes.values() for _, each in inside])
    order = np.argsort(-values, kind="stable")
    least = float(values[order][int(np.searchsorted(np.cumsum(numbers[order]), wanted))])
    left = wanted - int(numbers[values > least].sum())
    ties: dict[str, int] = {}
    for name in names:
        mine = classes[name]
        above[name] += sum(int(n[v > least].sum()) for v, n in mine)
        ties[name] = min(left, sum(int(n[v == least].sum()) for v, n in mine))
        left -= ties[name]
    return Cut(least, ties, {name: above[name] + ties[name] for name in names})


def _gathered(graft: GraftStream, name: str, *, low: int, high: int) -> tuple[int, list[_Tallied]]:
    """How many sizes of a parameter have keys from `high` on; and those with keys [low, high), window by window."""
    above, inside = 0, []
    for sizes in _sizes(graft, name):
        keys = _keys(sizes)
        beyond = keys >= high if high < 1 << 32 else np.zeros(len(keys), bool)
        above += int(np.count_nonzero(beyond))
        at = np.flatnonzero((keys >= low) & ~beyond)
        if len(at):
            inside.append(np.unique(sizes.take(at), return_counts=True))
    return above, inside


def _sizes(graft: GraftStream, name: str) -> Iterator[Floats]:
    for stretch in graft.stretches(name):
        delta = graft.delta(stretch)
        yield np.abs(delta, out=delta)


def _keys(sizes: Floats) -> npt.NDArray[np.uint32]:
    """The bits of the float32 nearest to each size: larger sizes never have smaller keys."""
    with np.errstate(over="ignore"):
        return sizes.astype(np.float32).view(np.uint32)


def _all(graft: GraftStream, name: str) -> Iterator[tuple[Stretch, Mask]]:
    return ((stretch, np.ones(len(stretch), bool)) for stretch in graft.stretches(name))


def masked(
    graft: GraftStream, choose: Callable[[str], Iterable[tuple[Stretch, Mask]]], counts: Mapping[str, int]
) -> GraftStream:
    """The graft's entries where each stretch's mask is true, of which `counts` says how many there are."""

    def stretches(name: str) -> Iterator[Stretch]:
        for stretch, mask in choose(name):
            if mask.all():
                yield stretch
            elif mask.any():
                yield stretch.kept(mask)

    return replace(graft, stretches=stretches, places=None, counts={n: count for n, count in counts.items() if count})
