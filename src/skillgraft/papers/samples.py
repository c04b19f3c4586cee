"""A draw of a task's training rows, and the steps of everything that is made from it. None of them runs here.

A recipe's cells are asked of samples: `answers(tuned)` is the step in which a sample's tuned model answers the test rows,
`answers(graft(1e-3), rows_of="imdb")` that in which its graft is asked the same question about another task's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from skillgraft.errors import SkillgraftError
from skillgraft.papers.profile import Profile
from skillgraft.papers.steps import Asked, Step, task_of
from skillgraft.tasks.data import Data, training_pool
from skillgraft.tasks.task import AS

LOOKS = 10  # how often the tuning of a mixture looks at the validation rows


def rows(profile: Profile, **chosen: Any) -> Data:
    """Rows as the profile reads them; `chosen` says which: shots, train_rows, seed …"""
    return Data(readout=profile.readout, max_length=profile.max_length, **chosen)


def finetuned(
    profile: Profile,
    *tasks: str,
    shots: int,
    seed: int,
    optimizer: str = "sgd",
    inside: Asked | None = None,
    most: int | None = None,
    **changes: Any,
) -> Step:
    """A model tuned on a task, or on a mixture; `inside` trains inside a region, `changes` are those of the plan.

    A mixture takes as many steps as its tasks would one by one, and keeps what is best on average on validation (P1 C.1).
    `most` takes all rows, so many per class at most, instead of `shots`, which then only says how long to train.
    """
    from skillgraft.training.finetune import finetune

    plan = profile.plan(optimizer, tasks[0], shots, seed=seed, **changes)
    if len(tasks) > 1:
        steps = sum(profile.plan(optimizer, task, shots, seed=seed).steps for task in tasks)
        plan = plan.with_changes(steps=steps, validate_every=max(1, steps // LOOKS), keep="best")
    data = _training(profile, tasks[0], shots, seed, most)
    return Step(
        finetune, {"base": profile.base, "tasks": list(tasks), "plan": plan, "data": data, **_given(inside=inside)}
    )


def localized(
    profile: Profile,
    model: Asked,
    task: str,
    *,
    shots: int,
    seed: int,
    method: str = "learned",
    start: Asked | float | str | None = None,
    most: int | None = None,
    **options: Any,
) -> Step:
    """The graft of a task's skill in a tuned model; `start` is γ_base. Options are those of `localize`."""
    from skillgraft.regions.localize import localize

    data = _training(profile, task, shots, seed, most)
    own: dict[str, Any] = {"steps": profile.region_steps} if method in ("learned", "budgeted") else {}
    if method == "learned":  # budgeted steps are small by their nature
        own |= {"batch_size": profile.region_rows, **_given(start=start)}
    if method not in ("movement", "random"):
        own["mixed_precision"] = profile.mixed_precision
    known = {"base": profile.base, "tuned": model, "task": task, "method": method, "data": data}
    return Step(localize, {**known, **own, **options})


def lottery_ticket(profile: Profile, model: Asked, task: str, **options: Any) -> Step:
    """The region that a lottery search finds: as `localized`, with 0 in place of the base's numbers."""
    from skillgraft.papers.calls import ticket_region

    return Step(ticket_region, localized(profile, model, task, **options).arguments)


def chosen_region(profile: Profile, task: str, *, shots: int, seed: int, most: int | None = None, **asked: Any) -> Step:
    """A region of the base alone, from a task's rows; `asked` has the keywords of `choose`: method, density …"""
    from skillgraft.regions.choose import choose

    data = _training(profile, task, shots, seed, most)
    return Step(choose, {"base": profile.base, "task": task, "data": data, **asked})


def cut(profile: Profile, model: Asked, **where: Any) -> Step:
    """A tuned model's numbers in a `region`, or in a `density` of the entries that moved most, as a graft."""
    from skillgraft.folders.extract import extract

    return Step(extract, {"base": profile.base, "tuned": model, **where})


def answer(profile: Profile, task: str, **model: Any) -> Step:
    """What a model answers about the test rows; `model` has the keywords of `calls.ask`: tuned, graft, scale …"""
    return _answer(profile, task, rows(profile, test_rows=profile.test_rows), model)


def answer_in_training(
    profile: Profile, task: str, *, shots: int, seed: int, split: str, most: int | None = None, **model: Any
) -> Step:
    """The same on the rows that a run of these shots and this seed trained on, or validated on."""
    data = _training(profile, task, shots, seed, most)
    return _answer(profile, task, data, {"split": split, **model})


def _answer(profile: Profile, task: str, data: Data | Step, model: dict[str, Any]) -> Step:
    from skillgraft.papers.calls import ask

    return Step(ask, {"base": profile.base, "task": task, "data": data, **model})


