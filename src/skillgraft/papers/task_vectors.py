"""P2's task vectors. A `Skill` is a draw of one task's training rows, a `Team` those of several tasks under one seed.

`METHODS` says how each method of P2's comparison makes a task's vector; `vector(skill, "TaLoS")` is the step that makes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from types import MappingProxyType
from typing import Any

from skillgraft.compose.rules import COMPARING, options_of
from skillgraft.errors import InputError, SkillgraftError
from skillgraft.papers import samples
from skillgraft.papers.profile import Profile
from skillgraft.papers.recipe import Cells, Formula, Wanted
from skillgraft.papers.steps import Asked, Step, scope_of, task_of
from skillgraft.tasks.data import Data, training_pool
from skillgraft.training.plan import TrainingPlan
from skillgraft.values.region import UPPER

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
    _vectors: dict[str, Step] = field(init=False, repr=False, compare=False, default_factory=dict)

    @property
    def name(self) -> str:
        return task_of(self.task).name

    @property
    def data(self) -> Data:
        """The rows that train."""
        return self._rows(train_rows=self.rows)

    @property
    def plan(self) -> TrainingPlan:
        return self.profile.plans["p2"].with_changes(seed=self.seed)

    def tuned(self, *, inside: Asked | None = None, **changes: Any) -> Step:
        """The base tuned on these rows; changes are those of P2's plan, `inside` trains inside a region."""
        from skillgraft.training.finetune import finetune

        where = {} if inside is None else {"inside": inside}
        plan = self.plan.with_changes(**changes)
        return Step(
            finetune, {"base": self.profile.base, "tasks": [self.task], "plan": plan, "data": self.data, **where}
        )

    def region(self, method: str, *, part: str = "", **options: Any) -> Step:
        """A tenth of the base's layers, or of a `part` of them (`UPPER`), chosen without tuning by at most the profile's rows."""
        from skillgraft.regions.choose import choose

        asked = {"task": self.task, "method": method, "density": DENSITY, "scope": part + self.scope}
        return Step(choose, {"base": self.profile.base, **asked, "data": self.few_rows, **options})

    @property
    def scope(self) -> str:
        """The layers; of a model with two towers those of the one that reads this task.

        The other tower's entries have no part in the scores: they are the least sensitive of all, and cannot learn.
        """
        return _scope(self.profile.base, task_of(self.task).kind)

    @property
    def few_rows(self) -> Data:
        """The first of the training rows, for sensitivities."""
        most = self.profile.region_rows
        return self._rows(train_rows=min(most, self.rows or most))

    @property
    def compared_rows(self) -> Data:
        """The validation rows that choose scales: those of the runs that made the vectors."""
        return self._rows(train_rows=self.rows, validation_rows=self.profile.validation_rows)

    def answers(self, vector: Step | None = None, *, task: str = "", role: str = "tuned", linear: bool = False) -> Step:
        """What the base with a vector on it answers about the test rows of this task, or of another."""
        model: dict[str, Any] = {} if vector is None else {role: vector, **({"linear": True} if linear else {})}
        return samples.answer(self.profile, task or self.task, **model)

    def _rows(self, *, train_rows: int | None, **chosen: int) -> Data:
        amount = {"shots": self.shots} if self.shots else {"train_rows": train_rows}
        return samples.rows(self.profile, seed=self.seed, **amount, **chosen)


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
    region: Callable[[Skill], Asked] | None = None
    linear: bool = False
    reads: str = ""


def _moved(density: float = DENSITY, *, part: str = "") -> Callable[[Skill], Asked]:
    """Where full fine-tuning moved the most (LoTA), in the layers or in a `part` of them."""
    return lambda skill: (
        samples.cut(skill.profile, vector(skill, "full"), density=density, scope=part + skill.scope).region
    )


def _chosen(method: str, **options: Any) -> Callable[[Skill], Asked]:
    return lambda skill: skill.region(method, **options)


