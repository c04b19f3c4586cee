"""What judges a combination of skills, which rows and beside which grafts: settled before any model is loaded, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from skillgraft.errors import InputError, listed
from skillgraft.graft import Graft
from skillgraft.tasks import Examples, Task, load_task, measured_split

ROWS = 200  # for each task: enough to tell scales apart, cheap enough for twenty-one of them


def judged_rows(
    tasks: Sequence[str | Path | Task],
    *,
    rows: int | None = ROWS,
    shots: int | None = None,
    train_rows: int | None = None,
    seed: int = 0,
    split: str = "validation",
) -> list[tuple[Task, Examples]]:
    """Each task with at most `rows` of its validation (or test) rows, a seeded sample.

    `shots` or `train_rows`, and `seed`, are those that the grafts were trained with: they say which rows validate.
    """
    if rows is not None and rows < 1:
        raise InputError(f"rows must be at least 1; found {rows}")
    loaded = [task if isinstance(task, Task) else load_task(task) for task in tasks]
    names = [task.name for task in loaded]
    if len(set(names)) < len(names):
        raise InputError(f"a task is named twice among {listed(names)}; results go by name")
    drawn = {} if split == "test" else {"shots": shots, "rows": train_rows}
    return [(task, _sample(measured_split(task, split, seed=seed, **drawn), rows, seed)) for task in loaded]


def own_grafts(tasks: Sequence[str], grafts: Sequence[Graft]) -> dict[str, Graft]:
    """Which graft holds which task's skill: as the grafts' provenance says, else in the order given, one for each task.

    A single graft is that of every task.
    """
    if len(grafts) == 1:
        return dict.fromkeys(tasks, grafts[0])
    told = {graft.info.text("task"): graft for graft in grafts}
    if len(told) == len(grafts) and told.keys() >= set(tasks):
        return {task: told[task] for task in tasks}
    if len(grafts) != len(tasks):
        raise InputError(
            f"a combination is judged beside each task's own graft: expected one for each of {listed(tasks)}, in order; "
            f"found {len(grafts)} grafts"
        )
    return dict(zip(tasks, grafts, strict=True))


def _sample(examples: Examples, rows: int | None, seed: int) -> Examples:
    """At most so many rows, in their own order; none at all is refused."""
    if not len(examples):
        raise InputError(f"task {examples.task!r} has no rows left to judge by; train on fewer rows (shots)")
    if rows is None or len(examples) <= rows:
        return examples
    return examples.select(np.sort(np.random.default_rng(seed).permutation(len(examples))[:rows]))