def _training(profile: Profile, task: str, shots: int, seed: int, most: int | None) -> Data | Step:
    """The rows that train; how many all rows are is counted when the steps run, once the data are there."""
    if most is None:
        return rows(profile, shots=shots, seed=seed)
    from skillgraft.papers.calls import all_rows

    return Step(all_rows, {"task": task, "most": most, "data": rows(profile, seed=seed)})


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


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
        """A model tuned on these rows; changes are those of `finetuned`."""
        return finetuned(self.profile, self.task, **self._drawn, **changes)

    def graft(self, model: Asked | None = None, **options: Any) -> Step:
        """A graft in that model, or in the tuned one; options are those of `localized`."""
        return localized(self.profile, model or self.tuned(), self.task, **self._drawn, **options)

    def cut(self, **where: Any) -> Step:
        """The tuned model's change in a region, or in a density of the entries that moved most."""
        return cut(self.profile, self.tuned(), **where)

    def ticket(self, **options: Any) -> Step:
        """A lottery ticket's region in the tuned model."""
        return lottery_ticket(self.profile, self.tuned(), self.task, **self._drawn, **options)

    def base_region(self, method: str, density: float) -> Step:
        """A region of the base alone that these rows decide."""
        return chosen_region(self.profile, self.task, method=method, density=density, **self._drawn)

    def answers(self, rows_of: str = "", split: str = "test", **model: Any) -> Step:
        """What a model (arguments of `calls.ask`) answers about the test rows, another task's, or its own training rows.

        Rows of another task are asked the question of the sample's own (P1 §4.2).
        """
        if split == "test":
            return answer(self.profile, elsewhere(self.task, rows_of) if rows_of else self.task, **model)
        return answer_in_training(self.profile, self.task, split=split, **self._drawn, **model)

    @property
    def _drawn(self) -> dict[str, Any]:
        every = {} if self.most is None else {"most": self.most}
        return {"shots": self.shots, "seed": self.seed, **every}


# The arguments of `calls.ask` for one of a sample's models; the step that answers a cell's question.
Model = Callable[[Sample], dict[str, Any]]
Ask = Callable[[Sample], Asked]


def elsewhere(task: str, rows_of: str) -> str:
    """A task's question about another task's rows, as `load_task` reads it."""
    return f"{rows_of}{AS}{task}"


def called(task: str) -> str:
    """A task's name, whether it was given as a name or as a file."""
    return task_of(task).name


def drawn(profile: Profile, tasks: Iterable[str], shots: int) -> dict[str, list[Sample]]:
    """The samples of each task, by its name."""
    return {called(task): draws(profile, task, shots) for task in tasks}


def draws(profile: Profile, task: str, shots: int, *, least: int = 1) -> list[Sample]:
    """The samples of a task: one for each seed.

    Where a class has fewer rows than that, as many rows as all classes would have train, in natural proportion.
    """
    most = shots if _smallest_class(task) < shots else None
    return [Sample(profile, task, shots, seed, most) for seed in profile.seeds_at(shots, least=least)]


@cache
def _smallest_class(task: str) -> float:
    """The rows of a task's rarest label; no limit for multiple choice, and where the data are not here: that fails later."""
    try:
        pool = training_pool(task_of(task))
    except SkillgraftError:
        return math.inf
    return min(pool.class_counts.values(), default=math.inf) if task_of(task).labels else math.inf


def ladder(profile: Profile) -> tuple[int, ...]:
    """Numbers of shots from few to many, each four times the one before."""
    if profile.shots:
        return profile.shots
    shots = [profile.few]
    while shots[-1] < profile.many:
        shots.append(min(4 * shots[-1], profile.many))
    return tuple(shots)


def answers(model: Model, *, rows_of: str = "", split: str = "test") -> Ask:
    return lambda sample: sample.answers(rows_of, split, **model(sample))


def base(_sample: Sample) -> dict[str, Any]:
    return {}


def tuned(sample: Sample) -> dict[str, Any]:
    return {"tuned": sample.tuned()}


def tuned_by(**changes: Any) -> Model:
    """Tuned otherwise: an optimizer, a method, a strength of the pull towards the base."""
    return lambda sample: {"tuned": sample.tuned(**changes)}


def graft(density: float = DENSITY, **options: Any) -> Model:
    """The learned graft of a density, on the base."""
    return lambda sample: {"graft": sample.graft(**{**sized(density), **options})}


def retrained_at(density: float) -> Model:
    """Trained again from the base, inside the region of the graft alone (P1 table 1)."""
    return lambda sample: {"tuned": sample.tuned(optimizer="inside", inside=sample.graft(**sized(density)).region)}


retrained = retrained_at(DENSITY)


def scaled(model: Model, scale: float) -> Model:
    """base + scale · change (WiSE, P1 fig. 7)."""
    return lambda sample: {**model(sample), "scale": scale}


def sized(density: float) -> dict[str, Any]:
    """P1's γ_base for a graft of this density: the most moved entries of that density; 0.01 % starts from 0.001 %."""
    return {"density": density, "start": START if density == DENSITY else density}
