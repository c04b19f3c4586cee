"""Tasks in a sequence, measured after each (P1 table 4): in a store, tuned one over the other, or each on its own.

history = after_each("STORE", "MiniLM", ["qnli", "ag_news", "sst2"], learning=Learning(plan=plan))
history.scores()["after sst2", "qnli"], history.identical("qnli")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from skillgraft.compose.continual import Learning, OnStage, add
from skillgraft.compose.scales import as_graft
from skillgraft.compose.store import STORE, ContinualStore, file_name
from skillgraft.errors import InputError, listed
from skillgraft.folders.extract import extract
from skillgraft.measure.comparisons import same_scores
from skillgraft.measure.evaluate import BASE, evaluate
from skillgraft.measure.intervals import Bootstrap
from skillgraft.measure.matrices import Matrix, score_matrix
from skillgraft.opening.runtime import Runtime, silent
from skillgraft.predictions.predictions import AnyPredictions
from skillgraft.tasks.data import Data, TaskLike, load_tasks
from skillgraft.tasks.task import Task
from skillgraft.training.finetune import Tuned, finetune
from skillgraft.training.plan import TrainingPlan
from skillgraft.values.graft import Graft

Tasks = Sequence[TaskLike]


@dataclass(frozen=True)
class History:
    """`predictions[task]["after t"]`: those of the model for `task` once `t` was learned, from its own turn on; and `base`."""

    tasks: tuple[str, ...]
    predictions: Mapping[str, Mapping[str, AnyPredictions]]

    def scores(self, *, bootstrap: Bootstrap = Bootstrap()) -> Matrix:
        """Rows: base, then after each task; columns: tasks. What was not learned yet is left open."""
        return score_matrix(self.predictions, [BASE, *map(after, self.tasks)], bootstrap=bootstrap)

    def identical(self, task: str) -> bool:
        """Whether every score of every row has stayed the same, bit for bit, since the task was learned."""
        first, *rest = (found for stage, found in self.predictions[task].items() if stage != BASE)
        return all(same_scores(first, other) == 1.0 for other in rest)


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
) -> History:
    """P1's continual learning: add the tasks to a store, and measure each from its own turn on.

    `tuned` has fine-tunes that exist already, by task. What is measured, on at most `learning.data.test_rows` test rows, is the
    model that the store gave after each addition. A store that holds the first tasks goes on with the next one; of the tasks
    that it had already, only what it gives now can be measured.
    """
    loaded = load_tasks(tasks)
    stages: list[dict[str, Graft]] = []
    known = _known(Path(store), loaded)
    for index, task in enumerate(loaded):
        if index >= known:
            add(store, base, task, learning=learning, tuned=(tuned or {}).get(task.name), on_stage=on_stage)
        now = ContinualStore.open(store)
        stages.append({each.name: now.graft(each.name) for each in loaded[: index + 1]})
    return _history(base, loaded, stages, learning.data)


def naive_continual(
    base: str | Path,
    tasks: Tasks,
    out: str | Path,
    *,
    learning: Learning = Learning(),
    on_stage: OnStage | None = None,
) -> History:
    """P1's comparison: all parameters are tuned on one task after the other. Heads stay those of their own task.

    The models are kept as folders below `out` and taken from there when they are there already.
    """
    loaded = load_tasks(tasks)
    stages: list[dict[str, Graft]] = []
    heads: dict[str, Graft] = {}
    body: Graft | None = None
    for index, task in enumerate(loaded):
        folder = Path(out) / f"{index + 1:03d}-{file_name(task.name)}"
        _tune(base, task, folder, learning, on_stage, start=body)
        heads[task.name] = extract(base, folder)
        body = heads[task.name].without_heads()
        stages.append({name: replace(body, heads=own.heads, info=own.info) for name, own in heads.items()})
    return _history(base, loaded, stages, learning.data)


def tune_on(
    base: str | Path,
    task: TaskLike,
    *,
    start: Graft | Path,
    out: Path,
    reuse: bool,
    plan: TrainingPlan,
    data: Data = Data(),
    runtime: Runtime = Runtime(),
) -> Tuned:
    """Go on tuning all parameters of a tuned folder, or of the base with a graft on it, with the base's own readout."""
    begin = as_graft(start, base)
    return finetune(base, [task], out=out, start=begin, reuse=reuse, plan=plan, data=data, runtime=runtime)


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
    for task in load_tasks(tasks):
        folders[task.name] = _tune(base, task, Path(out) / file_name(task.name), learning, on_stage).path
    return folders


def _tune(
    base: str | Path, task: Task, out: Path, learning: Learning, on_stage: OnStage | None, *, start: Graft | None = None
) -> Tuned:
    """One stage; a model that is there already is taken."""
    runtime = Runtime(progress=on_stage(task.name) if on_stage else silent)
    return finetune(
        base, [task], out=out, start=start, reuse=True, plan=learning.plan, data=learning.data, runtime=runtime
    )


def _known(store: Path, tasks: Sequence[Task]) -> int:
    """How many of the tasks the store has already; it must have been made of this very sequence."""
    had = ContinualStore.open(store).tasks if (store / STORE).is_file() else ()
    wanted = tuple(task.name for task in tasks)
    if had != wanted[: len(had)]:
        raise InputError(f"{store} holds {listed(had)}, which is not how {listed(wanted)} begins; use another store")
    return len(had)


def _history(base: str | Path, tasks: Sequence[Task], stages: Sequence[Mapping[str, Graft]], data: Data) -> History:
    """Every task's models on its test rows, the base loaded once per task: a linear head is a task's own."""
    predictions: dict[str, Mapping[str, AnyPredictions]] = {}
    for task in tasks:
        models = {after(t.name): stage[task.name] for t, stage in zip(tasks, stages, strict=True) if task.name in stage}
        predictions |= evaluate(base, [task], grafts=models, data=data).predictions
    return History(tuple(task.name for task in tasks), predictions)
