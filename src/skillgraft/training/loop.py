"""The loop: batches in, trained numbers out, on any device and number of processes that accelerate offers.

Gradients are summed over processes by hand instead of wrapping the model: in a region only its entries are exchanged. The
loss of a step is the mean over the whole batch, however it is split into processes and parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from skillgraft.errors import InputError, RunError
from skillgraft.live.bottleneck import Adapters
from skillgraft.live.grafted import as_numpy
from skillgraft.measure.metrics import METRICS
from skillgraft.opening.processes import ALONE, Processes
from skillgraft.opening.runtime import Runtime
from skillgraft.predictions.predict import on_device, predict
from skillgraft.readouts.readout import Batch, Encoded, Readout, units_of
from skillgraft.tasks.data import BatchOrder
from skillgraft.training.plan import TrainingPlan
from skillgraft.training.snapshot import Saving, Snapshot
from skillgraft.training.trainables import Trainables
from skillgraft.values.numbers import Array

Scorer = Callable[[nn.Module, Readout, Batch], Tensor]
_STEP = "step"  # the optimizer's counter, which every process has


def own_scores(model: nn.Module, readout: Readout, batch: Batch) -> Tensor:
    """The model's own scores (and not those of its linearisation)."""
    return readout.scores(model, batch)


@dataclass(frozen=True)
class Prepared:
    """What trains under a plan, how the model's scores are read, and the adapters that were attached for it."""

    trainables: Trainables
    scores: Scorer = own_scores
    adapters: Adapters | None = None


def borrowed_random(model: nn.Module) -> AbstractContextManager[None]:
    """The caller's random state comes back on exit: the CPU's, and that of every device of the model's type.

    `torch.manual_seed` seeds the accelerator even for a model on the CPU, so then the accelerator's states come back.
    """
    kind = next(model.parameters()).device.type
    if kind in ("cpu", "meta"):  # meta tensors have no numbers, and no random state of their own
        accelerator = torch.accelerator.current_accelerator()
        kind = accelerator.type if accelerator is not None else "cpu"
    devices = range(torch.get_device_module(kind).device_count()) if kind != "cpu" else ()
    return torch.random.fork_rng(devices, device_type=kind)


@dataclass(frozen=True)
class Course:
    """One task's share of a run: how it is read, the rows it trains on and the rows it validates on."""

    readout: Readout
    train: Sequence[Encoded]
    validation: Sequence[Encoded]


@dataclass
class TrainingProgress:
    """How far a run is."""

    step: int = 0
    log: list[dict[str, Any]] = field(default_factory=list)
    best_score: float | None = None
    best: dict[str, Tensor] = field(default_factory=dict)
    finished: bool = False

    def save(
        self, snapshot: Snapshot, trainables: Trainables, optimizer: torch.optim.Optimizer, processes: Processes
    ) -> None:
        """Keep it, with the trained numbers and the optimizer's state; of a split model all processes have to ask."""

        def whole(name: str, part: Tensor) -> Array:
            return as_numpy(trainables.whole(name, part, processes))

        arrays = {f"value/{name}": whole(name, tensor) for name, tensor in trainables.tensors.items()}
        arrays |= {f"best/{name}": whole(name, tensor) for name, tensor in self.best.items()}
        for name, tensor in trainables.tensors.items():
            for key, part in optimizer.state.get(tensor, {}).items():
                state = torch.as_tensor(part)
                arrays[f"state/{key}/{name}"] = whole(name, state) if key != _STEP else as_numpy(state)
        if processes.is_main:
            facts = {"step": self.step, "log": self.log, "best_score": self.best_score, "finished": self.finished}
            snapshot.write(arrays, facts)

    @classmethod
    def load(
        cls, snapshot: Snapshot, trainables: Trainables, optimizer: torch.optim.Optimizer, processes: Processes
    ) -> TrainingProgress | None:
        """The progress of an earlier run with the same settings, its numbers put in place; None if there is none."""
        tensors = trainables.tensors
        found = snapshot.recall(processes, next(iter(tensors.values())).device)
        if found is None:
            return None
        arrays, facts = found
        best = {}
        with torch.no_grad():
            for kind, rest, numbers in arrays:
                if kind == "value":
                    tensors[rest].copy_(trainables.part(rest, numbers, processes))
                elif kind == "best":
                    best[rest] = trainables.part(rest, numbers, processes).to(tensors[rest].device)
                else:
                    state, _, name = rest.partition("/")
                    mine = numbers if state == _STEP else trainables.part(name, numbers, processes)
                    # Optimizers keep their step counter on the CPU and the rest beside the parameter.
                    optimizer.state[tensors[name]][state] = mine.to("cpu" if state == _STEP else tensors[name].device)
        return cls(facts["step"], facts["log"], facts["best_score"], best, facts["finished"])


