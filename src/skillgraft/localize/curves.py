"""Scores over density: nested budgets of one search, or P1's curve with a search of its own for every density."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from skillgraft.localize.methods import Found
from skillgraft.localize.workplace import Workplace
from skillgraft.movement import count_of
from skillgraft.region import Region
from skillgraft.training.snapshot import Snapshot

Point = Mapping[str, Any]
NESTED, PAPER = "nested", "paper"
# What each curve is, in words for whoever reads a table.
KINDS: Mapping[str, str] = {
    NESTED: "nested budgets of one search",
    PAPER: "a search of its own from γ_base = the most moved entries of each density (P1)",
}


def nested_curve(place: Workplace, found: Found, densities: Sequence[float]) -> tuple[Point, ...]:
    """Every density's region is a prefix of one ranking."""
    counts = {density: count_of(density, place.problem.scope) for density in densities}
    return tuple(_point(place, density, found.ranking.top(count)) for density, count in counts.items())


def paper_curve(
    place: Workplace, densities: Sequence[float], search: Callable[[Region], Region], *, kept: Snapshot | None
) -> tuple[Point, ...]:
    """P1's curve (fig. 2): for each density s a search from γ_base = top-s; its region has about that many entries.

    Points that are done are kept in `kept`, so that a killed run does not search for them again.
    """
    earlier = kept.read() if kept else None
    points: list[Point] = list(earlier[1]["points"]) if earlier else []
    for density in densities[len(points) :]:
        points.append(_point(place, density, search(place.start(density))))
        if kept and place.problem.processes.is_main:
            kept.write({}, {"points": points})
    return tuple(points)


def _point(place: Workplace, density: float, region: Region) -> Point:
    return {"density": density, "entries": len(region), **place.told(region)}
