"""Training rows of several tasks, and the steps of everything that is made from them. None of them runs here.

A `Mixture` is learned at once, by one model (P1 §5.1); a `Series` one task after the other (P1 §5.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from skillgraft.papers import samples
from skillgraft.papers.profile import Profile
from skillgraft.papers.samples import DENSITY, Sample, called, sized
from skillgraft.papers.steps import Asked, Part, Step

EMPTY = "empty"
LOOKS = 4  # how often a search looks at its region's score


@dataclass(frozen=True)
class Mixture:
    """`shots` rows per class of every task, drawn with `seed`, and one model tuned on all of them.

    `changes` say how it is tuned, as those of `samples.finetuned`; `start` is γ_base of every task's region.
    """

    profile: Profile
    tasks: tuple[str, ...]
    shots: int
    seed: int
    changes: Mapping[str, Any] = field(default_factory=dict)
    start: float | str = EMPTY

    def tuned(self) -> Step:
        """The multi-task model."""
        return samples.finetuned(self.profile, *self.tasks, shots=self.shots, seed=self.seed, **self.changes)

    def graft(self, task: str) -> Part:
        """A task's region, as a graft with the model's numbers: γ > ½, as many entries as that has."""
        from skillgraft.compose.multitask import task_regions

        steps, optimizer = self.profile.region_steps, self.changes.get("optimizer", "sgd")
        own = {"of": [called(task)], "start": self.start, "steps": steps, "look_every": max(1, steps // LOOKS)}
        if optimizer in self.profile.region_lr:
            own["lr"] = self.profile.region_lr[optimizer]
        return Step(task_regions, {**self._search, **own})[called(task)]

    def union(self, group: Sequence[str]) -> Step:
        """The regions of a group of tasks together."""
        from skillgraft.compose.multitask import union

        return Step(union, {"grafts": [self.graft(task) for task in group]})

    def purified(self, group: Sequence[str]) -> Part:
        """Their union after a few more steps on the mask with the group's loss."""
        from skillgraft.compose.multitask import PURIFYING_STEPS, group_name, purified

        names = [called(task) for task in group]
        grafts = {called(task): self.graft(task) for task in group}
        own = {"grafts": grafts, "groups": [names], "steps": PURIFYING_STEPS}
        return Step(purified, {**self._search, **own})[group_name(names)]

    def gained(self, graft: Asked, task: str) -> tuple[Step, Step, Step]:
        """What a graft, the multi-task model and the base answer about a task: a relative gain is made of these."""
        return (
            samples.answer(self.profile, task, graft=graft),
            samples.answer(self.profile, task, tuned=self.tuned()),
            samples.answer(self.profile, task),
        )

    @property
    def _search(self) -> dict[str, Any]:
        data = samples.rows(self.profile, shots=self.shots, seed=self.seed)
        return {
            "base": self.profile.base, "tuned": self.tuned(), "tasks": list(self.tasks), "data": data,
            "batch_size": self.profile.region_rows,
        }  # fmt: skip


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

    def region(self, task: str) -> Part:
        """The region of that model in which the store learns the task (P1 C.3)."""
        return self._sample(task).graft(**sized(self.density)).region

    def naive(self, task: str) -> Step:
        """All parameters tuned on one task after the other, up to this one."""
        from skillgraft.compose.sequences import tune_on

        *before, last = self.upto(task)
        if not before:
            return self.alone(last)
        same = self.alone(last).arguments
        own = {"task": last, "start": self.naive(before[-1])}
        return Step(tune_on, {"base": self.profile.base, **own, "plan": same["plan"], "data": same["data"]})

    def store(self, task: str) -> Step:
        """The store of grafts once this task is learned."""
        from skillgraft.compose.continual import Learning
        from skillgraft.papers.calls import learn

        *before, last = self.upto(task)
        same = self._sample(last).tuned(optimizer="inside").arguments
        own = {"task": last, "tuned": self.alone(last), "region": self.region(last)}
        earlier = {"before": self.store(before[-1])} if before else {}
        learning = Learning(same["plan"], data=same["data"])
        return Step(learn, {"base": self.profile.base, **own, "learning": learning, **earlier})

    def naive_answers(self, task: str, after: str) -> Step:
        """What the model that was tuned on all tasks up to `after` answers about one of them; heads are the task's own."""
        return samples.answer(self.profile, task, tuned=self.naive(after), heads=self.naive(task))

    def store_answers(self, task: str, after: str) -> Step:
        """What the store, as it was after a task, answers about one of its tasks."""
        from skillgraft.papers.calls import recall

        return samples.answer(self.profile, task, graft=Step(recall, {"store": self.store(after), "task": task}))

    def answers(self, task: str, **model: Asked) -> Step:
        """What a tuned model, or the base, answers about a task."""
        return samples.answer(self.profile, task, **model)

    def _sample(self, task: str) -> Sample:
        return Sample(self.profile, task, self.shots, self.seed)
