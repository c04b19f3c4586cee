"""A multi-task model beside its base, opened once: loss, region and scores of any of its tasks, or of several together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator
from torch import Tensor, nn, tensor

from skillgraft.checkpoint import Checkpoint
from skillgraft.errors import InputError, listed
from skillgraft.extraction import Tuned, extract, open_tuned
from skillgraft.graft import Graft
from skillgraft.graft_file import load_region
from skillgraft.live import grafted
from skillgraft.localize.how_many import HowMany
from skillgraft.localize.methods import SEEDED, method
from skillgraft.localize.problem import Problem, Step
from skillgraft.localize.skill import EMPTY, Rows
from skillgraft.measure.metrics import METRICS
from skillgraft.measure.predict import by_length, on_device, predict
from skillgraft.measure.predictions import Predictions
from skillgraft.measure.summary import summary
from skillgraft.movement import most_moved
from skillgraft.readouts.loading import open_readouts
from skillgraft.readouts.readout import Batch, Encoded, Readout, loss_of
from skillgraft.region import Region, Scope
from skillgraft.tasks import Task, load_task, training_split
from skillgraft.training.batches import BatchOrder

TASK = "task"  # the entry of a batch that says whose rows it holds
_TOGETHER = 64  # rows that run through the model at once


@dataclass(frozen=True, eq=False)
class Joint:
    """A loaded base with the multi-task model's heads on it, and every task's encoded rows."""

    source: Checkpoint
    target: Tuned
    scope: str
    model: nn.Module
    readouts: Mapping[str, Readout]
    train: Mapping[str, Sequence[Encoded]]
    validation: Mapping[str, Sequence[Encoded]]
    data: Rows

    @cached_property
    def problem(self) -> Problem:
        """All tasks together; `replace` makes of it the problem of some of them without copying any numbers."""
        steps = self._steps(list(self.readouts))
        return Problem.between(self.model, self.target, steps=steps, loss=self._loss, scope=self.scope)

    def start(self, start: float | str | Path) -> Region:
        """γ_base: empty, a density of the most moved entries, or a region file."""
        scope = self.problem.scope
        if start == EMPTY:
            return self._nothing
        if isinstance(start, str | Path):
            return load_region(start).within(scope)
        return most_moved(self.source, self.target, scope, start)

    def find(
        self,
        tasks: Sequence[str],
        begin: Region,
        *,
        name: str = "learned",
        how_many: HowMany = HowMany(),
        **options: Any,
    ) -> Region:
        """The region of the tasks' mean loss: as many entries as `how_many` says, by default the method's own (γ > ½)."""
        problem = replace(self.problem, steps=self._steps(tasks))
        if name == "learned":
            options = {"score": partial(self._score_now, tasks), **options}
        if name in SEEDED:
            options = {"seed": self.data.seed, **options}
        found = method(name)(problem, begin, most=how_many.most(problem.scope), **options)
        score, tuned = partial(self._score, tasks), partial(self._score, tasks, None)
        return how_many.region(found, problem.scope, score=score, tuned=tuned)

    def scores(self, task: str, region: Region) -> dict[str, Any]:
        """Base, tuned and graft on the task's validation rows, or on its training rows where there are no others."""
        base, tuned, graft = (self._said(task, put_on) for put_on in (self._nothing, None, region))
        compared = summary(graft, base=base, tuned=tuned)
        return {"base": summary(base), "tuned": summary(tuned, base=base), "graft": compared}

    def cut(self, region: Region) -> Graft:
        """The graft of this region, with the model's heads."""
        return extract(self.source.path, self.target.path, region=region)

    @property
    def _nothing(self) -> Region:
        return Region(self.problem.scope, {})

    def _score_now(self, tasks: Sequence[str]) -> float:
        """The model as it stands: the mean over tasks of the score on training and validation rows."""
        rows = {task: [*self.train[task], *self.validation[task]] for task in tasks}
        said = [predict(self.model, self.readouts[task], rows[task]) for task in tasks]
        return float(np.mean([METRICS["score"](each) for each in said]))

    def _score(self, tasks: Sequence[str], region: Region | None) -> float:
        return float(np.mean([METRICS["score"](self._said(task, region)) for task in tasks]))

    def _said(self, task: str, region: Region | None) -> Predictions:
        """What the base with tuned's numbers in the region says; None stands for all of tuned, whatever the scope."""
        with self.problem.borrowed() if region is not None else self.problem.all_of(self.target):
            if region is not None:
                self.problem.put_on(region)
            return predict(self.model, self.readouts[task], self.validation[task] or self.train[task])

    def _steps(self, tasks: Sequence[str]) -> Callable[[int], Step]:
        """A step holds rows of every task, at most `step_rows` of each; every task counts the same."""
        orders = {task: self._order(task) for task in tasks}

        def step(number: int) -> Step:
            found = []
            for task, order in orders.items():
                rows = self.train[task]
                mine = rows if order is None else [rows[row] for row in order.step(number)[1].tolist()]
                for part in by_length(mine, _TOGETHER):
                    batch = self._batch(task, [mine[place] for place in part])
                    found.append((batch, len(part) / len(mine) / len(orders)))
            return found

        return step

    def _order(self, task: str) -> BatchOrder | None:
        """Which rows each step sees; None where all of them fit."""
        count, size = len(self.train[task]), self.data.step_rows
        return None if count <= size else BatchOrder([count], batch_size=size, steps=10_000, seed=self.data.seed)

    def _batch(self, task: str, rows: Sequence[Encoded]) -> Batch:
        return {**self.readouts[task].collate(rows), TASK: tensor(list(self.readouts).index(task))}

    def _loss(self, model: nn.Module, batch: Batch) -> Tensor:
        readout = list(self.readouts.values())[int(batch[TASK])]
        device = next(model.parameters()).device
        rest = on_device({name: part for name, part in batch.items() if name != TASK}, device)
        return loss_of(readout.scores(model, rest), rest["labels"])


@contextmanager
def open_joint(
    base: str | Path,
    tuned: str | Path,
    tasks: Sequence[str | Path | Task],
    *,
    scope: str = "layers",
    data: Rows = Rows(),
) -> Iterator[Joint]:
    """Base, multi-task model and the tasks it was tuned on, in that order; all is checked before the model is loaded."""
    if data.labels != "true":
        raise InputError(f"regions of a multi-task model are learned from the true labels, found {data.labels!r}")
    loaded = [task if isinstance(task, Task) else load_task(task) for task in tasks]
    names = [task.name for task in loaded]
    if len(set(names)) < len(names):
        raise InputError(f"every task is given once; found {listed(names, most=len(names))}")
    splits = [training_split(task, shots=data.shots, rows=data.rows, seed=data.seed) for task in loaded]
    source = Checkpoint.open(base)
    heads_alone = extract(base, tuned, region=Region(Scope.of("all", source.shapes), {}))
    opened = open_readouts(base, loaded, readout=data.readout, max_length=data.max_length)
    readouts = dict(zip(names, opened.readouts, strict=True))
    rows = dict(zip(names, splits, strict=True))
    train = {name: readouts[name].encode(split.train) for name, split in rows.items()}
    validation = {name: readouts[name].encode(split.validation) for name, split in rows.items()}
    model = opened.model.to(Accelerator().device)
    with grafted(model, heads_alone):
        yield Joint(source, open_tuned(Path(tuned), source), scope, model, readouts, train, validation, data)
