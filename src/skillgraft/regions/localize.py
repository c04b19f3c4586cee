"""From a base and a tuned folder to a graft: find the region of a task's skill, cut the graft, measure what it keeps.

    located = localize("MiniLM", "tuned", task="sst2", density=1e-4, data=Data(shots=64))
    located.graft, located.scores["graft"]["accuracy"]

Everything about data and folders is checked before the model is loaded. Scores are those of the validation rows; the test
rows are `evaluate`'s alone. Several processes share the rows of each step; with `out`, a killed search resumes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from skillgraft.files import atomic
from skillgraft.files.graft_file import save
from skillgraft.opening.runtime import Runtime
from skillgraft.regions.search import NESTED, PAPER, Outcome, Searching, SearchPlan, Snapshots
from skillgraft.regions.tuned_pair import TunedPair, open_pair
from skillgraft.tasks.data import Data, TaskLike, as_task
from skillgraft.values.graft import Graft

Point = Mapping[str, Any]


@dataclass(frozen=True)
class Localization:
    """What was found: the graft (with its scores in the provenance), and the scores of every density asked for.

    `nested` has the grafts of a nested curve, by density: each is a part of the next larger one.
    """

    graft: Graft
    curve: tuple[Point, ...] = ()
    nested: Mapping[float, Graft] = field(default_factory=dict)

    @property
    def scores(self) -> Mapping[str, Any]:
        """Base, tuned and graft on the validation rows."""
        found: Mapping[str, Any] = self.graft.info["scores"]["validation"]
        return found


def localize(
    base: str | Path,
    tuned: str | Path,
    *,
    task: TaskLike,
    data: Data = Data(),
    out: str | Path | None = None,
    convert: bool = False,
    runtime: Runtime = Runtime(),
    **asked: Any,
) -> Localization:
    """Localize one task's skill. `asked` are fields of `SearchPlan` and options of its method: density=1e-4, steps=40 …

    With `out` the graft is saved there; killed and called again with the same arguments, a learned region's search goes on
    where it was. `convert` rounds a tuned model of another number format to the base's.
    """
    plan = SearchPlan.of(**asked).seeded(data.seed)
    if out is not None:
        atomic.check_target(Path(out))
    name = as_task(task).name
    with open_pair(base, tuned, [task], plan=plan, data=data, convert=convert, runtime=runtime) as pair:
        file = None if out is None else Path(out).with_name(f".{Path(out).name}.resume")
        snapshots = Snapshots(file, lambda: pair.identity)
        searching = Searching(pair.problem, plan, pair, snapshots, runtime)
        outcome = searching.best(pair.start(plan.start))
        scores = pair.scores(name, outcome.region, outcome.problem)
        points = _curve(searching, pair, outcome, name)
        nested = _nested(searching, pair, outcome, name)
        recipe = {**plan.plain, "scale": outcome.scale, **asdict(data)}
        recipe |= {"search": outcome.found.facts} if outcome.found.facts else {}
        graft = (outcome.scale * pair.cut(outcome.region, name)).with_info(
            method=plan.method, recipe=recipe, scores={"validation": scores}, command=runtime.command or None
        )
        if out is not None and pair.opened.processes.is_main:
            save(graft, Path(out))
            snapshots.delete(plan.scales)
    return Localization(graft, points, nested)


def _nested(searching: Searching, pair: TunedPair, outcome: Outcome, task: str) -> dict[float, Graft]:
    """The grafts of a nested curve's densities: prefixes of one ranking, so they take no search."""
    plan = searching.plan
    return {
        density: (outcome.scale * pair.cut(searching.point(outcome, density, pair.start), task)).with_info(
            method=plan.method, recipe={**plan.plain, "density": density, "scale": outcome.scale}
        )
        for density in (plan.densities if plan.curve == NESTED else ())
    }


def _curve(searching: Searching, pair: TunedPair, outcome: Outcome, task: str) -> tuple[Point, ...]:
    """The summary of every density of the plan. P1's points are searches: those that are done are kept for a killed run."""
    plan, densities = searching.plan, searching.plan.densities
    snapshot = None
    if densities and plan.curve == PAPER:
        snapshot = searching.snapshots.at(outcome.scale, "curve", densities=densities, **plan.decisive)
    earlier = snapshot.read() if snapshot else None
    points: list[Point] = list(earlier[1]["points"]) if earlier else []
    for density in densities[len(points) :]:
        region = searching.point(outcome, density, pair.start)
        found = pair.summary(task, region, outcome.problem)
        points.append({"density": density, "entries": len(region), **found})
        if snapshot and pair.opened.processes.is_main:
            snapshot.write({}, {"points": points})
    return tuple(points)
