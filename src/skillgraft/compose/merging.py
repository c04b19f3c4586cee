"""The published merging rules as functions on grafts: TIES, DARE, Breadcrumbs, TALL-masks, WiSE (P2's baselines), and DELLA.

Each is two steps: thin every graft by itself (`thinning`; TALL-masks compare them), then join what is left, parameter by
parameter. A site that a graft does not have counts as 0, as everywhere.

What a share counts. `keep` is a density: entries left / entries of the scope (Breadcrumbs: of the parameter). A dense task
vector is thinned as published; a graft that is sparser than `keep` already loses nothing. Where chance decides (DARE, DELLA),
`keep` is a probability, and of the entries that the graft has. `drop` is a share of the entries that the graft has there, because
a share of the whole parameter would take a sparse graft away entirely.

The result has the arithmetic form and is the same for any order of the list.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from skillgraft.compose.thinning import (
    Floats,
    Mask,
    between_tails,
    check_share,
    draws,
    dropped,
    dropped_by_rank,
    largest,
    sealed,
)
from skillgraft.errors import InputError, WrongBase, listed
from skillgraft.values.graft import Graft
from skillgraft.values.numbers import Array, bits, round_once
from skillgraft.values.region import Indices, Region

# Deltas of one parameter, a row for each graft, -0.0 where it has no site → the joined delta, and which entries it keeps.
Join = Callable[[Floats], tuple[Floats, Mask | None]]

_BLOCK = 1 << 13  # columns of deltas that are joined at a time


def ties(grafts: Sequence[Graft], *, keep: float = 0.1) -> Graft:
    """TIES: trim each graft to its largest |delta|, elect a sign for each entry, take the mean of those that have it.

    The elected sign is that of the summed deltas; where they cancel exactly, nothing changes.
    """
    check_share("keep", keep)
    return joined([largest(graft, keep) for graft in grafts], _elected_mean)


def dare(grafts: Sequence[Graft], *, keep: float = 0.1, seed: int = 0) -> Graft:
    """DARE: keep each entry with probability `keep`, divide what is left by it, and add up."""
    check_share("keep", keep)
    _check_seed(seed)
    return joined([dropped(graft, keep, draw) for graft, draw in draws(grafts, seed)], _sum)


def della(grafts: Sequence[Graft], *, keep: float = 0.7, epsilon: float = 0.14, seed: int = 0) -> Graft:
    """DELLA (Deep et al. 2024): drop by rank, elect a sign for each entry, take the mean of those that have it.

    Drop (MagPrune): an entry's drop probability is p_i = p − ε/2 + ε · (1 − r_i), with p = 1 − `keep` and r_i the rank of
    |delta| in its row, from 0 for the smallest to 1 for the largest; what stays is divided by 1 − p_i. A row runs along the
    last axis of a matrix; a vector is one row. Only entries that the graft has are ranked. The paper writes ε/n · rank; ranks
    over n − 1, as in the authors' code and in mergekit, make the mean of p_i exactly p. Elect and fuse are those of TIES, and
    the scale is the paper's λ.

    The defaults are those of the authors' example: drop 0.3, window ε = 0.14 (with λ = 1.1). mergekit's `epsilon` is half of it.
    """
    check_share("keep", keep)
    if not 0 <= epsilon < 2 * keep or keep + epsilon / 2 > 1 + 1e-9:
        raise InputError(
            f"epsilon must be at least 0, below 2 · keep = {2 * keep:g} and at most 2 · (1 − keep) = {2 * (1 - keep):g}, so that "
            f"every entry has a chance to stay; found {epsilon}"
        )
    _check_seed(seed)
    return joined([dropped_by_rank(graft, keep, epsilon, draw) for graft, draw in draws(grafts, seed)], _elected_mean)


def breadcrumbs(grafts: Sequence[Graft], *, keep: float = 0.2, drop: float = 0.1) -> Graft:
    """Breadcrumbs: in each parameter mask both tails of |delta|, the outliers and the small ones, then add up.

    Our reading of "keep 20 %, drop the top 10 %": the largest tenth goes, the next fifth stays, the rest goes.
    """
    check_share("keep", keep)
    if not 0 <= drop < 1 or keep + drop > 1 + 1e-9:
        raise InputError(f"drop must lie between 0 and 1 − keep = {1 - keep:g}, found {drop}")
    return joined([between_tails(graft, keep, drop) for graft in grafts], _sum)


def tall(grafts: Sequence[Graft], *, lam: float = 0.2, consensus: int = 2) -> Graft:
    """Consensus TALL-masks: of the summed delta, the entries that at least `consensus` of the grafts claim.

    Graft t claims an entry where |delta_t| ≥ λ · |delta_sum − delta_t|: its own change there is not drowned by the others'.
    """
    if lam < 0 or not math.isfinite(lam):
        raise InputError(f"lam must be a number from 0 up, found {lam}")
    if not 1 <= consensus <= len(grafts):
        raise InputError(f"consensus must lie between 1 and the number of grafts, {len(grafts)}; found {consensus}")
    return joined(grafts, partial(_claimed_sum, lam=lam, consensus=consensus))


def wise(grafts: Sequence[Graft]) -> Graft:
    """WiSE: linear interpolation between the base and the mean of the tuned models; the scale is its λ.

    Of one graft it is that graft, so that `scale * combine([g], rule="wise")` is base + λ · delta (P1 fig. 7).
    """
    return grafts[0] if len(grafts) == 1 else joined(grafts, _mean)


def added(grafts: Sequence[Graft]) -> Graft:
    """The sum of the deltas, always in the arithmetic form."""
    return joined(grafts, _sum)


def joined(grafts: Sequence[Graft], join: Join) -> Graft:
    """One arithmetic graft over all sites, each parameter's deltas joined in float64 and rounded once."""
    # Two numbers add up alike in either order, and the digests of dense grafts cost as much as the rest.
    ordered = _in_order(grafts) if len(grafts) > 2 else grafts
    scope = ordered[0].region.scope
    for graft in ordered[1:]:
        scope = scope.join(graft.region.scope)
    sites: dict[str, Indices] = {}
    before: dict[str, Array] = {}
    change: dict[str, Array] = {}
    for name in sorted({name for graft in ordered for name in graft.region}):
        at, positions = _aligned([graft.region.sites.get(name) for graft in ordered], math.prod(scope.shapes[name]))
        old = _before(name, len(at), ordered, positions)
        new, kept = _in_blocks(_rows(name, len(at), ordered, positions), join)
        if kept.any():
            sites[name], before[name], change[name] = (sealed(numbers[kept]) for numbers in (at, old, new))
    region = Region(scope, sites)
    return Graft(region, before, change, form="arithmetic", base_fingerprint=ordered[0].base_fingerprint)


