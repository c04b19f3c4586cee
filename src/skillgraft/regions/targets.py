"""What a search learns from: true labels, tuned's own answers on any rows, and base's answers on controls.

    targets = Targets(opened, {"notes": tuned, "ag_news": base}, weights={"ag_news": 4.0})
    targets.loss(model, ("notes", batch))          # KL(tuned's distribution || the model's), mean over rows or tokens

A task without a teacher has its true labels (or completions). A teacher is asked with the model itself, which holds the
teacher's numbers for one forward pass: they are mapped where they lie, nothing is copied, and no distribution is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from skillgraft.folders.checkpoint import Tensors
from skillgraft.opening.runtime import MixedPrecision
from skillgraft.predictions.predict import by_length, evaluating
from skillgraft.readouts.readout import Encoded, units_of
from skillgraft.regions.problem import Step, holding_all
from skillgraft.task_model import TaskBatch, TaskModel

_TOGETHER = 64  # rows of one forward pass


@dataclass(frozen=True, eq=False)
class Targets:
    """Whose answers each task's rows are compared with, and what each task weighs in a step's loss (1 by default)."""

    opened: TaskModel
    teachers: Mapping[str, Tensors] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    mixed_precision: MixedPrecision = "no"

    def loss(self, model: nn.Module, batch: TaskBatch) -> Tensor:
        """The mean loss of a batch of one task's rows."""
        task, _ = batch
        if task not in self.teachers:
            return self.opened.loss(model, batch, mixed_precision=self.mixed_precision)
        wanted = self._answers(task, model, batch)
        return divergence(wanted, self.opened.scores(model, batch, mixed_precision=self.mixed_precision))

    def steps(self, rows: Mapping[str, Sequence[Encoded]], *, batch_size: int, balanced: bool) -> Callable[[int], Step]:
        """The batches of each step, each with its task's weight; a task that weighs nothing is left out."""
        wanted = {task: own for task, own in rows.items() if self.weights.get(task, 1.0)}
        plain = self.opened.steps(wanted, batch_size=batch_size, balanced=balanced)
        if not self.weights:
            return plain
        return lambda number: [(batch, share * self.weights.get(batch[0], 1.0)) for batch, share in plain(number)]

    def distance(self, task: str, rows: Sequence[Encoded]) -> float:
        """The mean KL between the task's teacher and the model as it stands, over these rows."""
        total, readout, model = 0.0, self.opened.rows.readout(task), self.opened.model
        with evaluating(model):
            for part in by_length(rows, _TOGETHER):
                batch = task, readout.collate([rows[row] for row in part])
                wanted = self._answers(task, model, batch)
                with torch.no_grad():
                    found = divergence(wanted, self.opened.scores(model, batch))
                total += float(found) * units_of(rows[row] for row in part)
        return total / units_of(rows)

    def _answers(self, task: str, model: nn.Module, batch: TaskBatch) -> Tensor:
        with torch.no_grad(), holding_all(model, self.teachers[task]):
            return self.opened.scores(model, batch, mixed_precision=self.mixed_precision)


def divergence(wanted: Tensor, found: Tensor) -> Tensor:
    """KL(softmax(wanted) || softmax(found)), the mean over lines; −inf columns of absent choices take no part."""
    theirs, ours = wanted.float(), found.float()
    shares = torch.softmax(theirs, dim=-1)
    ends = torch.logsumexp(ours, dim=-1) - torch.logsumexp(theirs, dim=-1)
    there = torch.isfinite(theirs)
    gaps = torch.where(there, theirs, 0.0) - torch.where(there, ours, 0.0)
    return ((shares * gaps).sum(-1) + ends).mean()
