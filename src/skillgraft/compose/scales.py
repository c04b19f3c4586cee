"""How much of each delta to add: scales chosen on validation rows (P2, task addition).

combined, search = add_skills(bench, [g, h], rule="ties")
search.scale, search.best.accuracy["sst2"]

A point's merit is the mean over tasks of accuracy / the same method's single-task accuracy on the same rows. Of points that
are equally good the one with the smaller scale wins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from skillgraft.compose.bench import Way, Workbench, scale_grid, weighted_sum
from skillgraft.compose.judged import own_grafts
from skillgraft.compose.rules import combine
from skillgraft.errors import InputError, listed
from skillgraft.graft import Graft
from skillgraft.measure.metrics import METRICS
from skillgraft.movement import Progress, silent

POINTS = 21


@dataclass(frozen=True)
class Point:
    """One setting of the scales: every task's accuracy there, and their normalised mean."""

    scales: tuple[float, ...]
    accuracy: Mapping[str, float]
    merit: float

    def as_json(self) -> dict[str, Any]:
        scales = list(self.scales) if len(self.scales) > 1 else self.scales[0]
        return {"scale": scales, "accuracy": dict(self.accuracy), "normalised": self.merit}


@dataclass(frozen=True)
class ScaleSearch:
    """Every point in the order in which it was tried. `singles` is what accuracies were divided by."""

    points: tuple[Point, ...]
    singles: Mapping[str, float]

    @property
    def best(self) -> Point:
        """The point of the largest merit; of equal ones the one with the smallest scales."""
        # Equal shares add up to sums that differ in the last bit.
        return min(self.points, key=lambda point: (-round(point.merit, 12), sum(point.scales), point.scales))

    @property
    def scale(self) -> float:
        """The chosen scale of a search over one."""
        (scale,) = self.best.scales
        return scale

    def as_json(self) -> dict[str, Any]:
        points = [point.as_json() for point in self.points]
        return {"best": self.best.as_json(), "singles": dict(self.singles), "points": points}


def add_skills(
    bench: Workbench,
    grafts: Sequence[Graft],
    *,
    rule: str = "sum",
    head: Graft | None = None,
    per_task_scales: bool = False,
    points: int = POINTS,
    progress: Progress = silent,
    **options: Any,
) -> tuple[Graft, ScaleSearch]:
    """Combine grafts by a rule and scale the result as suits all tasks of the bench best; `options` are the rule's own."""
    if per_task_scales and rule != "sum":
        raise InputError(f"one scale for each graft is for rule 'sum', found {rule!r}: other rules do not add up")
    singles = single_scores(bench, own_grafts(bench.tasks, grafts))
    rest: dict[str, Any] = {"singles": singles, "points": points, "progress": progress}
    if per_task_scales:
        search = search_scales(bench, grafts, head=head, **rest)
        result = weighted_sum(grafts, search.best.scales, head=head)
    else:
        whole = combine(grafts, rule=rule, head=head, **options)
        search = search_scale(bench, whole, **rest)
        result = search.scale * whole
    if not any(search.best.scales):
        found = ", ".join(f"{task} {accuracy:.4f}" for task, accuracy in search.best.accuracy.items())
        raise InputError(f"no scale above 0 is better than the base itself ({found}): these skills do not add up")
    return result, search


def single_scores(bench: Workbench, grafts: Mapping[str, Graft]) -> dict[str, float]:
    """Each task's accuracy with its own graft alone: what a combination is normalised by."""
    return {task: METRICS["accuracy"](bench.said(graft, tasks=[task])[task]) for task, graft in grafts.items()}


def search_scale(
    bench: Workbench,
    graft: Graft,
    *,
    singles: Mapping[str, float] | None = None,
    points: int = POINTS,
    most: float = 1.0,
    progress: Progress = silent,
) -> ScaleSearch:
    """base + scale · delta for `points` scales in [0, most]. Without `singles` accuracies are not normalised."""
    judge = _Judge(bench.along(graft), singles)
    grid = scale_grid(points, most=most)
    found = []
    for number, scale in enumerate(grid, start=1):
        found.append(judge.point((scale,)))
        progress(number, len(grid))
    return ScaleSearch(tuple(found), judge.singles)


def search_scales(
    bench: Workbench,
    grafts: Sequence[Graft],
    *,
    singles: Mapping[str, float] | None = None,
    head: Graft | None = None,
    points: int = POINTS,
    most: float = 1.0,
    rounds: int = 2,
    progress: Progress = silent,
) -> ScaleSearch:
    """One scale for each graft of a sum, by coordinate search: beyond P2, which has one for all.

    It begins at the best common scale; each round tries the whole grid for one graft after the other, the others staying as
    they are, and it ends when a round changes nothing. No point is tried twice.
    """
    if not grafts:
        raise InputError("a search needs at least one graft, found none")
    judge = _Judge(bench.along(*grafts, head=head), singles)
    grid = scale_grid(points, most=most)
    tried: dict[tuple[float, ...], Point] = {}
    planned = len(grid) * (1 + rounds * len(grafts))

    def best_of(candidates: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
        for scales in candidates:
            if scales not in tried:
                tried[scales] = judge.point(scales)
                progress(len(tried), planned)
        return ScaleSearch(tuple(tried.values()), judge.singles).best.scales

    here = best_of([(scale,) * len(grafts) for scale in grid])
    for _ in range(rounds):
        start = here
        for place in range(len(grafts)):
            here = best_of([(*here[:place], scale, *here[place + 1 :]) for scale in grid])
        if here == start:
            break
    progress(planned, planned)
    return ScaleSearch(tuple(tried.values()), judge.singles)


class _Judge:
    """Turns scales into points; the single-task accuracies are checked before anything runs."""

    def __init__(self, way: Way, singles: Mapping[str, float] | None) -> None:
        self.way, tasks = way, way.bench.tasks
        self.singles = dict.fromkeys(tasks, 1.0) if singles is None else dict(singles)
        if self.singles.keys() != set(tasks):
            raise InputError(
                f"single-task accuracies are needed for {listed(tasks)}, found {listed(self.singles) or 'none'}"
            )
        zero = [task for task, accuracy in self.singles.items() if not accuracy > 0]
        if zero:
            raise InputError(f"the single-task accuracy of {listed(zero)} is 0 on these rows: nothing to normalise by")

    def point(self, scales: tuple[float, ...]) -> Point:
        accuracy = {task: METRICS["accuracy"](said) for task, said in self.way.said(*scales).items()}
        merit = sum(accuracy[task] / self.singles[task] for task in accuracy) / len(accuracy)
        return Point(scales, accuracy, merit)
