"""A loaded base and the tasks' encoded rows, ready to say what any graft does: for searches that try many of them.

    bench = Workbench.open("MiniLM", ["sst2", "ag_news"], rows=200, shots=64)
    way = bench.along(graft)
    for scale in scale_grid(21):
        said = way.said(scale)    # task → Predictions

The model is loaded and the rows are encoded once. A graft is put on live: only its entries are written, the numbers are
those that `apply` would write, and the base's exact bits are back afterwards. A `linear` bench says what the model linearised
around the base says: nothing is put on, and each graft takes one pass over a task's rows, whatever the number of scales.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from skillgraft.compose.judged import ROWS, judged_rows
from skillgraft.compose.rules import combine, heads_alone
from skillgraft.errors import InputError, did_you_mean, listed
from skillgraft.graft import Graft
from skillgraft.live import grafted
from skillgraft.measure.predict import predict
from skillgraft.measure.predictions import Predictions
from skillgraft.readouts.loading import Opened, open_readouts
from skillgraft.readouts.readout import Encoded
from skillgraft.tasks import Task
from skillgraft.training.linearised import Tangent, tangent


@dataclass(frozen=True, eq=False)
class Workbench:
    """One base, its readouts, and each task's rows."""

    opened: Opened
    rows: tuple[Sequence[Encoded], ...]
    split: str
    batch_size: int
    linear: bool = False

    @classmethod
    def open(
        cls,
        base: str | Path,
        tasks: Sequence[str | Path | Task],
        *,
        rows: int | None = ROWS,
        shots: int | None = None,
        train_rows: int | None = None,
        seed: int = 0,
        split: str = "validation",
        readout: str = "auto",
        max_length: int | None = None,
        batch_size: int = 64,
        linear: bool = False,
    ) -> Workbench:
        """Load the base. `judged_rows` says what the options about rows mean; it refuses wrong data before the model loads."""
        chosen = judged_rows(tasks, rows=rows, shots=shots, train_rows=train_rows, seed=seed, split=split)
        opened = open_readouts(base, [task for task, _ in chosen], readout=readout, max_length=max_length)
        encoded = [one.encode(examples) for one, (_, examples) in zip(opened.readouts, chosen, strict=True)]
        return cls(opened, tuple(encoded), split, batch_size, linear)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks' names, in order."""
        return tuple(readout.task.name for readout in self.opened.readouts)

    def said(self, graft: Graft | None = None, *, tasks: Sequence[str] | None = None) -> dict[str, Predictions]:
        """What the base with this graft on it says about the rows of these tasks (all by default)."""
        if graft is not None and self.linear:
            return self.along(graft).said(1.0, tasks=tasks)
        wanted = [self._place(name) for name in (self.tasks if tasks is None else tasks)]
        self._check_heads(graft)
        with nullcontext() if graft is None else grafted(self.opened.model, graft):
            return {self.tasks[place]: self._predicted(place) for place in wanted}

    def along(self, *grafts: Graft, head: Graft | None = None) -> Way:
        """The base and any multiples of these grafts added to it; `head` is the graft whose heads are kept."""
        return Way(self, grafts, head)

    def tangent(self, task: str, grafts: Sequence[Graft], *, head: Graft | None = None) -> Tangent:
        """The model linearised around the base along these grafts, by their places, for a task's rows."""
        place = self._place(task)
        heads = combine([heads_alone(graft) for graft in grafts], head=head)
        self._check_heads(heads)
        bodies = {str(number): graft.without_heads() for number, graft in enumerate(grafts)}
        model, readout = self.opened.model, self.opened.readouts[place]
        with grafted(model, heads) if heads.heads else nullcontext():
            return tangent(model, readout, self.rows[place], bodies, batch_size=self.batch_size, made_by=self._made_by)

    def _predicted(self, place: int) -> Predictions:
        model, readout = self.opened.model, self.opened.readouts[place]
        return predict(model, readout, self.rows[place], batch_size=self.batch_size, made_by=self._made_by)

    @property
    def _made_by(self) -> dict[str, str]:
        return {"split": self.split, "readout": self.opened.name}

    def _place(self, name: str) -> int:
        if name not in self.tasks:
            raise InputError(f"the task {name!r} is not on this bench; {did_you_mean(name, self.tasks)}")
        return self.tasks.index(name)

    def _check_heads(self, graft: Graft | None) -> None:
        """Refuse to read scores off a head of random numbers, and a head of other classes than these tasks have."""
        if self.opened.loader.plan.head != "made":
            return
        heads = graft.heads if graft is not None else {}
        for name in self.opened.fresh:
            brought = [head for key, head in heads.items() if f".{name}".endswith(f".{key}")]
            wanted = list(self.opened.model.state_dict()[name].shape)
            if not brought or list(brought[0].shape) != wanted:
                found = f"the graft's is {list(brought[0].shape)}" if brought else "neither base nor graft has one"
                raise InputError(
                    f"the {self.opened.name} readout of {listed(self.tasks)} reads the head {name} of shape {wanted}, but "
                    f"{found}; measure a graft on the tasks that its head was trained for, or use another readout"
                )


@dataclass(frozen=True, eq=False)
class Way:
    """base + Σ scale · graft on a bench, for any scales."""

    bench: Workbench
    grafts: tuple[Graft, ...]
    head: Graft | None = None
    _tangents: dict[str, Tangent] = field(default_factory=dict, repr=False)

    def said(self, *scales: float, tasks: Sequence[str] | None = None) -> dict[str, Predictions]:
        """What it says at these scales, one for each graft, about the rows of these tasks (all by default)."""
        if len(scales) != len(self.grafts):
            raise InputError(f"a way along {len(self.grafts)} grafts takes one scale for each, found {len(scales)}")
        if not self.bench.linear:
            return self.bench.said(weighted_sum(self.grafts, scales, head=self.head), tasks=tasks)
        by_place = dict(zip(map(str, range(len(self.grafts))), scales, strict=True))
        return {task: self._tangent(task).at(by_place) for task in (self.bench.tasks if tasks is None else tasks)}

    def _tangent(self, task: str) -> Tangent:
        if task not in self._tangents:
            self._tangents[task] = self.bench.tangent(task, self.grafts, head=self.head)
        return self._tangents[task]


def at_scale(graft: Graft, scale: float) -> Graft:
    """scale · graft; at scale 0 its heads alone, which says the same without writing every entry's own number again."""
    return scale * graft if scale else heads_alone(graft)


def weighted_sum(grafts: Sequence[Graft], scales: Sequence[float], *, head: Graft | None = None) -> Graft:
    """Σ scale_t · graft_t. A graft at scale 0 is left out, so that the others' numbers are exactly what they are alone."""
    parts = [at_scale(graft, scale) for graft, scale in zip(grafts, scales, strict=True)]
    return combine([part for part in parts if len(part)] or parts, head=head)


def scale_grid(points: int, *, most: float = 1.0) -> tuple[float, ...]:
    """`points` equally spaced scales from 0 to `most`; 21 of them are 0, 0.05, … 1 (P2)."""
    if points < 2:
        raise InputError(f"a search needs at least 2 points, found {points}")
    if not 0 < most < float("inf"):
        raise InputError(f"the largest scale must be a number above 0, found {most}")
    return tuple(most * number / (points - 1) for number in range(points))
