"""P2's questions to a draw of training rows: `Skill` is one task's, a `Team` those of several tasks under one seed.

`METHODS` says how each method of P2's comparison makes a task's vector; `vector(skill, "TaLoS")` is the step that has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from types import MappingProxyType
from typing import Any

from skillgraft.errors import InputError, SkillgraftError
from skillgraft.region import UPPER
from skillgraft.reproduce import parts
from skillgraft.reproduce.content import scope_of
from skillgraft.reproduce.profile import Profile
from skillgraft.reproduce.step import Step
from skillgraft.tasks import load_task
from skillgraft.tasks.splits import training_pool
from skillgraft.training.plan import Plan

DENSITY = 0.1  # of the layers: P2's regions
TRAINED_ON = 7 / 8  # of a small task's rows at most: the rest validates
TOWERS = {"image": "vision_model.*.layers.*", "text": "text_model.*.layers.*"}  # CLIP's
WITHIN = 0.01  # one point of validation score, its standard error on a thousand rows: so much less counts as equal


@dataclass(frozen=True)
class Skill:
    """A task's training rows, drawn with `seed`: `shots` per class, or `rows`, or all."""

    profile: Profile
    task: str
    seed: int
    shots: int | None = None
    rows: int | None = None

    @property
    def name(self) -> str:
        return load_task(self.task).name

    @property
    def drawn(self) -> dict[str, int | None]:
        """Which rows train, as the library takes it."""
        return {"shots": self.shots} if self.shots else {"rows": self.rows}

    @property
    def plan(self) -> Plan:
        return self.profile.plans["p2"].with_changes(seed=self.seed)

    @property
    def read(self) -> dict[str, Any]:
        """How every step about this skill reads rows."""
        return {"base": self.profile.base, "readout": self.profile.readout, "max_length": self.profile.max_length}

    def tuned(self, *, only: Step | None = None, **changes: Any) -> Step:
        """The base tuned on these rows; changes are those of P2's plan, `only` trains inside a region."""
        plan = self.plan.with_changes(**changes).as_dict()
        settings = {**self.read, "tasks": [self.task], **self.drawn, "seed": self.seed, "plan": plan}
        return Step("tune", settings, {} if only is None else {"only": only})

    def region(self, name: str, *, part: str = "", **options: Any) -> Step:
        """A tenth of the base's layers, or of a `part` of them (`UPPER`), chosen without tuning by at most the profile's rows."""
        scope = part + self.scope
        chosen = {"task": self.task, "name": name, "density": DENSITY, "scope": scope, "data": self.few_rows}
        return Step("base-region", {"base": self.profile.base, **chosen, **options})

    @property
    def scope(self) -> str:
        """The layers; of a model with two towers those of the one that reads this task.

        The other tower's entries have no part in the scores: they are the least sensitive of all, and cannot learn.
        """
        return _scope(self.profile.base, load_task(self.task).kind)

    @property
    def few_rows(self) -> dict[str, Any]:
        """The first of the training rows, for sensitivities."""
        most = self.profile.region_rows
        few = self.drawn if self.shots else {"rows": min(most, self.rows or most)}
        return {**few, "seed": self.seed, "readout": self.profile.readout, "max_length": self.profile.max_length}

    def says(self, vector: Step | None = None, *, task: str = "", role: str = "tuned", linear: bool = False) -> Step:
        """What the base with a vector on it says about the test rows of this task, or of another."""
        model: dict[str, Any] = {} if vector is None else {role: vector, "linear": linear}
        return parts.said(self.profile, task or self.task, **model)

    @property
    def judged(self) -> dict[str, Any]:
        """The validation rows that choose scales: those of the runs that made the vectors."""
        runs = {"train_rows" if key == "rows" else key: value for key, value in self.drawn.items()}
        return {**self.read, **runs, "rows": self.profile.judged_rows, "seed": self.seed}


Team = tuple[Skill, ...]


def teams(profile: Profile, tasks: Sequence[str]) -> dict[str, list[Team]]:
    """For every number of examples a few words about it, and one team of all tasks for each seed.

    All tasks of a team train on the same number of rows: the profile's, or what the smallest of them can spare.
    """
    rows = None if profile.rows is None else int(min(profile.rows, *map(_spare, tasks)))
    amounts: dict[str, dict[str, Any]] = {f"{shots} examples per class": {"shots": shots} for shots in profile.shots}
    amounts = amounts or {f"{rows or 'all'} training rows": {"rows": rows}}
    return {
        words: [tuple(Skill(profile, task, seed, **amount) for task in tasks) for seed in profile.seeds or (0,)]
        for words, amount in amounts.items()
    }


@dataclass(frozen=True)
class Method:
    """How a task's vector is made: a plan with `changes`, inside a `region` or everywhere; the best of several learning rates.

    `rates` are multiples of the plan's learning rate. A `linear` method's scores are read off the model linearised around the
    base. `reads` names the method whose finished vectors it takes.
    """

    rates: tuple[float, ...] = (0.4, 1.0, 2.0)
    changes: Mapping[str, Any] = field(default_factory=dict)
    region: Callable[[Skill], Step] | None = None
    linear: bool = False
    reads: str = ""


