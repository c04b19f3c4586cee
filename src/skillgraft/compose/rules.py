"""Rules that make one graft of several: one table, each rule a short function on grafts with its own keyword options.

combine([g, h], rule="sum") == g + h
combine([g, h], rule="ties", keep=0.2)
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from skillgraft.compose.merging import breadcrumbs, dare, della, tall, ties, wise
from skillgraft.compose.thinning import check_share, largest
from skillgraft.errors import InputError, Overlap, did_you_mean, listed
from skillgraft.values.graft import Graft, GraftLike, heads_alone, stream_of, total
from skillgraft.values.joining import averaged, chosen, first_holder, framed, largest_holder, side_by_side, summed
from skillgraft.values.naming import Scales, called, scales_of
from skillgraft.values.stream import GraftStream


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
