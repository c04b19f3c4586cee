"""Several skills in one model: a region for each task, unions of regions, purified unions (P1 §5.1, fig. 8).

    grafts = task_regions("MiniLM", "tuned-on-all", ["sst2", "cr", "qnli"], data=Data(shots=64))
    gains("MiniLM", "tuned-on-all", grafts, ["sst2", "cr", "qnli"])["cr", "sst2"].value

All grafts of one multi-task model hold the same numbers where they meet, so a union is as exact as its parts. The base is
loaded and every task's rows are encoded once, whatever the number of tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from skillgraft.compose.rules import combine
from skillgraft.errors import InputError, did_you_mean
from skillgraft.measure.evaluate import evaluate
from skillgraft.measure.intervals import Bootstrap
from skillgraft.measure.matrices import Matrix, gain_matrix
from skillgraft.regions.methods import METHODS, P1
from skillgraft.regions.problem import EMPTY
from skillgraft.regions.search import Searching, SearchPlan
from skillgraft.regions.tuned_pair import TunedPair, open_pair
from skillgraft.tasks.data import Data, TaskLike
from skillgraft.values.graft import Graft

PURIFYING_STEPS = 10  # P1 §5.1
Tasks = Sequence[TaskLike]
Groups = Sequence[Sequence[str]]
OnTask = Callable[[str, int, int], None]


def task_regions(
    base: str | Path,
    tuned: str | Path,
    tasks: Tasks,
    *,
    of: Sequence[str] | None = None,
    data: Data = Data(),
    on_task: OnTask | None = None,
    **asked: Any,
) -> dict[str, Graft]:
    """A graft for each task from one multi-task model: the region by the task's own loss, the numbers the model's.

    `tasks` are all that the model was tuned on, `of` the names of those whose regions are wanted (all). `asked` are fields of
    `SearchPlan` and options of its method, P1's by default; γ_base is empty unless `start` says otherwise (P1 §5.1; C.2: 1e-5,
    1e-4). Each graft has its own task's validation scores.
    """
    grafts = {}
    plain = SearchPlan.of(**{"method": P1, **asked})
    begins = {"start": EMPTY} if METHODS[plain.method].own_size else {}
    plan = SearchPlan.of(**{"method": P1, **begins, **asked}).seeded(data.seed)
    with open_pair(base, tuned, tasks, plan=plan, data=data) as pair:
        begin = pair.start(plan.start)
        wanted = _wanted(of, pair)
        for done, task in enumerate(wanted):
            if on_task:
                on_task(task, done, len(wanted))
            own = pair.of([task])
            found = Searching(own.problem, plan, own).best(begin)
            scores = {"validation": own.scores(task, found.region, found.problem)}
            recipe = {**plan.plain, "scale": found.scale, **asdict(data)}
            graft = found.scale * own.cut(found.region, task)
            grafts[task] = graft.with_info(method=plan.method, recipe=recipe, scores=scores)
    return grafts


def union(grafts: Sequence[Graft]) -> Graft:
    """γ_G = ∪ γ_i with the multi-task model's numbers (P1 §5.1); grafts of different models are refused."""
    for index, graft in enumerate(grafts):
        for other in grafts[:index]:
            shared = graft.region & other.region
            mine, theirs = (one.without_heads() & shared for one in (graft, other))
            if mine.digest != theirs.digest:
                raise InputError(
                    f"two grafts hold different numbers at the {len(shared):,} entries that they share; a union is made of "
                    "grafts of one multi-task model (for other grafts there is `combine`)"
                )
    return combine(grafts, rule="union", conflict="first")


def unions(grafts: Mapping[str, Graft], groups: Groups) -> dict[str, Graft]:
    """The union of each group of tasks, by the group's name: `sst2+cr`."""
    for group in groups:
        if not group:
            raise InputError("a group has at least one task, found an empty one")
        for task in group:
            if task not in grafts:
                raise InputError(f"no graft for task {task!r}; {did_you_mean(task, grafts)}")
    return {group_name(group): union([grafts[task] for task in group]) for group in groups}


def purified(
    base: str | Path,
    tuned: str | Path,
    grafts: Mapping[str, Graft],
    groups: Groups,
    tasks: Tasks,
    *,
    steps: int = PURIFYING_STEPS,
    data: Data = Data(),
    **options: Any,
) -> dict[str, Graft]:
    """Each group's union after a few more steps on S: γ_base is the union, the loss the sum of the group's (P1 fig. 8d).

    `tasks` are all that the model was tuned on. The last step's region counts, as in the paper; the numbers stay the model's.
    """
    result = {}
    starts = unions(grafts, groups)
    scopes = {graft.region.scope.label for graft in starts.values()}
    if len(scopes) != 1:
        raise InputError(f"expected grafts of one scope, found {', '.join(sorted(scopes)) or 'none'}")
    plan = SearchPlan.of(method=P1, scope=scopes.pop(), steps=steps, **options).seeded(data.seed)
    with open_pair(base, tuned, tasks, plan=plan, data=data) as pair:
        for group in groups:
            own, begin = pair.of(group), starts[group_name(group)].region
            found = Searching(own.problem, plan, own, compares=False).best(begin)
            recipe = {"union": list(group), **plan.plain, "scale": found.scale, **asdict(data)}
            graft = found.scale * pair.cut(found.region)
            result[group_name(group)] = graft.with_info(method="purified", recipe=recipe)
    return result


def gains(
    base: str | Path,
    tuned: str | Path,
    grafts: Mapping[str, Graft],
    tasks: Tasks,
    *,
    bootstrap: Bootstrap = Bootstrap(),
    **asked: Any,
) -> Matrix:
    """Relative gain of every graft (row) on every task (column): P1 fig. 8b for the tasks' own grafts.

    `asked` goes to `evaluate`: split, data.
    """
    found = evaluate(base, tasks, tuned={"tuned": tuned}, grafts=grafts, **asked).predictions
    return gain_matrix(found, list(grafts), bootstrap=bootstrap)


def group_gains(
    base: str | Path,
    tuned: str | Path,
    grafts: Mapping[str, Graft],
    groups: Groups,
    tasks: Tasks,
    *,
    purify: int = 0,
    data: Data = Data(),
    bootstrap: Bootstrap = Bootstrap(),
    **asked: Any,
) -> Matrix:
    """Relative gain of each group's union on every task (P1 fig. 8c); after `purify` steps, of the purified union (8d)."""
    united = purified(base, tuned, grafts, groups, tasks, steps=purify, data=data) if purify else unions(grafts, groups)
    return gains(base, tuned, united, tasks, bootstrap=bootstrap, **{"data": data, **asked})


def group_name(group: Sequence[str]) -> str:
    """`sst2+cr`."""
    return "+".join(group)


def _wanted(of: Sequence[str] | None, pair: TunedPair) -> Sequence[str]:
    for task in of or ():
        if task not in pair.tasks:
            raise InputError(f"the model was not tuned on {task!r}; {did_you_mean(task, pair.tasks)}")
    return pair.tasks if of is None else of