def _rows(name: str, size: int, grafts: Sequence[Graft], positions: Sequence[Indices | None]) -> Floats:
    """The deltas of one parameter: a row for each graft, a column for each site of any; -0.0 where it has none."""
    rows = np.full((len(grafts), size), -0.0)
    for row, graft, position in zip(rows, grafts, positions, strict=True):
        if position is not None:
            row[position] = graft.delta(name)
    return rows


def _in_blocks(rows: Floats, join: Join) -> tuple[Array, Mask]:
    """The joined deltas in float32 and which are kept; a block of columns at a time stays in the cache."""
    result, kept = np.empty(rows.shape[1], np.float32), np.ones(rows.shape[1], bool)
    for low in range(0, rows.shape[1], _BLOCK):
        block = slice(low, low + _BLOCK)
        numbers, chosen = join(rows[:, block])
        result[block] = round_once(numbers, result.dtype)
        if chosen is not None:
            kept[block] = chosen
    return result, kept


def _sum(rows: Floats) -> tuple[Floats, Mask | None]:
    return rows.sum(axis=0, initial=-0.0), None  # -0.0 + x is x for every x; 0.0 + -0.0 is not


def _mean(rows: Floats) -> tuple[Floats, Mask | None]:
    return rows.mean(axis=0), None


def _elected_mean(rows: Floats) -> tuple[Floats, Mask | None]:
    elected = np.sign(rows.sum(axis=0))
    agrees = (np.sign(rows) == elected) & (elected != 0)
    return np.where(agrees, rows, 0.0).sum(axis=0) / np.maximum(np.count_nonzero(agrees, axis=0), 1), None


def _claimed_sum(rows: Floats, *, lam: float, consensus: int) -> tuple[Floats, Mask | None]:
    together = rows.sum(axis=0)
    claims = np.abs(rows) >= lam * np.abs(together - rows)
    return together, np.count_nonzero(claims, axis=0) >= consensus


def _in_order(grafts: Sequence[Graft]) -> list[Graft]:
    """An order fixed by content, so that sums have the same bits for any order of the list."""
    return sorted(grafts, key=lambda graft: graft.digest)


def _aligned(parts: Sequence[Indices | None], size: int) -> tuple[Indices, list[Indices | None]]:
    """All sites of one parameter, and where each part's sites stand among them.

    Dense parts are looked up in a table as long as the parameter, which is many times faster than a binary search for
    each site; for sparse ones such a table would cost more than the search.
    """
    present = [part for part in parts if part is not None]
    if 8 * sum(map(len, present)) < size:
        at: Indices = np.unique(np.concatenate(present))
        return at, [None if part is None else np.searchsorted(at, part) for part in parts]
    taken = np.zeros(size, bool)
    for part in present:
        taken[part] = True
    rank = np.cumsum(taken) - 1
    return np.flatnonzero(taken), [None if part is None else rank[part] for part in parts]


def _before(name: str, size: int, grafts: Sequence[Graft], positions: Sequence[Indices | None]) -> Array:
    """The base's numbers at the sites of all; grafts that disagree about one are not of one base."""
    parts = [
        (graft.before[name], position)
        for graft, position in zip(grafts, positions, strict=True)
        if position is not None
    ]
    formats = sorted({str(numbers.dtype) for numbers, _ in parts})
    if len(formats) > 1:
        raise WrongBase(f"{name}: the grafts hold {listed(formats)} numbers; combine grafts of one format")
    result = np.empty(size, parts[0][0].dtype)
    for numbers, position in parts:
        result[position] = numbers
    differ = sum(int((bits(result[position]) != bits(numbers)).sum()) for numbers, position in parts)
    if differ:
        raise WrongBase(f"{name}: the grafts disagree about the base's number at {differ} shared sites")
    return result


def _check_seed(seed: int) -> None:
    if seed < 0:
        raise InputError(f"seed must be at least 0; found {seed}")
