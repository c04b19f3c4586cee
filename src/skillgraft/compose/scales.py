"""How much of each delta to add: scales chosen on validation rows (P2, task addition).

graft = search_scale("MiniLM", [g, h], tasks=["sst2", "trec"], rule="ties", data=Data(shots=64, validation_rows=200))

A point's merit is the mean over tasks of accuracy / the same method's single-task accuracy on the same rows; of tasks that are
scored by a loss (prompts completed), of the improvement over base / that of the task's own graft. A rule that thins
grafts is measured by its thinned grafts' own accuracy, as P2 does it; that of the whole grafts stands beside it. Of points that
are equally good the one with the smaller scale wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from skillgraft.compose.rules import THINNING, combine, thinned
from skillgraft.errors import InputError, listed
from skillgraft.folders.extract import extract
from skillgraft.measure.metrics import LOSSES, METRICS
from skillgraft.opening.executors import Executor, executor
from skillgraft.opening.runtime import Progress, Runtime, silent
from skillgraft.predictions.completions import Completions
from skillgraft.predictions.predictions import AnyPredictions
from skillgraft.task_model import VALIDATION, TaskModel
from skillgraft.tasks.data import Data, TaskLike
from skillgraft.training.linearised import Tangent, tangent
from skillgraft.values.graft import Graft, graft_of, heads_alone


@dataclass(frozen=True, eq=False)
class Scaled:
    """Some grafts over an opened base; `head` is the graft whose heads are kept where they bring different ones."""

    opened: TaskModel
    grafts: tuple[Graft, ...]
    head: Graft | None = None
    linear: bool = False
    _tangents: dict[str, Tangent] = field(default_factory=dict, repr=False)

    @property
    def tasks(self) -> tuple[str, ...]:
        return self.opened.tasks

    def predict(self, *scales: float, tasks: Sequence[str] | None = None) -> dict[str, AnyPredictions]:
        """What the model at these scales, one for each graft, answers about the validation rows of tasks (all by default)."""
        if len(scales) != len(self.grafts):
            raise InputError(f"{len(self.grafts)} grafts take one scale each, found {len(scales)} scales")
        wanted = self.tasks if tasks is None else tasks
        if self.linear:
            by_index = dict(zip(map(str, range(len(self.grafts))), scales, strict=True))
            return {task: self._tangent(task).at(by_index) for task in wanted}
        graft = weighted_sum(self.grafts, scales, head=self.head)
        self.opened.check_heads(graft)
        return self.opened.predict(graft, tasks=wanted)

    def _tangent(self, task: str) -> Tangent:
        """The model linearised around the base along these grafts, by their index, for a task's rows."""
        if task not in self._tangents:
            heads = combine([heads_alone(graft) for graft in self.grafts], head=self.head)
            self.opened.check_heads(heads)
            bodies = {str(index): graft.without_heads() for index, graft in enumerate(self.grafts)}
            with self.opened.holding(heads if heads.heads else None):
                self._tangents[task] = tangent(self.opened, task, bodies)
        return self._tangents[task]


def at_scale(graft: Graft, scale: float) -> Graft:
    """scale · graft; at scale 0 its heads alone, which answers the same without writing every entry's own number again."""
    return scale * graft if scale else heads_alone(graft)


def weighted_sum(grafts: Sequence[Graft], scales: Sequence[float], *, head: Graft | None = None) -> Graft:
    """Σ scale_t · graft_t. A graft at scale 0 is left out, so that the others' numbers are exactly what they are alone."""
    parts = [at_scale(graft, scale) for graft, scale in zip(grafts, scales, strict=True)]
    return combine([part for part in parts if len(part)] or parts, head=head)


def scale_grid(points: int, *, most: float = 1.0) -> tuple[float, ...]:
    """`points` equally spaced scales from 0 to `most`; 21 of them are 0, 0.05, … 1 (P2's sums)."""
    if points < 2:
        raise InputError(f"a search needs at least 2 points, found {points}")
    if not 0 < most < float("inf"):
        raise InputError(f"the largest scale must be a number above 0, found {most}")
    return tuple(most * number / (points - 1) for number in range(points))


