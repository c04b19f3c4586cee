"""Ways to make one graft of several: one table, each rule a short function on grafts.

combine([g, h], rule="sum") == g + h
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from types import MappingProxyType

import numpy as np

from skillgraft.dtypes import round_once
from skillgraft.errors import InputError, Overlap, did_you_mean
from skillgraft.graft import Graft, total
from skillgraft.region import Region, places


def combine(
    grafts: Sequence[Graft], *, rule: str = "sum", conflict: str = "refuse", head: Graft | None = None
) -> Graft:
    """One graft of several. `conflict` says what the union does at entries that more than one graft changes."""
    if rule not in RULES:
        raise InputError(f"unknown rule {rule!r}; {did_you_mean(rule, RULES)}")
    if conflict not in CONFLICTS:
        raise InputError(f"unknown conflict rule {conflict!r}; {did_you_mean(conflict, CONFLICTS)}")
    if conflict != "refuse" and rule != "union":
        raise InputError(f"a conflict rule ({conflict!r}) belongs to rule 'union', found rule {rule!r}")
    if not grafts:
        raise InputError("combine needs at least one graft, found none")
    summed = total(grafts, head=head)  # refuses grafts of different bases
    # Heads take no part in a rule: they are joined, or chosen, once. The scope is that of all, whoever wins.
    bodies = [graft.without_heads() for graft in grafts]
    joined = CONFLICTS[conflict](bodies) if rule == "union" else RULES[rule](bodies)
    return replace(joined, region=joined.region.within(summed.region.scope), heads=summed.heads)


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


Rule = Callable[[Sequence[Graft]], Graft]
RULES: Mapping[str, Rule] = MappingProxyType({"sum": total, "union": union_or_refuse})
CONFLICTS: Mapping[str, Rule] = MappingProxyType(
    {"refuse": union_or_refuse, "first": union_first, "largest": union_largest, "mean": union_mean}
)