# The fewer and the less sensitive the entries, the larger the steps that reach full fine-tuning's accuracy.
METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "full": Method(),
        "linearised": Method((1.0, 2.0, 4.0), {"method": "linear", "dropout": False}, linear=True),
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
# Rules that combine full fine-tuning's vectors, with their own papers' settings: keywords of `search_scale`.
RULES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "TIES": {"rule": "ties"},
        "DARE": {"rule": "dare"},
        "Breadcrumbs": {"rule": "breadcrumbs"},
        "TALL-masks": {"rule": "tall"},
        "DELLA": {"rule": "della"},
        "Localize-and-Stitch": {"rule": "stitch", "keep": 0.05, "points": 1},  # its scale is 1
    }
)


def methods_or(profile: Profile, *own: str, rules: bool = False) -> tuple[str, ...]:
    """The methods that were asked for, or the recipe's own; `rules` lets rules be among them."""
    asked = profile.methods_or(*own, known=(*METHODS, *RULES))
    return tuple(name for name in asked if rules or name in METHODS)


def vector(skill: Skill, method: str) -> Step:
    """The model that holds a task's vector by a method: the best of its learning rates on validation rows.

    A recipe asks for it thousands of times.
    """
    makes = METHODS[method].reads or method
    if makes not in skill._vectors:
        skill._vectors[makes] = _vector(skill, METHODS[makes])
    return skill._vectors[makes]


def _vector(skill: Skill, how: Method) -> Step:
    from skillgraft.papers.calls import best_rate

    inside = how.region(skill) if how.region else None
    rates = [skill.plan.lr * rate for rate in how.rates]
    tuned = {f"{lr:g}": skill.tuned(inside=inside, lr=lr, **how.changes) for lr in rates}
    return Step(best_rate, {"tuned": tuned, "task": skill.task, "within": WITHIN})


def trained_in(skill: Skill, method: str) -> Asked:
    """The region that a method trains in."""
    region = METHODS[method].region
    if region is None:
        raise InputError(f"{method} trains everywhere: it has no region")
    return region(skill)


def added(team: Team, method: str) -> Step:
    """The team's vectors in one graft, by a method's sum or by a rule, at the scale that validation rows choose."""
    from skillgraft.compose.scales import search_scale

    makes = "full" if method in RULES else method
    asked: dict[str, Any] = {"tasks": [skill.task for skill in team], "data": team[0].compared_rows, "or_base": True}
    asked |= {**RULES[method], **_drawn(team, method)} if method in RULES else {}
    asked |= {"linear": True} if METHODS[makes].linear else {}
    return Step(
        search_scale, {"base": team[0].profile.base, "grafts": [vector(skill, makes) for skill in team], **asked}
    )


def by_skill(
    some: Sequence[Team], methods: Sequence[str], formula: Formula, step: Callable[[Skill, str], Asked]
) -> Cells:
    """A row for each task and a column for each method; a cell's samples are the seeds."""
    return {
        (skill.name, method): Wanted(formula, tuple((step(team[index], method),) for team in some))
        for index, skill in enumerate(some[0])
        for method in methods
    }


def single(skill: Skill, method: str, *, task: str = "") -> Step:
    """What a skill's own vector answers, read as the method reads it."""
    return skill.answers(vector(skill, method), task=task, linear=METHODS[method].linear)


def single_in(team: Team, skill: Skill, method: str) -> Step:
    """The same; for a rule, what full fine-tuning's vector answers once it is thinned to be joined with the team's."""
    if method not in RULES:
        return single(skill, method)
    from skillgraft.papers.calls import ask_thinned

    how = {name: value for name, value in RULES[method].items() if name != "points"}
    members = team if how["rule"] in COMPARING else (skill,)
    given = {"grafts": [vector(member, "full") for member in members], "of": members.index(skill)}
    rows = skill.answers().arguments  # of the same test rows
    return Step(ask_thinned, {**rows, **how, **_drawn(team, method), **given})


def _drawn(team: Team, method: str) -> dict[str, Any]:
    """The seed of a rule that draws."""
    return {"seed": team[0].seed} if "seed" in options_of(RULES[method]["rule"]) else {}


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
        return max(1, int(TRAINED_ON * len(training_pool(task_of(task)))))
    except SkillgraftError:
        return math.inf
