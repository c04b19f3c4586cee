"""From a base and a tuned folder to a graft: find the region of a task's skill, cut the graft, measure what it keeps.

    located = localize("MiniLM", "tuned", task="sst2", density=1e-4, data=Data(shots=64))
    located.graft, located.scores["graft"]["accuracy"]

Everything about data and folders is checked before the model is loaded. Scores are those of the validation rows; the test
rows are `evaluate`'s alone. Several processes share the rows of each step; with `out`, a killed search resumes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from skillgraft.errors import InputError
from skillgraft.files import atomic
from skillgraft.files.graft_file import save
from skillgraft.measure.metrics import LOSSES
from skillgraft.opening.runtime import Runtime
from skillgraft.regions.search import NESTED, PAPER, Outcome, Searching, SearchPlan, Snapshots
from skillgraft.regions.tuned_pair import TunedPair, open_pair
from skillgraft.tasks.data import Data, TaskLike, as_rows, as_task
from skillgraft.tasks.task import Task
from skillgraft.values.graft import Graft

Point = Mapping[str, Any]


@dataclass(frozen=True)
class Localization:
    """What was found: the graft (with its scores in the provenance), and the scores of every density asked for.

    `nested` has the grafts of a nested curve, by density: each is a part of the next larger one. `trials` has every scale and
    control strength that was tried, with what they were compared by. `match` is there where tuned's answers were all there was to
    learn: the mean KL from tuned's distribution to base's and to the graft's, and which share of it is gone. `curve_kind` says
    what the points of the curve are: nested budgets of one search, or searches of their own.
    """

    graft: Graft
    curve: tuple[Point, ...] = ()
    nested: Mapping[float, Graft] = field(default_factory=dict)
    trials: tuple[Point, ...] = ()
    match: Point = field(default_factory=dict)
    curve_kind: str = NESTED

    @property
    def scores(self) -> Mapping[str, Any]:
        """Base, tuned and graft on the validation rows; empty where there were no labels."""
        found: Mapping[str, Any] = self.graft.info.get("scores", {}).get("validation", {})
        return found


def localize(
    base: str | Path,
    tuned: str | Path,
    *,
    task: TaskLike | None = None,
    match: TaskLike | None = None,
    controls: Sequence[TaskLike] = (),
    data: Data = Data(),
    out: str | Path | None = None,
    convert: bool = False,
    runtime: Runtime = Runtime(),
    **asked: Any,
) -> Localization:
    """Localize one task's skill. `asked` are fields of `SearchPlan` and options of its method: density=1e-4, steps=40 …

    Instead of a task, `match` names any rows on which tuned's own distribution is learned: a task, or a file of plain text.
    `controls` are tasks and texts on which the model should go on answering as base does. With `out` the graft is saved there;
    killed and called again with the same arguments, a learned region's search goes on where it was. `convert` rounds a tuned
    model of another number format to the base's.
    """
    plan = SearchPlan.of(**asked).seeded(data.seed)
    if out is not None:
        atomic.check_target(Path(out))
    of, others = _rows_of(task, match, plan), [as_rows(each) for each in controls]
    unlabelled = {of.name} if match is not None else set()
    more: dict[str, Any] = {
        "controls": others,
        "unlabelled": unlabelled,
        "data": data,
        "convert": convert,
        "runtime": runtime,
    }
    with open_pair(base, tuned, [of], plan=plan, **more) as pair:
        file = None if out is None else Path(out).with_name(f".{Path(out).name}.resume")
        snapshots = Snapshots(file, lambda: pair.identity)
        searching, outcome = _searched(pair, plan, snapshots, runtime)
        scores = {} if unlabelled else pair.scores(of.name, outcome.region, outcome.problem)
        reached = _match(pair, of.name, outcome) if unlabelled else {}
        points = _curve(searching, pair, outcome, of.name)
        nested = _nested(searching, pair, outcome, of.name)
        recipe = {**searching.plan.plain, "scale": outcome.scale, **asdict(data), "controls": list(pair.controls)}
        recipe |= {"search": outcome.found.facts} if outcome.found.facts else {}
        recipe |= {"trials": list(outcome.trials)} if outcome.trials else {}
        recipe |= {"match": reached} if reached else {}
        graft = (outcome.scale * pair.cut(outcome.region, of.name)).with_info(
            method=plan.method, recipe=recipe, scores={"validation": scores} if scores else None,
            command=runtime.command or None,
        )  # fmt: skip
        if out is not None and pair.opened.processes.is_main:
            try:
                save(graft, Path(out))
            finally:
                if Path(out).exists():  # ours, or that of a process which was faster
                    snapshots.delete(outcome.scales(plan))
    return Localization(graft, points, nested, outcome.trials, reached, plan.curve_kind)


def _rows_of(task: TaskLike | None, match: TaskLike | None, plan: SearchPlan) -> Task:
    """The rows that are learned from, whichever of both was given."""
    if (task is None) == (match is None):
        raise InputError("give a task, or with match= rows on which tuned's own answers are learned; one of them")
    if match is None:
        assert task is not None
        of = as_task(task)
        if plan.keep is not None and of.metric in LOSSES:
            raise InputError(
                f"task {of.name!r} is scored by {of.metric}, a loss, which has no share: ask for keep_gain"
            )
        return of
    if plan.keep is not None or plan.densities:
        raise InputError("without labels there is no score: ask for keep_gain instead of keep, and for no curve")
    return as_rows(match)


def _searched(pair: TunedPair, plan: SearchPlan, snapshots: Snapshots, runtime: Runtime) -> tuple[Searching, Outcome]:
    """The search, at one strength of the controls or at the best of several; the scale is settled at the first."""
    start = pair.start(plan.start)

    def at(strength: float, wanted: SearchPlan) -> tuple[Searching, Outcome]:
        own = pair.weighing_controls(strength)
        searching = Searching(own.problem, replace(wanted, control_strength=strength), own, snapshots, runtime)
        return searching, searching.best(start)

    if not pair.controls:
        searching = Searching(pair.problem, plan, pair, snapshots, runtime)
        return searching, searching.best(start)
    if not isinstance(plan.control_strength, str):
        return at(plan.control_strength, plan)
    tried: dict[float, tuple[Searching, Outcome, Point]] = {}

    def merit(strength: float) -> float:
        settled = replace(plan, scale=next(iter(tried.values()))[1].scale) if tried else plan
        searching, outcome = at(strength, settled)
        facts = pair.trial(outcome.problem, outcome.region)
        tried[strength] = searching, outcome, {"strength": strength, "entries": len(outcome.region), **facts}
        return facts["merit"]

    best = climbed(merit, first=1.0, factor=4.0, least=1 / 64, most=1024.0)
    searching, outcome, _ = tried[best]
    first = next(iter(tried.values()))[1]
    return searching, replace(outcome, trials=(*first.trials, *(facts for _, _, facts in tried.values())))


def climbed(merit: Callable[[float], float], *, first: float, factor: float, least: float, most: float) -> float:
    """The number of the highest merit on the way up from `first` by `factor`, or down where the first step up is worse."""
    best, highest = first, merit(first)
    for step in (factor, 1 / factor):
        at = first * step
        while least <= at <= most and (found := merit(at)) > highest:
            best, highest, at = at, found, at * step
        if best != first:
            break
    return best


def _match(pair: TunedPair, task: str, outcome: Outcome) -> Point:
    """How far base and graft are from tuned's distribution."""
    base, left = pair.distances(task)[0], -pair.score(outcome.problem, outcome.region)
    share = 1 - left / base if base > 0 else None
    return {"rows": len(pair.scored(task)), "base": base, "graft": left, "share": share}