def as_graft(value: Graft | str | Path, base: str | Path) -> Graft:
    """A graft given as a value, as its file, or as a tuned folder of the base: then all that it changes, without heads."""
    if not isinstance(value, Graft) and Path(value).is_dir():
        return extract(base, value).without_heads()
    return graft_of(value)


def own_grafts(tasks: Sequence[str], grafts: Sequence[Graft]) -> dict[str, Graft]:
    """Which graft holds which task's skill: as the grafts' provenance says, else in the order given, one for each task.

    A single graft is that of every task.
    """
    if len(grafts) == 1:
        return dict.fromkeys(tasks, grafts[0])
    named = {graft.info.text("task"): graft for graft in grafts}
    if len(named) == len(grafts) and named.keys() >= set(tasks):
        return {task: named[task] for task in tasks}
    if len(grafts) != len(tasks):
        expected = f"one graft for each of {', '.join(tasks)}, in order"
        raise InputError(
            f"a combination is compared with each task's own graft: expected {expected}; found {len(grafts)}"
        )
    return dict(zip(tasks, grafts, strict=True))


ROWS = 200  # validation rows of each task: enough to tell scales apart, cheap enough for twenty-one of them
POINTS = 21


@dataclass(frozen=True)
class Worth:
    """What a model is worth on each task: accuracy; where prompts are completed the task's own metric, and where that is a loss
    the improvement over base (`losses` has base's), so that normalising it gives the relative gain.
    """

    losses: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def over(cls, opened: TaskModel, tasks: Sequence[str]) -> Worth:
        improved = [task for task in tasks if opened.rows.readout(task).task.metric in LOSSES]
        base = opened.predict(tasks=improved) if improved else {}
        return cls({task: METRICS["score"](found) for task, found in base.items()})

    def of(self, found: Mapping[str, AnyPredictions]) -> dict[str, float]:
        return {task: self._of(task, predictions) for task, predictions in found.items()}

    def _of(self, task: str, predictions: AnyPredictions) -> float:
        if task in self.losses:
            return self.losses[task] - METRICS["score"](predictions)
        return METRICS["score" if isinstance(predictions, Completions) else "accuracy"](predictions)


@dataclass(frozen=True)
class Opening:
    """How a base is opened with the validation rows of tasks, wherever that is."""

    base: str | Path
    tasks: Sequence[TaskLike]
    data: Data
    dtype: str | None = None
    device: str | None = None

    def open(self) -> TaskModel:
        return TaskModel.open(
            self.base, self.tasks, data=self.data, dtype=self.dtype, device=self.device, splits=(VALIDATION,)
        )


@dataclass(frozen=True)
class Spread:
    """Points measured side by side: every worker opens the base itself and takes its share of them."""

    workers: Executor
    opening: Opening

    def worths(self, along: Scaled, settings: Sequence[tuple[float, ...]]) -> list[dict[str, float]]:
        """What the model is worth at each setting, in order; the same numbers as here where threads are as many."""
        count = max(1, min(len(settings), self.workers.slots))
        about = self.opening, along.grafts, along.head, along.linear
        jobs = [self.workers.submit(_worths, *about, settings[share::count]) for share in range(count)]
        found = {share + count * n: each for share, job in enumerate(jobs) for n, each in enumerate(job.result())}
        return [found[place] for place in range(len(settings))]


def _worths(
    opening: Opening, grafts: tuple[Graft, ...], head: Graft | None, linear: bool, settings: Sequence[tuple[float, ...]]
) -> list[dict[str, float]]:
    along = Scaled(opening.open(), grafts, head, linear)
    worth = Worth.over(along.opened, along.tasks)
    return [worth.of(along.predict(*scales)) for scales in settings]


@dataclass(frozen=True)
class Point:
    """One setting of the scales: every task's accuracy there (see `Worth`), and their normalised mean.

    `improved` are the tasks whose number is an improvement over the base.
    """

    scales: tuple[float, ...]
    accuracy: Mapping[str, float]
    merit: float
    improved: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        scales = list(self.scales) if len(self.scales) > 1 else self.scales[0]
        parts = {"accuracy": [], "improvement": []} if self.improved else {"accuracy": list(self.accuracy)}
        for task in self.accuracy if self.improved else ():
            parts["improvement" if task in self.improved else "accuracy"].append(task)
        found = {name: {task: self.accuracy[task] for task in tasks} for name, tasks in parts.items()}
        return {"scale": scales, **found, "normalised": self.merit}