def train(
    training: Training,
    *,
    snapshot: Snapshot | None = None,
    runtime: Runtime = Runtime(),
    on_checkpoint: Callable[[int], None] | None = None,
) -> TrainingProgress:
    """Train in place. With a snapshot, a run that was killed goes on where it was and ends with the same numbers."""
    plan, trainables, optimizer = training.plan, training.prepared.trainables, training.optimizer
    processes = training.processes
    earlier = TrainingProgress.load(snapshot, trainables, optimizer, processes) if snapshot else None
    progress = earlier or TrainingProgress()
    trainables.after_step()
    saving = Saving(snapshot, runtime.snapshot_seconds, processes, training.device)
    with borrowed_random(training.model), trainables.listening():
        while progress.step < plan.steps and not progress.finished:
            loss = training.step(progress.step)
            entry = {"step": progress.step + 1, "loss": loss, "lr": plan.lr_at(progress.step)}
            progress.step += 1
            progress.log.append(entry | training.look(progress))
            runtime.progress(progress.step, plan.steps, progress.log[-1])
            if on_checkpoint and plan.checkpoint_every and progress.step % plan.checkpoint_every == 0:
                on_checkpoint(progress.step)
            saving.after_step(lambda kept: progress.save(kept, trainables, optimizer, processes))
    if progress.best:
        trainables.load(progress.best)
    return progress


def make_optimizer(plan: TrainingPlan, tensors: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer:
    parameters = list(tensors.values())
    if plan.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=plan.lr, weight_decay=plan.weight_decay)
    return torch.optim.SGD(parameters, lr=plan.lr, weight_decay=plan.weight_decay, momentum=plan.momentum)


