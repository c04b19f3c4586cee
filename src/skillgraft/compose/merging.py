"""The published merging rules as functions on grafts: TIES, DARE, Breadcrumbs, TALL-masks, WiSE (P2's baselines), and DELLA.

Each is two steps: thin every graft by itself (`thinning`; TALL-masks compare them), then join what is left, parameter by
parameter. A site that a graft does not have counts as 0, as everywhere.

What a share counts. `keep` is a density: entries left / entries of the scope (Breadcrumbs: of the parameter). A dense task
vector is thinned as published; a graft that is sparser than `keep` already loses nothing. Where chance decides (DARE, DELLA),
`keep` is a probability, and of the entries that the graft has. `drop` is a share of the entries that the graft has there, because
a share of the whole parameter would take a sparse graft away entirely.

Everything goes stretch by stretch (`values.stream`), so grafts of any size are joined in the memory of a few stretches. The
result has the arithmetic form and is the same for any order of the list.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from skillgraft.compose.thinning import (
    TRIMS,
    between_tails,
    check_share,
    draws,
    dropped,
    dropped_by_rank,
    largest,
)
from skillgraft.errors import InputError, did_you_mean
from skillgraft.values.joining import Deltas, added, joined
from skillgraft.values.stream import Floats, GraftStream, Mask


def ties(grafts: Sequence[GraftStream], *, keep: float = 0.1, trim: str = "scope") -> GraftStream:
    """TIES: trim each graft to its largest |delta|, elect a sign for each entry, take the mean of those that have it.

    `keep` is a share of the scope, or with `trim="tensor"` of each parameter. The elected sign is that of the summed deltas;
    where they cancel exactly, nothing changes.
    """
    check_share("keep", keep)
    if trim not in TRIMS:
        raise InputError(f"unknown trim {trim!r}; {did_you_mean(trim, TRIMS)}")
    return joined([largest(graft, keep, trim=trim) for graft in grafts], _elected_mean)


def dare(grafts: Sequence[GraftStream], *, keep: float = 0.1, seed: int = 0) -> GraftStream:
    """DARE: keep each entry with probability `keep`, divide what is left by it, and add up."""
    check_share("keep", keep)
    _check_seed(seed)
    return added([dropped(graft, keep, draw) for graft, draw in draws(grafts, seed)])


def della(grafts: Sequence[GraftStream], *, keep: float = 0.7, epsilon: float = 0.14, seed: int = 0) -> GraftStream:
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


def breadcrumbs(grafts: Sequence[GraftStream], *, keep: float = 0.2, drop: float = 0.1) -> GraftStream:
    """Breadcrumbs: in each parameter mask both tails of |delta|, the outliers and the small ones, then add up.

    Our reading of "keep 20 %, drop the top 10 %": the largest tenth goes, the next fifth stays, the rest goes.
    """
    check_share("keep", keep)
    if not 0 <= drop < 1 or keep + drop > 1 + 1e-9:
        raise InputError(f"drop must lie between 0 and 1 − keep = {1 - keep:g}, found {drop}")
    return added([between_tails(graft, keep, drop) for graft in grafts])


def tall(grafts: Sequence[GraftStream], *, lam: float = 0.2, consensus: int = 2) -> GraftStream:
    """Consensus TALL-masks: of the summed delta, the entries that at least `consensus` of the grafts claim.

    Graft t claims an entry where |delta_t| ≥ λ · |delta_sum − delta_t|: its own change there is not drowned by the others'.
    """
    if lam < 0 or not math.isfinite(lam):
        raise InputError(f"lam must be a number from 0 up, found {lam}")
    if not 1 <= consensus <= len(grafts):
        raise InputError(f"consensus must lie between 1 and the number of grafts, {len(grafts)}; found {consensus}")
    return joined(grafts, partial(_claimed_sum, lam=lam, consensus=consensus), thins=True)


def wise(grafts: Sequence[GraftStream]) -> GraftStream:
    """WiSE: linear interpolation between the base and the mean of the tuned models; the scale is its λ.

    Of one graft it is that graft, so that `scale * combine([g], rule="wise")` is base + λ · delta (P1 fig. 7).
    """
    return grafts[0] if len(grafts) == 1 else joined(grafts, _mean)


def _mean(deltas: Deltas) -> tuple[Floats, Mask | None]:
    return deltas.rows.mean(axis=0), None


def _elected_mean(deltas: Deltas) -> tuple[Floats, Mask | None]:
    rows = deltas.rows
    elected = np.sign(rows.sum(axis=0))
    agrees = (np.sign(rows) == elected) & (elected != 0)
    return np.where(agrees, rows, 0.0).sum(axis=0) / np.maximum(np.count_nonzero(agrees, axis=0), 1), None


def _claimed_sum(deltas: Deltas, *, lam: float, consensus: int) -> tuple[Floats, Mask | None]:
    rows = deltas.rows
    together = rows.sum(axis=0)
    claims = np.abs(rows) >= lam * np.abs(together - rows)
    return together, np.count_nonzero(claims, axis=0) >= consensus


def _check_seed(seed: int) -> None:
    if seed < 0:
        raise InputError(f"seed must be at least 0; found {seed}")