def _nested(searching: Searching, pair: TunedPair, outcome: Outcome, task: str) -> dict[float, Graft]:
    """The grafts of a nested curve's densities: prefixes of one ranking, so they take no search."""
    plan = searching.plan
    return {
        density: (outcome.scale * pair.cut(searching.point(outcome, density, pair.start), task)).with_info(
            method=plan.method, recipe={**plan.plain, "density": density, "scale": outcome.scale}
        )
        for density in (plan.densities if plan.curve_kind == NESTED else ())
    }


def _curve(searching: Searching, pair: TunedPair, outcome: Outcome, task: str) -> tuple[Point, ...]:
    """The summary of every density of the plan. P1's points are searches: those that are done are kept for a killed run."""
    plan, densities = searching.plan, searching.plan.densities
    snapshot = None
    if densities and plan.curve_kind == PAPER:
        snapshot = searching.snapshots.at(outcome.scale, "curve", densities=densities, **plan.decisive)
    processes = pair.opened.processes
    earlier = snapshot.read() if snapshot and processes.is_main else None
    # The main process's: nodes need not share a disk.
    points: list[Point] = list(processes.facts_of_main(earlier[1]["points"] if earlier else [], pair.opened.device))
    for density in densities[len(points) :]:
        region = searching.point(outcome, density, pair.start)
        found = pair.summary(task, region, outcome.problem)
        points.append({"density": density, "entries": len(region), **found})
        if snapshot and processes.is_main:
            snapshot.write({}, {"points": points})
    return tuple(points)
