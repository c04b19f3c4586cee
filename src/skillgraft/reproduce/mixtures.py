"""Training rows of several tasks, and the steps of everything that is made from them. None of them runs here.

A `Mixture` is learned at once, by one model (P1 §5.1); a `Series` one task after the other (P1 §5.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from skillgraft.reproduce import parts
from skillgraft.reproduce.profile import Profile
from skillgraft.reproduce.samples import DENSITY, Sample, called, sized
from skillgraft.reproduce.step import Step

EMPTY = "empty"
PURIFYING_STEPS = 10  # P1 §5.1
LOOKS = 4  # how often a search looks at its region's score


@dataclass(frozen=True)
class Mixture:
    """`shots` rows per class of every task, drawn with `seed`, and one model tuned on all of them.

    `changes` say how it is tuned, as those of `parts.tuned`; `start` is γ_base of every task's region.
    """

    profile: Profile
    tasks: tuple[str, ...]
    shots: int
    seed: int
    changes: Mapping[str, Any] = field(default_factory=dict)
    start: float | str = EMPTY

    def tuned(self) -> Step:
        """The multi-task model."""
        return parts.tuned(self.profile, *self.tasks, shots=self.shots, seed=self.seed, **self.changes)

    def graft(self, task: str) -> Step:
        """A task's region, as a graft with the model's numbers: γ > ½, as many entries as that has."""
        steps = self.profile.region_steps
        settings = {"task": task, "start": self.start, "steps": steps, "look_every": max(1, steps // LOOKS)}
        optimizer = self.changes.get("optimizer", "sgd")
        if optimizer in self.profile.region_lr:
            settings["lr"] = self.profile.region_lr[optimizer]
        return Step("task-region", {**self._search, **settings}, {"tuned": self.tuned()})

    def union(self, group: Sequence[str]) -> Step:
        """The regions of a group of tasks together."""
        return Step("unite", {}, {called(task): self.graft(task) for task in group})

    def purified(self, group: Sequence[str]) -> Step:
        """Their union after a few more steps on the mask with the group's loss."""
        settings = {"group": [called(task) for task in group], "steps": PURIFYING_STEPS}
        return Step("purify", {**self._search, **settings}, {"tuned": self.tuned(), "union": self.union(group)})

    def gained(self, graft: Step, task: str) -> tuple[Step, Step, Step]:
        """What a graft, the multi-task model and the base say about a task: a relative gain is made of these."""
        return (
            parts.said(self.profile, task, graft=graft),
            parts.said(self.profile, task, tuned=self.tuned()),
            parts.said(self.profile, task),
        )

    @property
    def _search(self) -> dict[str, Any]:
        data = {
            "shots": self.shots, "seed": self.seed, "batch_size": self.profile.region_rows,
            "max_length": self.profile.max_length, "readout": self.profile.readout,
        }  # fmt: skip
        return {"base": self.profile.base, "tasks": list(self.tasks), "data": data}


@dataclass(frozen=True)
class Series:
    """`shots` rows per class of every task, drawn with `seed`; tasks come in this order, each in a region of this density."""

    profile: Profile
    tasks: tuple[str, ...]
    shots: int
    seed: int
    density: float = DENSITY

    def upto(self, task: str) -> tuple[str, ...]:
        """The tasks that have been learned once this one has."""
        return self.tasks[: self.tasks.index(task) + 1]

    def alone(self, task: str) -> Step:
        """A model of its own for a task."""
        return self._sample(task).tuned()

    def region(self, task: str) -> Step:
        """The region of that model in which the store learns the task (P1 C.3)."""
        return self._sample(task).graft(**sized(self.density))

    def naive(self, task: str) -> Step:
        """All parameters tuned on one task after the other, up to this one."""
        *before, last = self.upto(task)
        return Step("tune-on", self._learning(last), {"start": self.naive(before[-1])}) if before else self.alone(last)

    def store(self, task: str) -> Step:
        """The store of grafts once this task is learned."""
        *before, last = self.upto(task)
        earlier = {"before": self.store(before[-1])} if before else {}
        return Step(
            "learn",
            self._learning(last, optimizer="inside"),
            {"tuned": self.alone(last), "region": self.region(last), **earlier},
        )

    def naive_says(self, task: str, after: str) -> Step:
        """What the model that was tuned on all tasks up to `after` says about one of them; heads are the task's own."""
        return parts.said(self.profile, task, tuned=self.naive(after), heads=self.naive(task))

    def store_says(self, task: str, after: str) -> Step:
        """What the store, as it was after a task, says about one of its tasks."""
        return parts.said(self.profile, task, graft=Step("recall", {"task": task}, {"store": self.store(after)}))

    def says(self, task: str, tuned: Step | None = None) -> Step:
        """What a tuned model, or the base, says about a task."""
        return parts.said(self.profile, task, tuned=tuned)

    def _sample(self, task: str) -> Sample:
        return Sample(self.profile, task, self.shots, self.seed)

    def _learning(self, task: str, **changes: Any) -> dict[str, Any]:
        """How a task is trained after others: as it is on its own, but for changes."""
        same = self._sample(task).tuned(**changes).settings
        return {"task": task, **{key: value for key, value in same.items() if key != "tasks"}}