@dataclass(frozen=True)
class ScaleTrials:
    """Every point in the order in which it was tried. `singles` is what accuracies were divided by.

    `whole` has the accuracies of the grafts before a rule thinned them, where it does.
    """

    points: tuple[Point, ...]
    singles: Mapping[str, float]
    whole: Mapping[str, float] = field(default_factory=dict)

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
        found = {"best": self.best.as_json(), "singles": dict(self.singles), "points": points}
        if not self.whole:
            return found
        beside = {"singles": dict(self.whole), "normalised": _normalised(self.best.accuracy, self.whole)}
        return {**found, "whole": beside}


def _normalised(accuracy: Mapping[str, float], singles: Mapping[str, float]) -> float | None:
    """The mean over tasks of accuracy / single-task accuracy; None where one of these is 0."""
    if not all(singles.values()):
        return None
    return sum(accuracy[task] / singles[task] for task in accuracy) / len(accuracy)


def search_scale(
    base: str | Path,
    grafts: Sequence[Graft | str | Path],
    *,
    tasks: Sequence[TaskLike],
    rule: str = "sum",
    data: Data = Data(validation_rows=ROWS),
    runtime: Runtime = Runtime(),
    jobs: int = 1,
    on: str | None = None,
    **options: Any,
) -> Graft:
    """One graft of several at the scale that suits all tasks best on validation rows; `add_skills` has the options.

    A graft may be given as its file, or as a tuned folder that stands for all that it changes. `data` must be what the
    grafts were trained with: it says which rows validate. The search is in the graft's recipe. Scales are tried here, in several
    processes (`jobs`) or on a Ray cluster (`on`), whose nodes must all see base and data.
    """
    runtime.check_whole("searching a scale")
    opening = Opening(base, tasks, data, runtime.dtype, runtime.device)
    opened, given = opening.open(), [as_graft(each, base) for each in grafts]
    with executor(jobs, on=on) as workers:
        spread = None if jobs == 1 and on is None else Spread(workers, opening)
        graft, search = add_skills(opened, given, rule=rule, progress=runtime.progress, spread=spread, **options)
    made_of = {"tasks": list(opened.tasks), "grafts": [each.digest for each in given]}
    recipe = {"rule": rule, **_recorded(options), **made_of, **asdict(data), "search": search.as_json()}
    return graft.with_info(scores=None, recipe=recipe, command=runtime.command or None)


