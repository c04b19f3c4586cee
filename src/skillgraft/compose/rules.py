"""Ways to make one graft of several: one table, each rule a short function on grafts.

combine([g, h], rule="sum") == g + h
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

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
    # Heads take no part in a rule: they are joined, or chosen, once.
    heads = total(grafts, head=head).heads
    bodies = [graft.without_heads() for graft in grafts]
    joined = CONFLICTS[conflict](bodies) if rule == "union" else RULES[rule](bodies)
    return Graft(
        joined.region,
        joined.before,
        joined.change,
        form=joined.form,
        scale=joined.scale,
        heads=heads,
        base_fingerprint=joined.base_fingerprint,
        info=joined.info,
    )


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
    result = grafts[0]
    for graft in grafts[1:]:
        result = total([result, graft.outside(result.region)])
    return result


def union_largest(grafts: Sequence[Graft]) -> Graft:
    """Where grafts share an entry, the one that changes it most has it; of equal ones the first."""
    result = grafts[0]
    for graft in grafts[1:]:
        won = _larger(graft, than=result)
        result = total([result.outside(won), graft & won, graft.outside(result.region)])
    return result


def union_mean(grafts: Sequence[Graft]) -> Graft:
    """Where grafts share an entry, it gets the mean of their changes."""
    summed = total(grafts)
    counts = {name: np.zeros(len(at), np.int64) for name, at in summed.region.sites.items()}
    for graft in grafts:
        for name, at in graft.region.sites.items():
            counts[name][places(at, summed.region.sites[name])] += 1
    parts = []
    for count in range(1, len(grafts) + 1):
        sites = {name: at[counts[name] == count] for name, at in summed.region.sites.items()}
        parts.append((1 / count) * (summed & Region(summed.region.scope, sites)))
    return total([part for part in parts if len(part)] or [summed])


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
