"""A base and a tuned folder, opened for searching: regions of tasks' skills, what they score, and the grafts cut from them.

    with open_pair("MiniLM", "tuned", ["sst2"], plan=SearchPlan.of(density=1e-4), data=Data(shots=64)) as pair:
        pair.scores("sst2", region)

The base's model carries tuned's heads while it is open. Data and folders are checked before the model is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from skillgraft.folders.checkpoint import Checkpoint, Tensors, content_digest, take
from skillgraft.folders.extract import changed_outside, check_pair
from skillgraft.measure.metrics import METRICS
from skillgraft.measure.summary import summary
from skillgraft.opening.device import working_format
from skillgraft.opening.runtime import Runtime
from skillgraft.predictions.predictions import AnyPredictions, classes_of
from skillgraft.readouts.readout import Encoded
from skillgraft.regions.problem import Problem, Start, holding_all, starting_region
from skillgraft.regions.search import SearchPlan
from skillgraft.task_model import TaskModel
from skillgraft.tasks.data import Data, TaskLike
from skillgraft.values.graft import Graft
from skillgraft.values.region import Region, Scope

Rows = Mapping[str, Sequence[Encoded]]
SPLITS = ("train", "validation")


@dataclass(frozen=True, eq=False)
class TunedPair:
    """The opened base, tuned's numbers, and the problem between them for some of the tasks.

    `heads` is the graft of tuned's heads alone, with its provenance. A search learns from the `train` rows and compares its
    steps on `compared`: training and validation rows, as P1's authors do. Scores are those of the validation rows, or of the
    training rows where there are none.
    """

    opened: TaskModel
    base: Checkpoint
    tuned: Tensors
    heads: Graft
    plan: SearchPlan
    train: Rows
    compared: Rows
    problem: Problem
    tasks: tuple[str, ...]
    _predictions: dict[tuple[str, str], AnyPredictions] = field(default_factory=dict)

    def of(self, tasks: Sequence[str]) -> TunedPair:
        """The same about the sum of these tasks' losses and their mean score; no numbers are copied."""
        train, plan = {task: self.train[task] for task in tasks}, self.plan
        steps = self.opened.steps(train, batch_size=plan.step_rows, balanced=plan.balanced)
        return replace(self, tasks=tuple(tasks), problem=replace(self.problem, steps=steps))

    def start(self, start: Start) -> Region:
        """γ_base: a density of the most moved entries, nothing ("empty"), a region, or its file."""
        return starting_region(start, self.base, self.tuned, self.problem.scope)

    def score_now(self) -> float:
        """The mean score over tasks of the model as it stands, on the compared rows."""
        found = [self.opened.answers(task, self.compared[task]) for task in self.tasks]
        return float(np.mean([METRICS["merit"](each) for each in found]))

    def score(self, problem: Problem, region: Region) -> float:
        """The mean score over tasks with tuned's change in this region."""
        return float(np.mean([METRICS["merit"](self.predict(task, region, problem)) for task in self.tasks]))

    def tuned_score(self) -> float:
        return float(np.mean([METRICS["merit"](self.tuned_predictions(task)) for task in self.tasks]))

    def predict(self, task: str, region: Region, problem: Problem | None = None) -> AnyPredictions:
        """What the reference answers with tuned's change in this region."""
        with (problem or self.problem).holding(region):
            return self.opened.answers(task, self._scored(task))

    def base_predictions(self, task: str) -> AnyPredictions:
        """What the base answers; asked once."""
        if ("base", task) not in self._predictions:
            self._predictions["base", task] = self.opened.answers(task, self._scored(task))
        return self._predictions["base", task]

    def tuned_predictions(self, task: str) -> AnyPredictions:
        """What all of tuned answers, whatever the scope leaves out; asked once."""
        if ("tuned", task) not in self._predictions:
            with holding_all(self.opened.model, self.tuned):
                self._predictions["tuned", task] = self.opened.answers(task, self._scored(task))
        return self._predictions["tuned", task]

    def summary(self, task: str, region: Region, problem: Problem | None = None) -> dict[str, Any]:
        """Everything that a table shows about a region's predictions."""
        base, tuned = self.base_predictions(task), self.tuned_predictions(task)
        return summary(self.predict(task, region, problem), base=base, tuned=tuned)

    def scores(self, task: str, region: Region, problem: Problem | None = None) -> dict[str, Any]:
        """Base, tuned and graft on the task's rows."""
        base, tuned = self.base_predictions(task), self.tuned_predictions(task)
        graft = self.summary(task, region, problem)
        return {"base": summary(base), "tuned": summary(tuned, base=base), "graft": graft}

    def cut(self, region: Region, task: str | None = None) -> Graft:
        """The graft of this region, with tuned's heads; with a task's name its labels and readout are recorded."""
        graft = replace(
            self.heads,
            region=region,
            before={name: take(self.base, name, at) for name, at in region.sites.items()},
            change={name: take(self.tuned, name, at) for name, at in region.sites.items()},
        ).with_info(outside_scope=self.outside or None)
        if task is None:
            return graft
        readout = self.opened.rows.readout(task)
        labels = list(readout.task.labels) or None
        return graft.with_info(task=task, labels=labels, readout=dict(readout.settings))

    @cached_property
    def outside(self) -> dict[str, int]:
        """Tensor → entries that tuned changed though neither the scope nor a head holds them."""
        return changed_outside(self.base, self.tuned, self.heads.region.scope.shapes, self.problem.scope)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What decides a search here: the content of base, tuned and rows, and how they are read."""
        rows = self.opened.rows
        return {
            "base": self.base.digest,
            "tuned": content_digest(self.tuned),
            "heads": self.heads.digest,
            "data": asdict(rows.data),
            "rows": {task: [rows.examples(task, split).digest for split in SPLITS] for task in self.train},
            "readouts": {task: dict(rows.readout(task).settings) for task in self.train},
            "dtype": str(rows.loader.dtype),
            "tasks": self.tasks,
            "processes": self.opened.processes.count,
        }

    def _scored(self, task: str) -> Sequence[Encoded]:
        return self.opened.rows.encoded(task, "validation") or self.opened.rows.encoded(task, "train")


@contextmanager
def open_pair(
    base: str | Path,
    tuned: str | Path,
    tasks: Sequence[TaskLike],
    *,
    plan: SearchPlan,
    data: Data = Data(),
    convert: bool = False,
    runtime: Runtime = Runtime(),
) -> Iterator[TunedPair]:
    """Open everything. float16 folders are searched in float32: gradients of a small loss vanish in float16."""
    source, numbers, heads = check_pair(base, tuned, convert=convert)
    plan.count(Scope.select(plan.scope, heads.region.scope.shapes))
    dtype = working_format(str(source.format), runtime.dtype)
    opened = TaskModel.open(
        base, tasks, data=data, dtype=dtype, device=runtime.device, splits=SPLITS[:1], optional=SPLITS[1:]
    )
    train = {task: opened.rows.encoded(task, "train") for task in opened.tasks}
    compared = {task: [*train[task], *opened.rows.encoded(task, "validation")] for task in opened.tasks}
    with opened.holding(heads):
        problem = Problem.between(
            opened.model,
            numbers,
            steps=opened.steps(train, batch_size=plan.step_rows, balanced=plan.balanced),
            loss=partial(opened.loss, mixed_precision=plan.mixed_precision),
            scope=plan.scope,
            reference=plan.reference,
            processes=opened.processes,
        )
        pair = TunedPair(opened, source, numbers, heads, plan, train, compared, problem, opened.tasks)
        yield _relabelled(pair) if plan.labels == "tuned" else pair


def _relabelled(pair: TunedPair) -> TunedPair:
    """The same, learning from what tuned predicts; scores are still measured by the true labels."""
    compared = {}
    with holding_all(pair.opened.model, pair.tuned):
        for task, rows in pair.compared.items():
            predicted = classes_of(pair.opened.answers(task, rows)).predicted.tolist()
            compared[task] = [replace(row, label=label) for row, label in zip(rows, predicted, strict=True)]
    train = {task: rows[: len(pair.train[task])] for task, rows in compared.items()}
    return replace(pair, train=train, compared=compared).of(pair.tasks)
