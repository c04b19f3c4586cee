"""A loaded base and the tasks' encoded rows, ready to say what any graft does: for searches that try many of them.

    bench = Workbench.open("MiniLM", ["sst2", "ag_news"], rows=200, shots=64)
    for scale in scale_grid(21):
        said = bench.said(at_scale(graft, scale))    # task → Predictions

The model is loaded and the rows are encoded once. A graft is put on live: only its entries are written, the numbers are
those that `apply` would write, and the base's exact bits are back afterwards. With `scorer=post_hoc` it is not put on: its
scores are those of the model linearised around the base.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from skillgraft.compose.judged import ROWS, judged_rows
from skillgraft.compose.rules import combine, heads_alone
from skillgraft.errors import InputError, did_you_mean, listed
from skillgraft.graft import Graft
from skillgraft.live import grafted
from skillgraft.measure.predict import Scores, predict
from skillgraft.measure.predictions import Predictions
from skillgraft.readouts.loading import Opened, open_readouts
from skillgraft.readouts.readout import Encoded, Readout
from skillgraft.tasks import Task

# How scores are read off the base's model for a graft that is not put on it, as `training.linearised.post_hoc` does.
Scorer = Callable[[nn.Module, Readout, Graft], Scores]


@dataclass(frozen=True, eq=False)
class Workbench:
    """One base, its readouts, and each task's rows."""

    opened: Opened
    rows: tuple[Sequence[Encoded], ...]
    split: str
    batch_size: int
    scorer: Scorer | None = None

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
        scorer: Scorer | None = None,
    ) -> Workbench:
        """Load the base. `judged_rows` says what the options about rows mean; it refuses wrong data before the model loads."""
        chosen = judged_rows(tasks, rows=rows, shots=shots, train_rows=train_rows, seed=seed, split=split)
        opened = open_readouts(base, [task for task, _ in chosen], readout=readout, max_length=max_length)
        encoded = [one.encode(examples) for one, (_, examples) in zip(opened.readouts, chosen, strict=True)]
        return cls(opened, tuple(encoded), split, batch_size, scorer)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks' names, in order."""
        return tuple(readout.task.name for readout in self.opened.readouts)

    def said(self, graft: Graft | None = None, *, tasks: Sequence[str] | None = None) -> dict[str, Predictions]:
        """What the base with this graft on it says about the rows of these tasks (all by default)."""
        wanted = [self._place(name) for name in (self.tasks if tasks is None else tasks)]
        self._check_heads(graft)
        if graft is None or self.scorer is None:
            with nullcontext() if graft is None else grafted(self.opened.model, graft):
                return {self.tasks[place]: self._predicted(place) for place in wanted}
        body = graft.without_heads()
        with grafted(self.opened.model, heads_alone(graft)) if graft.heads else nullcontext():
            return {self.tasks[place]: self._predicted(place, linearised=body) for place in wanted}

    def _predicted(self, place: int, *, linearised: Graft | None = None) -> Predictions:
        model, readout = self.opened.model, self.opened.readouts[place]
        scores = None if linearised is None or self.scorer is None else self.scorer(model, readout, linearised)
        made_by = {"split": self.split, "readout": self.opened.name}
        return predict(model, readout, self.rows[place], batch_size=self.batch_size, scores=scores, made_by=made_by)

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
