"""What a step of each training method costs, side by side: seconds, optimizer state, peak memory (P2's efficiency table).

setups = {"full": Setup(plan), "linear": Setup(plan.with_changes(method="linear")), "talos": Setup(plan, inside=region)}
for cost in training_costs("MiniLM", "sst2", setups):
    cost.name, cost.step_seconds, cost.optimizer_bytes, cost.peak_bytes
"""

from __future__ import annotations

import copy
import statistics
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from skillgraft.errors import InputError
from skillgraft.opening.compat import watched_operations
from skillgraft.opening.processes import Processes
from skillgraft.task_model import TaskModel
from skillgraft.tasks.data import Data, TaskLike
from skillgraft.training.loop import Course, Training, borrowed_random
from skillgraft.training.methods import prepare
from skillgraft.training.plan import TrainingPlan
from skillgraft.values.region import Region


class TensorMemory:
    """Counts while it is entered: `now` and `peak`, in bytes."""

    def __init__(self) -> None:
        self.now: int = 0
        self.peak: int = 0
        self._seen: weakref.WeakKeyDictionary[torch.UntypedStorage, None] = weakref.WeakKeyDictionary()
        self._watched = watched_operations(self._see)

    def __enter__(self) -> Self:
        self._watched.__enter__()
        return self

    def __exit__(self, *why: Any) -> None:
        self._watched.__exit__(*why)

    def _see(self, values: list[Any]) -> None:
        for tensor in values:
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage not in self._seen:
                    self._seen[storage] = None
                    self._add(storage.nbytes())
                    weakref.finalize(storage, self._add, -storage.nbytes()).atexit = False

    def _add(self, nbytes: int) -> None:
        self.now += nbytes
        self.peak = max(self.peak, self.now)


_WARM_UP = 2  # steps that are not counted: optimizers make their state in the first


@dataclass(frozen=True)
class Setup:
    """How to train: a plan, inside a region or everywhere."""

    plan: TrainingPlan
    inside: Region | None = None


@dataclass(frozen=True)
class Cost:
    """One setup's step: the median of its seconds, what its optimizer keeps, and the most bytes of tensors alive at once.

    The peak holds the model, gradients, activations, optimizer state and, in a region, the indices of its entries.
    """

    name: str
    trained: int
    step_seconds: float
    optimizer_bytes: int
    peak_bytes: int
    seconds: tuple[float, ...]


def training_costs(
    base: str | Path,
    task: TaskLike,
    setups: Mapping[str, Setup],
    *,
    steps: int = 10,
    data: Data = Data(),
) -> tuple[Cost, ...]:
    """Every setup's cost of a step on a task's training rows; see `step_costs`."""
    opened = TaskModel.open(base, [task], data=data, splits=("train",))
    (name,) = opened.tasks
    course = Course(opened.rows.readout(name), opened.rows.encoded(name, "train"), ())
    return step_costs(opened.model, [course], setups, steps=steps)


def step_costs(
    model: nn.Module, courses: Sequence[Course], setups: Mapping[str, Setup], *, steps: int = 10
) -> tuple[Cost, ...]:
    """The setups take turns, one step each, so that all see the same noise of the machine. The model is left as it is.

    All read the same rows at the same step if their plans agree on seed and batch size. Memory is counted in a run of its own.
    """
    if steps < 1 or not setups:
        raise InputError(f"expected one setup or more and one step or more, found {len(setups)} and {steps}")
    with ExitStack() as listening, borrowed_random(model):
        runs = {name: _run(copy.deepcopy(model), courses, setup, _WARM_UP + steps) for name, setup in setups.items()}
        for run in runs.values():
            listening.enter_context(run.prepared.trainables.listening())
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for number in range(_WARM_UP + steps):
            for name, run in runs.items():
                start = time.perf_counter()
                run.step(number)
                seconds[name].append(time.perf_counter() - start)
        found = {name: (len(run.prepared.trainables), _state_bytes(run.optimizer)) for name, run in runs.items()}
        runs.clear()
        peaks = {name: _peak(model, courses, setup) for name, setup in setups.items()}
    return tuple(
        Cost(name, trained, statistics.median(taken), state, peaks[name], tuple(taken))
        for name, (trained, state) in found.items()
        for taken in [seconds[name][_WARM_UP:]]
    )


def _run(model: nn.Module, courses: Sequence[Course], setup: Setup, steps: int) -> Training:
    prepared = prepare(model, setup.plan, inside=setup.inside)
    return Training(model, courses, setup.plan.with_changes(steps=steps), prepared, Processes.here())


def _state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Moments and the like; the count of steps that torch keeps for each tensor is left out."""
    parts = [part for state in optimizer.state.values() for part in state.values()]
    return sum(part.numel() * part.element_size() for part in parts if isinstance(part, Tensor) and part.ndim)


def _peak(model: nn.Module, courses: Sequence[Course], setup: Setup) -> int:
    """Of two steps, so that in the second the optimizer's state is there during the backward pass."""
    mine, memory = copy.deepcopy(model), TensorMemory()
    with memory:
        run = _run(mine, courses, setup, 2)
        with run.prepared.trainables.listening():
            for number in range(2):
                run.step(number)
    return memory.peak
