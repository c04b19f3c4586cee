"""Rules that make one graft of several: one table, each rule a short function on grafts with its own keyword options.

    combine([g, h], rule="sum") == g + h
    combine([g, h], rule="ties", keep=0.2)

The published rules (TIES, DARE, Breadcrumbs, TALL-masks and WiSE, P2's baselines, and DELLA) are each two steps: thin every graft
by itself (`thinning`; TALL-masks compare them), then join what is left, parameter by parameter. A site that a graft does not
have counts as 0, as everywhere.

What a share counts. `keep` is a density: entries left / entries of the scope (Breadcrumbs: of the parameter). A dense task
vector is thinned as published; a graft that is sparser than `keep` already loses nothing. Where chance decides (DARE, DELLA),
`keep` is a probability, and of the entries that the graft has. `drop` is a share of the entries that the graft has there, because
a share of the whole parameter would take a sparse graft away entirely.

Everything goes stretch by stretch (`values.stream`), so grafts of any size are joined in the memory of a few stretches. The
published rules' result has the arithmetic form and is the same for any order of the list.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

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
from skillgraft.errors import InputError, Overlap, did_you_mean, listed
from skillgraft.values.graft import Graft, GraftLike, heads_alone, stream_of, total
from skillgraft.values.joining import (
    Deltas,
    added,
    averaged,
    chosen,
    first_holder,
    framed,
    joined,
    largest_holder,
    side_by_side,
    summed,
)
from skillgraft.values.naming import Scales, called, scales_of
from skillgraft.values.stream import Floats, GraftStream, Mask


def combine(
    grafts: Sequence[GraftLike] | Mapping[str, GraftLike],
    *,
    rule: str = "sum",
    scale: Scales = 1.0,
    head: GraftLike | None = None,
    **options: Any,
) -> Graft:
    """One graft of several; `options` are the rule's own keywords.

    `scale` as a number is for what the rule makes; {"films": 0.5} scales single grafts, by their names, before the rule.
    Heads take no part in a rule: they are joined, or `head` says whose are kept. The scope is that of all grafts, whoever
    wins; the provenance is what all agree on.
    """
    given = dict(grafts) if isinstance(grafts, Mapping) else None
    names = [called(graft) for graft in grafts] if given is None else list(given)
    streams = [stream_of(graft) for graft in (grafts if given is None else given.values())]
    kept = None if head is None else stream_of(head)
    if isinstance(scale, Mapping):
        factors = scales_of(names, scale)
        streams = [factor * stream for factor, stream in zip(factors, streams, strict=True)]
    joint = Graft.collected(combined(streams, rule=rule, head=kept, **options))
    return joint if isinstance(scale, Mapping) else scale * joint


def combined(
    grafts: Sequence[GraftStream], *, rule: str = "sum", head: GraftStream | None = None, **options: Any
) -> GraftStream:
    """`combine` as a stream: grafts of any size are joined in the memory of a few stretches, as the result is read."""
    check_rule(rule, options)
    if not grafts:
        raise InputError("combine needs at least one graft, found none")
    kept = None if head is None else heads_alone(head)
    frame = total([heads_alone(graft) for graft in grafts], head=kept)  # refuses grafts of different bases
    bodies = [graft.without_heads() for graft in grafts]
    streamed = getattr(RULES[rule], "__wrapped__", None)
    if streamed is not None:
        joint: GraftStream = streamed(bodies, **options)
    else:  # a rule of somebody's own, on grafts in memory
        joint = RULES[rule]([Graft.collected(body) for body in bodies], **options).stream()
    return replace(joint, scope=frame.region.scope, heads=frame.heads, info=frame.info)


def thinned(grafts: Sequence[Graft], *, rule: str = "sum", **options: Any) -> tuple[Graft, ...]:
    """What a rule takes of each graft before it joins them: what a combination is normalised by (P2).

    It is the rule applied to that graft alone (trimmed, dropped and rescaled, localized). TALL-masks, which compare the grafts
    with each other, leave of each the entries that enough of them claim. A rule that thins nothing takes the grafts as they are.
    """
    check_rule(rule, options)
    if rule not in THINNING:
        return tuple(grafts)
    if rule in COMPARING:
        claimed = combine([graft.without_heads() for graft in grafts], rule=rule, **options).region
        return tuple(graft & claimed for graft in grafts)
    return tuple(combine([graft], rule=rule, **options) for graft in grafts)


def check_rule(rule: str, options: Mapping[str, Any]) -> None:
    """Refuse a rule that is not in the table, and an option that is not the rule's."""
    if rule not in RULES:
        raise InputError(f"unknown rule {rule!r}; {did_you_mean(rule, RULES)}")
    known = options_of(rule)
    for name in options:
        owners = [other for other in RULES if name in options_of(other)]
        if name not in known and owners:
            raise InputError(f"the option {name!r} belongs to rule {listed(map(repr, owners))}, found rule {rule!r}")
        if name not in known:
            hint = did_you_mean(name, known) if known else "it has none"
            raise InputError(f"rule {rule!r} has no option {name!r}; {hint}")


