"""Everything a search between two folders needs, opened: the base's model with tuned's heads on it, a task's rows, the problem.

Data and folders are checked before the model is loaded. Nothing of the scope's size is kept besides what `Problem` keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from skillgraft.checkpoint import Checkpoint, Tensors, fingerprint, take
from skillgraft.errors import InputError
from skillgraft.extraction import extract, open_tuned
from skillgraft.graft import Graft
from skillgraft.live import grafted
from skillgraft.localize.problem import Problem, Reference, Start, Step, starting_region
from skillgraft.measure.metrics import METRICS
from skillgraft.measure.predict import by_length, on_device
from skillgraft.measure.predictions import Predictions
from skillgraft.measure.summary import summary
from skillgraft.readouts.loading import open_readouts
from skillgraft.readouts.readout import Batch, Encoded, Readout, loss_of
from skillgraft.region import Region
from skillgraft.tasks import Split, Task, load_task, training_split
from skillgraft.training.batches import BatchOrder
from skillgraft.training.processes import Processes

P1_ROWS = 1024  # of one step
_PART = 64  # rows of one backward pass
_ORDERED_STEPS = 10_000  # the rows of later steps are those of the first ones again


@dataclass(frozen=True)
class Rows:
    """Which rows a search learns from, and how they are read: P1's true labels, as many rows in a step as the method likes."""

    shots: int | None = None
    rows: int | None = None
    seed: int = 0
    batch_size: int | None = None  # P1's 1024; `localize_skill` knows what other methods like
    max_length: int | None = None
    readout: str = "auto"
    labels: str = "true"  # or "tuned": learn from what the tuned model says (P1 D.4)

    def __post_init__(self) -> None:
        if self.labels not in ("true", "tuned"):
            raise InputError(f"labels are 'true' or 'tuned', found {self.labels!r}")
        if self.batch_size is not None and self.batch_size < 1:
            raise InputError(f"batch_size must be 1 or more, found {self.batch_size}")

    @property
    def step_rows(self) -> int:
        """Rows of one step at most."""
        return self.batch_size or P1_ROWS


@dataclass(frozen=True, eq=False)
class Workplace:
    """A loaded base with tuned's heads on it, the task's encoded rows, and the problem between base and tuned."""

    source: Checkpoint
    target: Tensors
    heads: Graft  # tuned's heads and provenance, no entries
    data: Rows
    split: Split
    readout: Readout
    judged: Sequence[Encoded]  # the rows whose scores are told: validation, or training where there are none
    compared: Sequence[Encoded]  # the rows by which steps of a search are compared: training and validation, as in P1
    problem: Problem

    @property
    def model(self) -> nn.Module:
        return self.problem.model

    @property
    def identity(self) -> dict[str, Any]:
        """What decides a search here: base, tuned, rows and how they are read."""
        return {
            "base": self.source.fingerprint,
            "tuned": fingerprint(self.target),
            "heads": self.heads.digest,
            "data": asdict(self.data),
            "rows": (self.split.train.digest, self.split.validation.digest),
            "readout": dict(self.readout.settings),
            "processes": self.problem.processes.count,
        }

    def amplified(self, factor: float) -> Workplace:
        """The same place with a multiple of tuned's change; tuned itself stays what it is."""
        return replace(self, problem=self.problem.amplified(factor))

    def start(self, start: Start) -> Region:
        """γ_base: a density (or count) of the most moved entries, nothing ("empty"), a region, or its file."""
        return starting_region(start, self.source, self.target, self.problem.scope)

    def score_now(self) -> float:
        """The score of the model as it stands on the compared rows."""
        return METRICS["score"](self._said(self.compared))

    def said(self, region: Region) -> Predictions:
        """What the reference says with tuned's numbers in this region."""
        with self.problem.borrowed():
            self.problem.put_on(region)
            return self._said(self.judged)

    @cached_property
    def base_said(self) -> Predictions:
        return self._said(self.judged)

    @cached_property
    def tuned_said(self) -> Predictions:
        """What all of tuned says, whatever the scope leaves out."""
        with self.problem.all_of(self.target):
            return self._said(self.judged)

    def score(self, region: Region) -> float:
        return METRICS["score"](self.said(region))

    def tuned_score(self) -> float:
        return METRICS["score"](self.tuned_said)

    def told(self, region: Region) -> dict[str, Any]:
        """Everything there is to tell about a region's predictions."""
        return summary(self.said(region), base=self.base_said, tuned=self.tuned_said)

    def scores(self, region: Region) -> dict[str, Any]:
        base, tuned = self.base_said, self.tuned_said
        return {"base": summary(base), "tuned": summary(tuned, base=base), "graft": self.told(region)}

    def cut(self, region: Region) -> Graft:
        """The graft of this region."""
        task = self.readout.task
        return replace(
            self.heads,
            region=region,
            before={name: take(self.source, name, at) for name, at in region.sites.items()},
            change={name: take(self.target, name, at) for name, at in region.sites.items()},
            info=self.heads.info.updated(
                task=task.name, labels=list(task.labels) or None, readout=dict(self.readout.settings)
            ),
        )

    def _said(self, rows: Sequence[Encoded]) -> Predictions:
        return self.problem.processes.predict(self.model, self.readout, rows)


