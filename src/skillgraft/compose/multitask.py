"""Several skills in one model: a region for each task, unions of regions, purified unions (P1 §5.1, fig. 8).

    grafts = task_regions("MiniLM", "tuned-on-all", ["sst2", "cr", "qnli"], data=Rows(shots=64))
    gains("MiniLM", "tuned-on-all", grafts, ["sst2", "cr", "qnli"])["cr", "sst2"].value

All grafts of one multi-task model hold the same numbers where they meet, so a union is as exact as its parts. The base is
loaded and every task's rows are encoded once, whatever the number of tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from skillgraft.compose.joint import open_joint
from skillgraft.compose.rules import combine
from skillgraft.errors import InputError, did_you_mean
from skillgraft.graft import Graft
from skillgraft.localize.how_many import HowMany
from skillgraft.localize.skill import EMPTY, Rows
from skillgraft.measure.evaluate import evaluate
from skillgraft.measure.intervals import Bootstrap
from skillgraft.measure.matrices import Matrix, gain_matrix
from skillgraft.readouts.readout import Readout
from skillgraft.tasks import Task

PURIFYING_STEPS = 10  # P1 §5.1
Tasks = Sequence[str | Path | Task]
Groups = Sequence[Sequence[str]]
OnTask = Callable[[str, int, int], None]


def task_regions(
    base: str | Path,
    tuned: str | Path,
    tasks: Tasks,
    *,
    of: Sequence[str] | None = None,
    start: float | str | Path = EMPTY,
    budget: float | None = None,
    keep: float | None = None,
    name: str = "learned",
    scope: str = "layers",
    data: Rows = Rows(),
    on_task: OnTask | None = None,
    **options: Any,
) -> dict[str, Graft]:
    """A graft for each task from one multi-task model: the region by the task's own loss, the numbers the model's.

    `tasks` are all that the model was tuned on, `of` the names of those whose regions are wanted (all). `start` is γ_base:
    empty (P1 §5.1), a density of the most moved entries (C.2: 1e-5, 1e-4), or a region file. `budget` and `keep` say how many
    entries, as in `localize_skill`; `options` are those of the method. Each graft tells its own task's validation scores.
    """
    grafts, how_many = {}, HowMany(budget, keep)
    with open_joint(base, tuned, tasks, scope=scope, data=data) as joint:
        begin = joint.start(start)
        recipe = {"start": str(start), "scope": scope, **asdict(how_many), **asdict(data), **_plain(options)}
        wanted = _wanted(of, joint.readouts)
        for done, (task, readout) in enumerate(wanted.items()):
            if on_task:
                on_task(task, done, len(wanted))
            region = joint.find([task], begin, name=name, how_many=how_many, **options)
            scores = {"validation": joint.scores(task, region)}
            about = {"task": task, "labels": list(readout.task.labels) or None, "readout": dict(readout.settings)}
            grafts[task] = joint.cut(region).with_info(**about, method=name, recipe=recipe, scores=scores)
    return grafts


def union(grafts: Sequence[Graft]) -> Graft:
    """γ_G = ∪ γ_i with the multi-task model's numbers (P1 §5.1); grafts of different models are refused."""
    for place, graft in enumerate(grafts):
        for other in grafts[:place]:
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
    data: Rows = Rows(),
    **options: Any,
) -> dict[str, Graft]:
    """Each group's union after a few more steps on S: γ_base is the union, the loss the mean of the group's (P1 fig. 8d).

    `tasks` are all that the model was tuned on. The last step's region counts, as in the paper; the numbers stay the model's.
    """
    result = {}
    starts = unions(grafts, groups)
    scopes = {graft.region.scope.label for graft in starts.values()}
    if len(scopes) != 1:
        raise InputError(f"expected grafts of one scope, found {', '.join(sorted(scopes)) or 'none'}")
    with open_joint(base, tuned, tasks, scope=scopes.pop(), data=data) as joint:
        for group in groups:
            begin = starts[group_name(group)].region
            region = joint.find(group, begin, steps=steps, **{"score": None, **options})
            recipe = {"union": list(group), "steps": steps, **asdict(data), **_plain(options)}
            result[group_name(group)] = joint.cut(region).with_info(method="purified", recipe=recipe)
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

    `asked` goes to `evaluate`: split, rows, shots, seed, readout, max_length.
    """
    said = evaluate(base, tasks, tuned={"tuned": tuned}, grafts=grafts, **asked).said
    return gain_matrix(said, list(grafts), bootstrap=bootstrap)


def group_gains(
    base: str | Path,
    tuned: str | Path,
    grafts: Mapping[str, Graft],
    groups: Groups,
    tasks: Tasks,
    *,
    purify: int = 0,
    data: Rows = Rows(),
    bootstrap: Bootstrap = Bootstrap(),
    **asked: Any,
) -> Matrix:
    """Relative gain of each group's union on every task (P1 fig. 8c); after `purify` steps, of the purified union (8d)."""
    united = purified(base, tuned, grafts, groups, tasks, steps=purify, data=data) if purify else unions(grafts, groups)
    read = {"readout": data.readout, "max_length": data.max_length}
    return gains(base, tuned, united, tasks, bootstrap=bootstrap, **{**read, **asked})


def group_name(group: Sequence[str]) -> str:
    """`sst2+cr`."""
    return "+".join(group)


def _wanted(of: Sequence[str] | None, readouts: Mapping[str, Readout]) -> Mapping[str, Readout]:
    for task in of or ():
        if task not in readouts:
            raise InputError(f"the model was not tuned on {task!r}; {did_you_mean(task, readouts)}")
    return readouts if of is None else {task: readouts[task] for task in of}


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if value is not None and not callable(value)}
