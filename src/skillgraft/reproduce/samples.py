"""A draw of a task's training rows, and the steps of everything that is made from it. None of them runs here.

A recipe's cells are asked of samples: `says(tuned)` is the step in which a sample's tuned model answers the test rows,
`says(graft(1e-3), task="imdb")` that in which its graft answers another task's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from skillgraft.reproduce import parts
from skillgraft.reproduce.content import task_of
from skillgraft.reproduce.profile import Profile
from skillgraft.reproduce.step import Step

DENSITY, START = 1e-4, 1e-5  # P1 §3.1: a graft of 0.01 % of the scope from γ_base = 0.001 %


@dataclass(frozen=True)
class Sample:
    """`shots` rows per class of a task, drawn with `seed`; `most` takes all rows instead, so many per class at most."""

    profile: Profile
    task: str
    shots: int
    seed: int
    most: int | None = None

    def tuned(self, **changes: Any) -> Step:
        """A model tuned on these rows; changes are those of `parts.tuned`."""
        return parts.tuned(self.profile, self.task, shots=self.shots, seed=self.seed, **self._all_rows, **changes)

    def graft(self, model: Step | None = None, **options: Any) -> Step:
        """A graft in that model, or in the tuned one; options are those of `parts.graft`."""
        found = model or self.tuned()
        return parts.graft(
            self.profile, found, self.task, shots=self.shots, seed=self.seed, **self._all_rows, **options
        )

    def base_region(self, name: str, density: float) -> Step:
        """A region of the base alone that these rows tell."""
        return parts.base_region(self.profile, self.task, shots=self.shots, seed=self.seed, name=name, density=density)

    def says(self, task: str = "", split: str = "test", **model: Any) -> Step:
        """What a model (arguments of `parts.said`) says about a task's test rows, or about the sample's own others."""
        if split == "test":
            return parts.said(self.profile, task or self.task, **model)
        return parts.said_in_training(self.profile, self.task, shots=self.shots, seed=self.seed, split=split, **model)

    @property
    def _all_rows(self) -> dict[str, Any]:
        return {} if self.most is None else {"most": self.most}


# The arguments of `parts.said` for one of a sample's models; the step that answers a cell's question.
Model = Callable[[Sample], dict[str, Any]]
Ask = Callable[[Sample], Step]


def called(task: str) -> str:
    """A task's name, whether it was given as a name or as a file."""
    return task_of(task).name


def drawn(profile: Profile, tasks: Iterable[str], shots: int) -> dict[str, list[Sample]]:
    """The samples of each task, by its name."""
    return {called(task): draws(profile, task, shots) for task in tasks}


def draws(profile: Profile, task: str, shots: int, *, least: int = 1) -> list[Sample]:
    """The samples of a task: one for each seed."""
    return [Sample(profile, task, shots, seed) for seed in profile.seeds_at(shots, least=least)]


def ladder(profile: Profile) -> tuple[int, ...]:
    """Numbers of shots from few to many, each four times the one before."""
    if profile.shots:
        return profile.shots
    shots = [profile.few]
    while shots[-1] < profile.many:
        shots.append(min(4 * shots[-1], profile.many))
    return tuple(shots)


def says(model: Model, *, task: str = "", split: str = "test") -> Ask:
    return lambda sample: sample.says(task, split, **model(sample))


def base(_sample: Sample) -> dict[str, Any]:
    return {}


def tuned(sample: Sample) -> dict[str, Any]:
    return {"tuned": sample.tuned()}


def tuned_by(**changes: Any) -> Model:
    """Tuned in another way: an optimizer, a method, a strength of the pull towards the base."""
    return lambda sample: {"tuned": sample.tuned(**changes)}


def graft(density: float = DENSITY, **options: Any) -> Model:
    """The learned graft of a density, on the base."""
    return lambda sample: {"graft": sample.graft(**{**sized(density), **options})}


def retrained_at(density: float) -> Model:
    """Trained again from the base, inside the region of the graft alone (P1 table 1)."""
    return lambda sample: {"tuned": sample.tuned(optimizer="inside", only=sample.graft(**sized(density)))}


retrained = retrained_at(DENSITY)


def scaled(model: Model, scale: float) -> Model:
    """base + scale · change (WiSE, P1 fig. 7)."""
    return lambda sample: {**model(sample), "scale": scale}


def sized(density: float) -> dict[str, Any]:
    """P1's γ_base for a graft of this density: the most moved entries of that density; 0.01 % starts from 0.001 %."""
    return {"budget": density, "start": START if density == DENSITY else density}