def options_of(rule: str) -> tuple[str, ...]:
    """The names of a rule's own options, which are its function's keywords."""
    return tuple(inspect.signature(RULES[rule]).parameters)[1:]


def union(grafts: Sequence[GraftStream], *, conflict: str = "refuse") -> GraftStream:
    """Every entry of any graft; `conflict` says what happens at entries that more than one graft changes."""
    if conflict not in CONFLICTS:
        raise InputError(f"unknown conflict rule {conflict!r}; {did_you_mean(conflict, CONFLICTS)}")
    return CONFLICTS[conflict](grafts)


def union_or_refuse(grafts: Sequence[GraftStream]) -> GraftStream:
    """The union of grafts that share no entry; what they share is refused."""
    shared = sum(map(len, grafts)) - len(framed(grafts))
    if shared:
        others = ", ".join(name for name in CONFLICTS if name != "refuse")
        raise Overlap(
            f"{shared} entries are in more than one graft; use rule 'sum', or choose a conflict rule: {others}"
        )
    return side_by_side(grafts)


def union_first(grafts: Sequence[GraftStream]) -> GraftStream:
    """Where grafts share an entry, the first in the list has it."""
    return chosen(grafts, first_holder)


def union_largest(grafts: Sequence[GraftStream]) -> GraftStream:
    """Where grafts share an entry, the one that changes it most has it; of equal ones the first."""
    return chosen(grafts, largest_holder)


def union_mean(grafts: Sequence[GraftStream]) -> GraftStream:
    """Where grafts share an entry, it gets the mean of their changes, rounded once."""
    if len(grafts) == 1:
        return grafts[0]
    mean = averaged(grafts)
    return side_by_side(grafts) if len(mean) == sum(map(len, grafts)) else mean


def stitch(grafts: Sequence[GraftStream], *, keep: float | None = None) -> GraftStream:
    """Localize-and-Stitch (He et al. 2024): small regions side by side; where several meet, the mean of their changes.

    Each graft's own entries are its region, localized as one likes. `keep` takes a region without data first: the largest
    |delta|, at most so dense (the paper has 0.05 for texts). The paper searches no scale. Grafts that share no entry stay exact.
    """
    if keep is not None:
        check_share("keep", keep)
        grafts = [largest(graft, keep) for graft in grafts]
    return union_mean(grafts)


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


def on_grafts(rule: Callable[..., GraftStream]) -> Rule:
    """A rule on streams as one on grafts in memory; `combined` finds the stream's again under it."""

    @functools.wraps(rule)
    def in_memory(grafts: Sequence[Graft], **options: Any) -> Graft:
        return Graft.collected(rule([graft.stream() for graft in grafts], **options))

    return in_memory


Rule = Callable[..., Graft]
# A plain table: a rule of one's own is one more row, added from anywhere.
RULES: dict[str, Rule] = {
    "sum": on_grafts(summed),
    "union": on_grafts(union),
    "ties": on_grafts(ties),
    "dare": on_grafts(dare),
    "breadcrumbs": on_grafts(breadcrumbs),
    "tall": on_grafts(tall),
    "della": on_grafts(della),
    "stitch": on_grafts(stitch),
    "wise": on_grafts(wise),
}
# Rules that thin grafts before they join them; of these, the ones in which a graft's company decides what is left of it.
THINNING = frozenset({"ties", "dare", "breadcrumbs", "tall", "della", "stitch"})
COMPARING = frozenset({"tall"})
CONFLICTS: Mapping[str, Callable[..., GraftStream]] = MappingProxyType(
    {"refuse": union_or_refuse, "first": union_first, "largest": union_largest, "mean": union_mean}
)