@contextmanager
def open_workplace(
    base: str | Path,
    tuned: str | Path,
    task: str | Path | Task,
    *,
    scope: str = "layers",
    reference: Reference = "base",
    data: Rows = Rows(),
) -> Iterator[Workplace]:
    """Open everything, on the device and for the processes that accelerate finds."""
    accelerator = Accelerator()
    processes = Processes(accelerator.process_index, accelerator.num_processes)
    loaded = task if isinstance(task, Task) else load_task(task)
    split = training_split(loaded, shots=data.shots, rows=data.rows, seed=data.seed)
    # With a budget everything is checked and counted without all that changed being held; the one entry goes again.
    one = extract(base, tuned, budget=1, scope=scope)
    heads = one & Region(one.region.scope, {})
    source = Checkpoint.open(base)
    target = open_tuned(Path(tuned), source)
    opened = open_readouts(base, [loaded], readout=data.readout, max_length=data.max_length)
    model, readout = opened.model.to(accelerator.device), opened.readouts[0]
    train, validation = readout.encode(split.train), readout.encode(split.validation)
    with grafted(model, heads):
        problem = Problem.between(
            model,
            target,
            steps=_steps(readout, train, data, processes),
            loss=_loss(readout, accelerator.device),
            scope=scope,
            reference=reference,
            processes=processes,
        )
        place = Workplace(
            source, target, heads, data, split, readout, validation or train, [*train, *validation], problem
        )
        yield _relabelled(place) if data.labels == "tuned" else place


def _steps(readout: Readout, rows: Sequence[Encoded], data: Rows, processes: Processes) -> Callable[[int], Step]:
    """All rows at every step when they fit, else the step's own share of shuffled epochs; in parts of like length."""
    size = min(data.step_rows, len(rows))
    order = BatchOrder([len(rows)], batch_size=size, steps=_ORDERED_STEPS, seed=data.seed)

    def step(number: int) -> Step:
        chosen = rows if size == len(rows) else [rows[row] for row in order.step(number % _ORDERED_STEPS)[1].tolist()]
        mine = processes.share(chosen)
        return [(readout.collate([mine[place] for place in part]), len(part) / size) for part in by_length(mine, _PART)]

    return step


def _loss(readout: Readout, device: torch.device) -> Callable[[nn.Module, Batch], torch.Tensor]:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        here = on_device(batch, device)
        return loss_of(readout.scores(model, here), here["labels"])

    return loss


def _relabelled(place: Workplace) -> Workplace:
    """The same place, learning from what tuned says; what is told is still measured by the true labels."""
    with place.problem.all_of(place.target):
        said = place._said(place.compared).predicted
    compared = [Encoded(row.inputs, int(label), row.length) for row, label in zip(place.compared, said, strict=True)]
    steps = _steps(place.readout, compared[: len(place.split.train)], place.data, place.problem.processes)
    return replace(place, compared=compared, problem=replace(place.problem, steps=steps))