def _recorded(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, a graft by its digest."""
    return {
        name: value.digest if isinstance(value, Graft) else value
        for name, value in options.items()
        if value is not None
    }


def add_skills(
    opened: TaskModel,
    grafts: Sequence[Graft],
    *,
    rule: str = "sum",
    head: Graft | None = None,
    per_task_scales: bool = False,
    points: int = POINTS,
    linear: bool = False,
    or_base: bool = False,
    progress: Progress = silent,
    spread: Spread | None = None,
    **options: Any,
) -> tuple[Graft, ScaleTrials]:
    """Combine grafts by a rule and scale the result as suits all tasks best; `options` are the rule's own.

    `points` scales from 0 to 1 are tried; a single point is the combination as it is, at scale 1. Where no scale above 0 is
    better than the base, that is an error; with `or_base` it is scale 0, as a table of measured methods has it.
    """
    if per_task_scales and rule != "sum":
        raise InputError(f"one scale for each graft is for rule 'sum', found {rule!r}: other rules do not add up")
    whole = single_scores(opened, own_grafts(opened.tasks, grafts), linear=linear)
    if per_task_scales:
        along = Scaled(opened, tuple(grafts), head, linear)
        search = coordinate_search(along, whole, points=points, progress=progress, spread=spread)
        result = weighted_sum(grafts, search.best.scales, head=head)
    else:
        combined = combine(grafts, rule=rule, head=head, **options)
        singles, beside = whole, {}
        if rule in THINNING:
            parts = thinned(grafts, rule=rule, **options)
            singles, beside = single_scores(opened, own_grafts(opened.tasks, parts), linear=linear), whole
        along = Scaled(opened, (combined,), linear=linear)
        search = grid_search(along, singles, points=points, progress=progress, spread=spread)
        search = replace(search, whole=beside)
        result = search.scale * combined
    if not any(search.best.scales) and not or_base:
        found = ", ".join(f"{task} {accuracy:.4f}" for task, accuracy in search.best.accuracy.items())
        raise InputError(f"no scale above 0 is better than the base itself ({found}): these skills do not add up")
    return result, search


def single_scores(opened: TaskModel, grafts: Mapping[str, Graft], *, linear: bool = False) -> dict[str, float]:
    """Each task's accuracy with its own graft alone: what a combination is normalised by."""
    worth = Worth.over(opened, list(grafts))
    return {
        task: worth.of(Scaled(opened, (graft,), linear=linear).predict(1.0, tasks=[task]))[task]
        for task, graft in grafts.items()
    }


def grid_search(
    along: Scaled,
    singles: Mapping[str, float] | None = None,
    *,
    points: int = POINTS,
    most: float = 1.0,
    progress: Progress = silent,
    spread: Spread | None = None,
) -> ScaleTrials:
    """base + scale · delta for `points` scales in [0, most]; a single point is `most`.

    Without `singles` accuracies are not normalised.
    """
    measured = _Points(along, singles, spread)
    grid = (most,) if points == 1 else scale_grid(points, most=most)
    found = []
    for number, point in enumerate(measured.at([(scale,) for scale in grid]), start=1):
        found.append(point)
        progress(number, len(grid), {})
    return ScaleTrials(tuple(found), measured.singles)


def coordinate_search(
    along: Scaled,
    singles: Mapping[str, float] | None = None,
    *,
    points: int = POINTS,
    most: float = 1.0,
    rounds: int = 2,
    progress: Progress = silent,
    spread: Spread | None = None,
) -> ScaleTrials:
    """One scale for each graft of a sum, by coordinate search: beyond P2, which has one for all.

    It begins at the best common scale; each round tries the whole grid for one graft after the other, the others staying as
    they are, and it ends when a round changes nothing. No point is tried twice.
    """
    count = len(along.grafts)
    if not count:
        raise InputError("a search needs at least one graft, found none")
    measured = _Points(along, singles, spread)
    grid = scale_grid(points, most=most)
    tried: dict[tuple[float, ...], Point] = {}
    planned = len(grid) * (1 + rounds * count)

    def best_of(candidates: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
        for point in measured.at([scales for scales in candidates if scales not in tried]):
            tried[point.scales] = point
            progress(len(tried), planned, {})
        return ScaleTrials(tuple(tried.values()), measured.singles).best.scales

    here = best_of([(scale,) * count for scale in grid])
    for _ in range(rounds):
        start = here
        for index in range(count):
            here = best_of([(*here[:index], scale, *here[index + 1 :]) for scale in grid])
        if here == start:
            break
    progress(planned, planned, {})
    return ScaleTrials(tuple(tried.values()), measured.singles)


class _Points:
    """Turns scales into points; the single-task accuracies are checked before anything runs."""

    def __init__(self, along: Scaled, singles: Mapping[str, float] | None, spread: Spread | None = None) -> None:
        self.along, self.spread, tasks = along, spread, along.tasks
        self.singles = dict.fromkeys(tasks, 1.0) if singles is None else dict(singles)
        if self.singles.keys() != set(tasks):
            raise InputError(
                f"single-task accuracies are needed for {listed(tasks)}, found {listed(self.singles) or 'none'}"
            )
        zero = [task for task, accuracy in self.singles.items() if not accuracy > 0]
        if zero:
            raise InputError(
                f"the single-task accuracy of {listed(zero)}, or its improvement over the base, is not above 0 on these rows: "
                "nothing to normalise by"
            )
        self.worth = Worth.over(along.opened, tasks)

    def at(self, settings: Sequence[tuple[float, ...]]) -> Iterator[Point]:
        """The points of several settings, in order; each as soon as it is measured where that is done here."""
        worths = (
            (self.worth.of(self.along.predict(*scales)) for scales in settings)
            if self.spread is None or not settings
            else self.spread.worths(self.along, settings)
        )
        for scales, accuracy in zip(settings, worths, strict=True):
            merit = _normalised(accuracy, self.singles)
            assert merit is not None, "accuracies of 0 are refused above"
            yield Point(scales, accuracy, merit, tuple(self.worth.losses))