@dataclass(frozen=True, eq=False)
class Training:
    """A run: the model that is trained in place, its rows, the plan, and what trains under it."""

    model: nn.Module
    courses: Sequence[Course]
    plan: TrainingPlan
    prepared: Prepared
    processes: Processes = ALONE
    autocast: Callable[[], AbstractContextManager[None]] = nullcontext

    def __post_init__(self) -> None:
        _ = self.origin  # taken now, before a snapshot brings other numbers

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        return make_optimizer(self.plan, self.prepared.trainables.tensors)

    @cached_property
    def origin(self) -> dict[str, Tensor] | None:
        """Where a pull draws to: the numbers before the first step."""
        return self.prepared.trainables.copy() if self.plan.l1 or self.plan.pull else None

    @cached_property
    def order(self) -> BatchOrder:
        return BatchOrder(
            [len(course.train) for course in self.courses],
            batch_size=self.plan.batch_size,
            steps=self.plan.steps,
            seed=self.plan.seed,
            proportional=self.plan.mixture == "proportional",
        )

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def step(self, number: int) -> float:
        """One optimizer step; returns the mean loss of its batch."""
        plan, trainables = self.plan, self.prepared.trainables
        self._set_mode()
        torch.manual_seed(_seed(plan.seed, number, self.processes.index))
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._backward(number)
        loss = self.processes.sum_gradients(trainables.here, loss, self.device)
        if not np.isfinite(loss):
            raise RunError(f"the loss became {loss} at step {number + 1}; use a smaller learning rate than {plan.lr:g}")
        trainables.before_step(pull=self.origin, strength=plan.l1)
        if plan.clip_norm is not None:
            trainables.clip(plan.clip_norm, self.processes)
        for group in self.optimizer.param_groups:
            group["lr"] = plan.lr_at(number)
        self.optimizer.step()
        if self.origin is not None and plan.pull:
            trainables.shrink(self.origin, plan.pull * plan.lr_at(number))
        trainables.after_step()
        return loss

    def _set_mode(self) -> None:
        """Dropout as the plan says. Running statistics stay the base's: they are not learned, and no region holds them."""
        self.model.train(self.plan.uses_dropout)
        for module in self.model.modules():
            if getattr(module, "track_running_stats", False):
                module.eval()

    def _backward(self, number: int) -> float:
        """Gradients of this process's share of the batch, part by part; rows of like length share a part."""
        task, rows = self.order.step(number)
        course, loss = self.courses[task], 0.0
        units = units_of(course.train[row] for row in rows.tolist())
        if self.plan.accumulation > 1:  # a single part stays in its own order
            rows = rows[np.argsort([course.train[row].length for row in rows.tolist()], kind="stable")]
        for part in np.split(rows, self.plan.accumulation):
            mine = self.processes.share(part.tolist())
            if len(mine) == 0 and not self.processes.split:
                continue
            # A split model needs every process: one without rows runs one that counts nothing.
            batch = on_device(
                course.readout.collate([course.train[row] for row in mine or part[:1].tolist()]), self.device
            )
            with self.autocast():
                values = self.prepared.scores(self.model, course.readout, batch)
                lost = nn.functional.cross_entropy(values.float(), batch["labels"], reduction="sum")
                lost = lost / units if mine else lost * 0.0
            if not lost.requires_grad:
                raise InputError(
                    f"nothing that trains has a part in the scores of {course.readout.task.name!r}: "
                    "the region lies in parameters that its readout does not run (another tower of the model)"
                )
            lost.backward()  # type: ignore[no-untyped-call]
            loss += float(lost.detach())
        return loss

    def look(self, progress: TrainingProgress) -> dict[str, float]:
        """What is measured after this step: validation every so often, training accuracy per epoch when asked for."""
        plan, found = self.plan, dict[str, float]()
        if plan.validate_every and progress.step % plan.validate_every == 0:
            found["validation"] = self.mean_score("validation")
            if plan.keep == "best" and (progress.best_score is None or found["validation"] > progress.best_score):
                progress.best_score, progress.best = found["validation"], self.prepared.trainables.copy()
        if plan.stop_at is not None and progress.step % self.order.steps_per_epoch == 0:
            found["train_accuracy"] = self.mean_score("train", metric="right")
            progress.finished = found["train_accuracy"] >= plan.stop_at
        return found

    def mean_score(self, split: str, *, metric: str = "merit") -> float:
        """The mean over tasks of a metric on the training or validation rows."""
        return float(np.mean([self.score(course, split, metric=metric) for course in self.courses]))

    def score(self, course: Course, split: str, *, metric: str) -> float:
        """One task's metric, as the run reads its scores."""
        rows = course.train if split == "train" else course.validation
        with self.autocast():
            found = predict(self.model, course.readout, rows, scores=_bound(self.prepared.scores, course.readout))
        return METRICS[metric](found)


def _seed(seed: int, step: int, process: int) -> int:
    """A seed for everything random in this step (dropout), the same whenever the step is run."""
    return int(np.random.SeedSequence((seed, 2, step, process)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _bound(scores: Scorer, readout: Readout) -> Callable[[nn.Module, Batch], Tensor]:
    return lambda model, batch: scores(model, readout, batch)
