"""Tasks in a sequence, measured after each (P1 table 4): in a store, tuned one over the other, or each on its own.

history = after_each("STORE", "MiniLM", ["qnli", "ag_news", "sst2"], learning=Learning(plan=plan))
history.scores()["after sst2", "qnli"], history.identical("qnli")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from skillgraft.compose.continual import Learning, OnStage, add
from skillgraft.compose.store import STORE, Store, file_name
from skillgraft.compose.tune import tune
from skillgraft.errors import InputError, listed
from skillgraft.extraction import extract
from skillgraft.graft import Graft
from skillgraft.measure.evaluate import BASE, evaluate
from skillgraft.measure.intervals import Bootstrap
from skillgraft.measure.matrices import Matrix, score_matrix
from skillgraft.measure.predictions import Predictions
from skillgraft.tasks import Task, load_task

Tasks = Sequence[str | Path | Task]


@dataclass(frozen=True)
class History:
    """`said[task]["after t"]`: what the model for `task` said once `t` was learned, from its own turn on; and `base`."""

    tasks: tuple[str, ...]
    said: Mapping[str, Mapping[str, Predictions]]

    def scores(self, *, bootstrap: Bootstrap = Bootstrap()) -> Matrix:
        """Rows: base, then after each task; columns: tasks. What was not learned yet is left open."""
        return score_matrix(self.said, [BASE, *map(after, self.tasks)], bootstrap=bootstrap)

    def identical(self, task: str) -> bool:
        """Whether every score of every row has stayed the same, bit for bit, since the task was learned."""
        first, *rest = (said.scores for stage, said in self.said[task].items() if stage != BASE)
        return all(np.array_equal(first.view(np.int32), other.view(np.int32)) for other in rest)


def after(task: str) -> str:
    """`after sst2`: what a stage is called."""
    return f"after {task}"


def after_each(
    store: str | Path,
    base: str | Path,
    tasks: Tasks,
    *,
    learning: Learning = Learning(),
    tuned: Mapping[str, str | Path] | None = None,
    on_stage: OnStage | None = None,
    rows: int | None = None,
) -> History:
    """P1's continual learning: add the tasks to a store, and measure each from its own turn on.

    `tuned` has fine-tunes that exist already, by task. What is measured on the test rows (at most `rows`) is the model that
    the store gave after each addition. A store that holds the first tasks goes on with the next one; of the tasks that it had
    already, only what it gives now can be measured.
    """
    loaded = _loaded(tasks)
    stages: list[dict[str, Graft]] = []
    known = _known(Path(store), loaded)
    for place, task in enumerate(loaded):
        if place >= known:
            add(store, base, task, learning=learning, tuned=(tuned or {}).get(task.name), on_stage=on_stage)
        now = Store.open(store)
        stages.append({each.name: now.graft(each.name) for each in loaded[: place + 1]})
    return _history(base, loaded, stages, learning, rows=rows)


def naive_continual(
    base: str | Path,
    tasks: Tasks,
    out: str | Path,
    *,
    learning: Learning = Learning(),
    on_stage: OnStage | None = None,
    rows: int | None = None,
) -> History:
    """P1's comparison: all parameters are tuned on one task after the other. Heads stay those of their own task.

    The models are kept as folders below `out` and taken from there when they are there already.
    """
    loaded = _loaded(tasks)
    stages: list[dict[str, Graft]] = []
    heads: dict[str, Graft] = {}
    body: Graft | None = None
    for place, task in enumerate(loaded):
        folder = Path(out) / f"{place + 1:03d}-{file_name(task.name)}"
        on_step = on_stage(task.name) if on_stage else None
        tune(base, task, folder, plan=learning.plan, start=body, data=learning.data, on_step=on_step)
        heads[task.name] = extract(base, folder)
        body = heads[task.name].without_heads()
        stages.append({name: replace(body, heads=own.heads, info=own.info) for name, own in heads.items()})
    return _history(base, loaded, stages, learning, rows=rows)


def separate_finetunes(
    base: str | Path,
    tasks: Tasks,
    out: str | Path,
    *,
    learning: Learning = Learning(),
    on_stage: OnStage | None = None,
) -> dict[str, Path]:
    """The upper bound: one fine-tune of the base per task, as folders below `out`; finished ones are taken as they are."""
    folders = {}
    for task in _loaded(tasks):
        folder = Path(out) / file_name(task.name)
        on_step = on_stage(task.name) if on_stage else None
        folders[task.name] = tune(base, task, folder, plan=learning.plan, data=learning.data, on_step=on_step)
    return folders


def _loaded(tasks: Tasks) -> list[Task]:
    loaded = [task if isinstance(task, Task) else load_task(task) for task in tasks]
    names = [task.name for task in loaded]
    if not names or len(set(names)) < len(names):
        raise InputError(f"a sequence has at least one task, and each once; found {listed(names) or 'none'}")
    return loaded


def _known(store: Path, tasks: Sequence[Task]) -> int:
    """How many of the tasks the store has already; it must have been made of this very sequence."""
    had = Store.open(store).tasks if (store / STORE).is_file() else ()
    wanted = tuple(task.name for task in tasks)
    if had != wanted[: len(had)]:
        raise InputError(f"{store} holds {listed(had)}, which is not how {listed(wanted)} begins; use another store")
    return len(had)


def _history(
    base: str | Path,
    tasks: Sequence[Task],
    stages: Sequence[Mapping[str, Graft]],
    learning: Learning,
    *,
    rows: int | None,
) -> History:
    """Every task's models on its test rows, the base loaded once per task: a linear head is a task's own."""
    said: dict[str, Mapping[str, Predictions]] = {}
    data = learning.data
    for task in tasks:
        models = {after(t.name): stage[task.name] for t, stage in zip(tasks, stages, strict=True) if task.name in stage}
        found = evaluate(base, [task], grafts=models, rows=rows, readout=data.readout, max_length=data.max_length)
        said |= found.said
    return History(tuple(task.name for task in tasks), said)
