"""What is left of one graft before it is joined with others: the largest changes, a random draw, what lies between both tails.

largest(g, 0.1)        at most a tenth of the scope
for each, draw in draws([g, h], seed=0): dropped(each, 0.1, draw)

A thinned graft depends on the graft itself (and a seed), never on the grafts that it will be joined with.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from skillgraft.errors import InputError
from skillgraft.values.graft import Graft
from skillgraft.values.numbers import Array, round_once
from skillgraft.values.region import Indices, Region

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


def check_share(name: str, share: float) -> None:
    """Refuse what is no share of entries."""
    if not 0 < share <= 1:
        raise InputError(f"{name} must lie above 0 and be at most 1, found {share}")


def largest(graft: Graft, keep: float) -> Graft:
    """The graft's entries with the largest |delta|, so many that their density is at most `keep`; of equal ones the first."""
    count = round(keep * graft.region.scope.size)
    if count >= len(graft):
        return graft
    top = _top(np.concatenate([np.abs(graft.delta(name)) for name in graft.region]), count)
    ends = np.cumsum([len(at) for at in graft.region.sites.values()])[:-1]
    return masked(graft, zip(graft.region, np.split(top, ends), strict=True))


def between_tails(graft: Graft, keep: float, drop: float) -> Graft:
    """In each parameter the largest |delta| go, a share `drop` of the graft's own, and the next stay, a share `keep` of all."""

    def middle(name: str) -> Mask:
        sizes = np.abs(graft.delta(name))
        outliers = round(drop * len(sizes))
        kept = round(keep * math.prod(graft.region.scope.shapes[name]))
        return _top(sizes, outliers + kept) & ~_top(sizes, outliers)

    return masked(graft, ((name, middle(name)) for name in graft.region))


def draws(grafts: Sequence[Graft], seed: int) -> Iterator[tuple[Graft, np.random.Generator]]:
    """Each graft with random numbers of its own: its content and `seed` decide them. Equal grafts get different ones."""
    copies: Counter[str] = Counter()
    for graft in grafts:
        yield graft, np.random.default_rng([seed, copies[graft.digest], int(graft.digest, 16)])
        copies[graft.digest] += 1


def dropped(graft: Graft, keep: float, draw: np.random.Generator) -> Graft:
    """Each entry stays with probability `keep` and is divided by it, so that its expectation is what it was."""
    # float32 draws cost half as much, and a share needs no more digits.
    drawn = ((n, draw.random(len(at), dtype=np.float32) < keep) for n, at in graft.region.sites.items())
    return (1.0 / keep) * masked(graft, drawn)


def dropped_by_rank(graft: Graft, keep: float, epsilon: float, draw: np.random.Generator) -> Graft:
    """MagPrune: larger entries of a row stay more often, with probabilities from keep − ε/2 to keep + ε/2.

    Each is divided by its own probability: an arithmetic graft.
    """
    chances, masks = {}, {}
    for name, at in graft.region.sites.items():
        rank = _rank_in_row(np.abs(graft.delta(name)), at, graft.region.scope.shapes[name])
        chances[name] = keep + epsilon * (rank - 0.5)
        masks[name] = draw.random(len(at)) < chances[name]
    kept = masked(graft, masks.items())
    float32 = np.dtype(np.float32)
    change = {name: round_once(kept.delta(name) / chances[name][masks[name]], float32) for name in kept.region}
    return replace(kept, change=change, form="arithmetic", scale=1.0)


def _rank_in_row(sizes: Floats, at: Indices, shape: tuple[int, ...]) -> Floats:
    """The rank of each size among those of its row, from 0 for the smallest to 1 for the largest; ½ where it is alone.

    Of equal ones the later ranks higher.
    """
    width = shape[-1] if len(shape) > 1 else math.prod(shape)
    rows = at // width
    starts = np.flatnonzero(np.diff(rows, prepend=-1))
    lengths = np.diff(starts, append=len(rows))
    if 8 * len(at) >= math.prod(shape):  # sorting a whole table row by row is ten times as fast as the general way
        table = np.full(math.prod(shape), np.inf)
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


def _top(sizes: Floats, count: int) -> Mask:
    """The `count` largest; of equal ones the first. So the top 3 lie within the top 5."""
    if count >= len(sizes):
        return np.ones(len(sizes), bool)
    if count == 0:
        return np.zeros(len(sizes), bool)
    least = np.partition(sizes, len(sizes) - count)[len(sizes) - count]
    chosen: Mask = sizes > least
    chosen[np.flatnonzero(sizes == least)[: count - np.count_nonzero(chosen)]] = True
    return chosen


def masked(graft: Graft, masks: Iterable[tuple[str, Mask]]) -> Graft:
    """The graft's entries where each parameter's mask is true."""
    found = {name: np.flatnonzero(mask) for name, mask in masks}
    kept = {name: where for name, where in found.items() if len(where)}
    return replace(
        graft,
        region=Region(graft.region.scope, {name: sealed(graft.region.sites[name][at]) for name, at in kept.items()}),
        before={name: sealed(graft.before[name][at]) for name, at in kept.items()},
        change={name: sealed(graft.change[name][at]) for name, at in kept.items()},
    )


def sealed(fresh: Array) -> Array:
    """An array that nobody else holds, made read-only: a graft then takes it as it is instead of copying it."""
    fresh.flags.writeable = False
    return fresh