def _moved(density: float = DENSITY, *, part: str = "") -> Callable[[Skill], Step]:
    """Where full fine-tuning moved the most (LoTA), in the layers or in a `part` of them."""

    def region(skill: Skill) -> Step:
        settings = {"base": skill.profile.base, "budget": density, "scope": part + skill.scope}
        return Step("cut", settings, {"tuned": vector(skill, "full")})

    return region


def _chosen(name: str, **options: Any) -> Callable[[Skill], Step]:
    return lambda skill: skill.region(name, **options)


# The fewer and the less sensitive the entries, the larger the steps that reach full fine-tuning's accuracy.
METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "full": Method(),
        "linearised": Method((1.0, 2.0, 4.0), {"method": "linear"}, linear=True),
        "post-hoc linearised": Method(linear=True, reads="full"),
        "LoRA": Method((4.0, 10.0, 20.0), {"method": "lora"}),
        "LoTA": Method((1.0, 2.0, 4.0), region=_moved()),
        "random 10 %": Method((2.0, 4.0, 10.0), region=_chosen("random-region")),
        "TaLoS": Method((4.0, 10.0, 20.0), region=_chosen("lowest-fisher", damp=0.1)),
        "TaLoS 30 %": Method((2.0, 4.0, 10.0), region=_chosen("lowest-fisher", damp=0.1, density=0.3)),
        "TaLoS plain": Method((4.0, 10.0, 20.0), region=_chosen("lowest-fisher", damp=1.0)),
        # As many entries in half of the layers, and controls: all that these layers have, and the most moved of it.
        "TaLoS upper half": Method(
            (4.0, 10.0, 20.0), region=_chosen("lowest-fisher", part=UPPER, damp=0.1, density=2 * DENSITY)
        ),
        "LoTA upper half": Method((1.0, 2.0, 4.0), region=_moved(2 * DENSITY, part=UPPER)),
        "full upper half": Method(region=_chosen("random-region", part=UPPER, density=1.0)),
        "highest Fisher": Method((1.0, 2.0, 4.0), region=_chosen("highest-fisher")),
        "lowest magnitude": Method((2.0, 4.0, 10.0), region=_chosen("lowest-magnitude")),
    }
)
# Rules that combine full fine-tuning's vectors, with their own papers' settings (`compose.rules`).
RULES: Mapping[str, str] = MappingProxyType(
    {"TIES": "ties", "DARE": "dare", "Breadcrumbs": "breadcrumbs", "TALL-masks": "tall"}
)


def methods_or(profile: Profile, *own: str, rules: bool = False) -> tuple[str, ...]:
    """The methods that were asked for, or the recipe's own; `rules` lets rules be among them."""
    asked = profile.methods_or(*own, known=(*METHODS, *RULES))
    return tuple(name for name in asked if rules or name in METHODS)


def vector(skill: Skill, method: str) -> Step:
    """The model that holds a task's vector by a method: the best of its learning rates on validation rows."""
    how = METHODS[METHODS[method].reads or method]
    only = how.region(skill) if how.region else None
    rates = [skill.plan.lr * rate for rate in how.rates]
    tuned = {f"{lr:g}": skill.tuned(only=only, lr=lr, **how.changes) for lr in rates}
    return Step("best", {"task": skill.task, "within": WITHIN}, tuned)


def trained_in(skill: Skill, method: str) -> Step:
    """The region that a method trains in."""
    region = METHODS[method].region
    if region is None:
        raise InputError(f"{method} trains everywhere: it has no region")
    return region(skill)


def added(team: Team, method: str) -> Step:
    """The team's vectors in one graft, by a method's sum or by a rule, at the scale that validation rows choose."""
    rule = RULES.get(method)
    makes = "full" if rule else method
    settings: dict[str, Any] = {**team[0].judged, "tasks": [skill.task for skill in team]}
    settings |= {"rule": rule} if rule else {}
    settings |= {"options": {"seed": team[0].seed}} if rule == "dare" else {}
    settings |= {"linear": True} if METHODS[makes].linear else {}
    return Step("add", settings, {skill.name: vector(skill, makes) for skill in team})


def single(skill: Skill, method: str, *, task: str = "") -> Step:
    """What a skill's own vector says, read as the method reads it; for a rule, full fine-tuning's."""
    makes = "full" if method in RULES else method
    return skill.says(vector(skill, makes), task=task, linear=METHODS[makes].linear)


@cache
def _scope(base: str, kind: str) -> str:
    try:
        names = scope_of(base).shapes
    except SkillgraftError:  # no model folder here: a hub name
        return "layers"
    towers = {tower for tower in TOWERS.values() if any(fnmatchcase(name, tower) for name in names)}
    return TOWERS.get(kind, "layers") if len(towers) > 1 else "layers"


@cache
def _spare(task: str) -> float:
    """How many rows of a task can train with some left to validate; no limit where its data are not here: it fails later."""
    try:
        return max(1, int(TRAINED_ON * len(training_pool(load_task(task)))))
    except SkillgraftError:
        return math.inf
