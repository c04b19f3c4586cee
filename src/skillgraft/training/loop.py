"""The loop: batches in, trained numbers out, on any device and number of processes that accelerate offers.

Gradients are summed over processes by hand instead of wrapping the model: in a region only its entries are exchanged. The
loss of a step is the mean over the whole batch, however it is split into processes and parts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from skillgraft.errors import InputError, RunError
from skillgraft.measure.metrics import METRICS
from skillgraft.measure.predict import on_device, predict
from skillgraft.readouts.readout import Batch, Encoded, Readout
from skillgraft.training.batches import BatchOrder
from skillgraft.training.plan import Plan
from skillgraft.training.processes import Processes
from skillgraft.training.snapshot import Progress, Snapshot
from skillgraft.training.trainables import Trainables

Scorer = Callable[[nn.Module, Readout, Batch], Tensor]
OnStep = Callable[[int, int, Mapping[str, Any]], None]


@dataclass(frozen=True)
class Course:
    """One task's share of a run: how it is read, the rows it trains on and the rows it validates on."""

    readout: Readout
    train: Sequence[Encoded]
    validation: Sequence[Encoded]


def own_scores(model: nn.Module, readout: Readout, batch: Batch) -> Tensor:
    """The model's own scores (and not those of its linearisation)."""
    return readout.scores(model, batch)


def train(
    model: nn.Module,
    courses: Sequence[Course],
    plan: Plan,
    trainables: Trainables,
    *,
    accelerator: Accelerator,
    scores: Scorer = own_scores,
    snapshot: Snapshot | None = None,
    snapshot_seconds: float = 60.0,
    on_step: OnStep | None = None,
    on_checkpoint: Callable[[int], None] | None = None,
    checkpoint_every: int | None = None,
) -> Progress:
    """Train in place. With a snapshot, a run that was killed goes on where it was and ends with the same numbers."""
    run = Run(model, tuple(courses), plan, trainables, accelerator, scores)
    progress = (snapshot.load(trainables.tensors, run.optimizer) if snapshot else None) or Progress()
    trainables.after_step()
    saved = time.monotonic()
    with torch.random.fork_rng(), trainables.listening():
        while progress.step < plan.steps and not progress.finished:
            loss = run.step(progress.step)
            entry = {"step": progress.step + 1, "loss": loss, "lr": plan.lr_at(progress.step)}
            progress.step += 1
            progress.log.append(entry | run.look(progress))
            if on_step:
                on_step(progress.step, plan.steps, progress.log[-1])
            if on_checkpoint and checkpoint_every and progress.step % checkpoint_every == 0:
                on_checkpoint(progress.step)
            if snapshot and accelerator.is_main_process and time.monotonic() - saved >= snapshot_seconds:
                snapshot.save(progress, trainables.tensors, run.optimizer)
                saved = time.monotonic()
    if progress.best:
        trainables.load(progress.best)
    return progress


def make_optimizer(plan: Plan, tensors: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer:
    parameters = list(tensors.values())
    if plan.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=plan.lr, weight_decay=plan.weight_decay)
    return torch.optim.SGD(parameters, lr=plan.lr, weight_decay=plan.weight_decay, momentum=plan.momentum)


class Run:
    """What stays the same from step to step."""

    def __init__(
        self,
        model: nn.Module,
        courses: Sequence[Course],
        plan: Plan,
        trainables: Trainables,
        accelerator: Accelerator,
        scores: Scorer,
    ) -> None:
        self.model, self.courses, self.plan, self.trainables = model, courses, plan, trainables
        self.accelerator, self.scores = accelerator, scores
        self.processes = Processes(accelerator.process_index, accelerator.num_processes)
        self.optimizer = make_optimizer(plan, trainables.tensors)
        self.pull = trainables.copy() if plan.l1 else None
        self.order = BatchOrder(
            [len(course.train) for course in courses],
            batch_size=plan.batch_size,
            steps=plan.steps,
            seed=plan.seed,
            proportional=plan.mixture == "proportional",
        )

    def step(self, number: int) -> float:
        """One optimizer step; returns the mean loss of its batch."""
        plan, trainables = self.plan, self.trainables
        self.model.train(plan.dropout)
        torch.manual_seed(_seed(plan.seed, number, self.accelerator.process_index))
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._backward(number)
        loss = self.processes.sum_gradients(list(trainables.tensors.values()), loss)
        if not np.isfinite(loss):
            raise RunError(f"the loss became {loss} at step {number + 1}; use a smaller learning rate than {plan.lr:g}")
        trainables.before_step(pull=self.pull, strength=plan.l1)
        if plan.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(list(trainables.tensors.values()), plan.clip_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = plan.lr_at(number)
        self.optimizer.step()
        trainables.after_step()
        return loss

    def _backward(self, number: int) -> float:
        """Gradients of this process's share of the batch, part by part; rows of like length share a part."""
        task, rows = self.order.step(number)
        course, loss = self.courses[task], 0.0
        if self.plan.accumulation > 1:  # a single part stays in its own order
            rows = rows[np.argsort([course.train[row].length for row in rows.tolist()], kind="stable")]
        for part in np.split(rows, self.plan.accumulation):
            mine = self.processes.share(part.tolist())
            if len(mine) == 0:
                continue
            batch = on_device(course.readout.collate([course.train[row] for row in mine]), self.accelerator.device)
            with self.accelerator.autocast():
                values = self.scores(self.model, course.readout, batch)
                lost = nn.functional.cross_entropy(values.float(), batch["labels"], reduction="sum") / len(rows)
            if not lost.requires_grad:
                raise InputError(
                    f"nothing that trains has a part in the scores of {course.readout.task.name!r}: "
                    "the region lies in parameters that its readout does not run (another tower of the model)"
                )
            lost.backward()  # type: ignore[no-untyped-call]
            loss += float(lost.detach())
        return loss

    def look(self, progress: Progress) -> dict[str, float]:
        """What is measured after this step: validation every so often, training accuracy per epoch when asked for."""
        plan, found = self.plan, dict[str, float]()
        if plan.validate_every and progress.step % plan.validate_every == 0:
            found["validation"] = mean_score(self.model, self.courses, "validation", scores=self.scores)
            if plan.keep == "best" and (progress.best_score is None or found["validation"] > progress.best_score):
                progress.best_score, progress.best = found["validation"], self.trainables.copy()
        if plan.stop_at is not None and progress.step % self.order.steps_per_epoch == 0:
            found["train_accuracy"] = mean_score(
                self.model, self.courses, "train", metric="accuracy", scores=self.scores
            )
            progress.finished = found["train_accuracy"] >= plan.stop_at
        return found


def _seed(seed: int, step: int, process: int) -> int:
    """A seed for everything random in this step (dropout), the same whenever the step is run."""
    return int(np.random.SeedSequence((seed, 2, step, process)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def mean_score(
    model: nn.Module, courses: Sequence[Course], split: str, *, metric: str = "score", scores: Scorer = own_scores
) -> float:
    """The mean over tasks of a metric on the training or validation rows."""
    values = []
    for course in courses:
        rows = course.train if split == "train" else course.validation
        read = _bound(scores, course.readout)
        values.append(METRICS[metric](predict(model, course.readout, rows, scores=read)))
    return float(np.mean(values))


def _bound(scores: Scorer, readout: Readout) -> Callable[[nn.Module, Batch], Tensor]:
    return lambda model, batch: scores(model, readout, batch)
