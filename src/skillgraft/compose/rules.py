"""Rules that make one graft of several: one table, each rule a short function on grafts with its own keyword options.

combine([g, h], rule="sum") == g + h
combine([g, h], rule="ties", keep=0.2)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from types import MappingProxyType
from typing import Any

import numpy as np

from skillgraft.compose.merging import added, breadcrumbs, dare, della, tall, ties, wise
from skillgraft.compose.thinning import check_share, largest
from skillgraft.errors import InputError, Overlap, did_you_mean, listed
from skillgraft.values.graft import Graft, GraftLike, graft_of, total
from skillgraft.values.numbers import round_once
from skillgraft.values.region import Region, places


def combine(grafts: Sequence[GraftLike], *, rule: str = "sum", head: GraftLike | None = None, **options: Any) -> Graft:
    """One graft of several; `options` are the rule's own keywords.

    Heads take no part in a rule: they are joined, or `head` says whose are kept. The scope is that of all grafts, whoever
    wins; the provenance is what all agree on.
    """
    check_rule(rule, options)
    if not grafts:
        raise InputError("combine needs at least one graft, found none")
    given = [graft_of(graft) for graft in grafts]
    kept = None if head is None else graft_of(head)
    frame = total([heads_alone(graft) for graft in given], head=kept)  # refuses grafts of different bases
    bodies = [graft.without_heads() if graft.heads else graft for graft in given]
    joined = RULES[rule](bodies, **options)
    return replace(joined, region=joined.region.within(frame.region.scope), heads=frame.heads, info=frame.info)


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


def heads_alone(graft: Graft) -> Graft:
    """The graft without its entries: scope, heads and provenance stay."""
    return replace(graft, region=Region(graft.region.scope, {}), before={}, change={})


def add_up(grafts: Sequence[Graft]) -> Graft:
    """The sum, where a missing site counts as 0: what `total` gives, many times faster where grafts are dense."""
    if len(grafts) == 1:
        return grafts[0]
    summed = added(grafts)
    each_has_its_own = len(summed) == sum(map(len, grafts))
    one_scale = all(graft.form == "exact" and graft.scale == grafts[0].scale for graft in grafts)
    # Then nothing is added up, and `total` keeps the exact form.
    return total(grafts) if each_has_its_own and one_scale else summed


def union(grafts: Sequence[Graft], *, conflict: str = "refuse") -> Graft:
    """Every entry of any graft; `conflict` says what happens at entries that more than one graft changes."""
    if conflict not in CONFLICTS:
        raise InputError(f"unknown conflict rule {conflict!r}; {did_you_mean(conflict, CONFLICTS)}")
    total(grafts)  # refuses grafts that disagree about the base's numbers, also where only one of them is kept
    return CONFLICTS[conflict](grafts)


def union_or_refuse(grafts: Sequence[Graft]) -> Graft:
    """The union of grafts that share no entry; what they share is refused."""
    region = grafts[0].region
    for graft in grafts[1:]:
        shared = len(region & graft.region)
        if shared:
            others = ", ".join(name for name in CONFLICTS if name != "refuse")
            raise Overlap(
                f"{shared} entries are in more than one graft; use rule 'sum', or choose a conflict rule: {others}"
            )
        region = region | graft.region
    return total(grafts)


def union_first(grafts: Sequence[Graft]) -> Graft:
    """Where grafts share an entry, the first in the list has it."""
    parts = [grafts[0]]
    for graft in grafts[1:]:
        parts.append(graft.outside(_all_of(parts)))
    return _put_together(parts)


def union_largest(grafts: Sequence[Graft]) -> Graft:
    """Where grafts share an entry, the one that changes it most has it; of equal ones the first."""
    parts = [grafts[0]]
    for graft in grafts[1:]:
        parts = [part.outside(_larger(graft, than=part)) for part in parts]
        parts.append(graft.outside(_all_of(parts)))
    return _put_together(parts)


def union_mean(grafts: Sequence[Graft]) -> Graft:
    """Where grafts share an entry, it gets the mean of their changes, rounded once."""
    summed = total(grafts)
    if len(summed) == sum(map(len, grafts)):
        return summed
    sums = {name: np.zeros(len(at)) for name, at in summed.region.sites.items()}
    counts = {name: np.zeros(len(at)) for name, at in summed.region.sites.items()}
    for graft in sorted(grafts, key=lambda graft: graft.digest):  # the same bits for any order of the list
        for name, at in graft.region.sites.items():
            where = places(at, summed.region.sites[name])
            sums[name][where] += graft.delta(name)
            counts[name][where] += 1
    means = {name: round_once(sums[name] / counts[name], np.dtype(np.float32)) for name in sums}
    return replace(summed, change=means, form="arithmetic", scale=1.0)


def stitch(grafts: Sequence[Graft], *, keep: float | None = None) -> Graft:
    """Localize-and-Stitch (He et al. 2024): small regions side by side; where several meet, the mean of their changes.

    Each graft's own entries are its region, localized as one likes. `keep` takes a region without data first: the largest
    |delta|, at most so dense (the paper has 0.05 for texts). The paper searches no scale. Grafts that share no entry stay exact.
    """
    if keep is not None:
        check_share("keep", keep)
        grafts = [largest(graft, keep) for graft in grafts]
    return union_mean(grafts)


def _all_of(parts: Sequence[Graft]) -> Region:
    return reduce(or_, (part.region for part in parts))


def _put_together(parts: Sequence[Graft]) -> Graft:
    """The sum. A part without entries must not count: with another scale it would end the exact form."""
    return total([part for part in parts if len(part)] or parts[:1])


def _larger(graft: Graft, *, than: Graft) -> Region:
    shared = graft.region & than.region
    won = {}
    for name, at in shared.sites.items():
        mine = np.abs(graft.delta(name)[places(at, graft.region.sites[name])])
        won[name] = at[mine > np.abs(than.delta(name)[places(at, than.region.sites[name])])]
    return Region(shared.scope, won)


Rule = Callable[..., Graft]
# A plain table: a rule of one's own is one more row, added from anywhere.
RULES: dict[str, Rule] = {
    "sum": add_up,
    "union": union,
    "ties": ties,
    "dare": dare,
    "breadcrumbs": breadcrumbs,
    "tall": tall,
    "della": della,
    "stitch": stitch,
    "wise": wise,
}
# Rules that thin grafts before they join them; of these, the ones in which a graft's company decides what is left of it.
THINNING = frozenset({"ties", "dare", "breadcrumbs", "tall", "della", "stitch"})
COMPARING = frozenset({"tall"})
CONFLICTS: Mapping[str, Rule] = MappingProxyType(
    {"refuse": union_or_refuse, "first": union_first, "largest": union_largest, "mean": union_mean}
)
