"""P2's task arithmetic: adding skills up (talos-addition) and taking one away (talos-negation)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from skillgraft.reproduce import vector_formulas as v
from skillgraft.reproduce.formulas import majority
from skillgraft.reproduce.profile import Profile
from skillgraft.reproduce.recipe import Draft, Formula, Recipe, Wanted
from skillgraft.reproduce.samples import called
from skillgraft.reproduce.skills import METHODS, RULES, Skill, Team, added, methods_or, single, teams, vector
from skillgraft.reproduce.step import Step

TASKS = ("sst2", "ag_news", "trec", "subj", "cr", "mpqa", "mrpc", "snli")
CONTROLS = ("rte",)  # P2's control task for texts
NEGATED = ("full", "linearised", "TaLoS")
MEAN = "mean"
ALONE = "A method has no number where it is more than 2 points below full fine-tuning alone; the next sheet has all of them."
# The steps of one task that a column's formula reads.
Ask = Callable[[Team, Skill], tuple[Step, ...]]
Columns = Mapping[str, tuple[Formula, Ask]]


def by_task(title: str, some: Sequence[Team], columns: Columns, **look: Any) -> Draft:
    """A row for each task and one for all of them together; a cell's samples are the seeds."""
    tasks = [skill.name for skill in some[0]]
    cells: dict[tuple[str, str], Wanted | str] = {}
    for row in (*tasks, MEAN):
        for name, (formula, ask) in columns.items():
            asked = [[ask(team, skill) for skill in team if row in (skill.name, MEAN)] for team in some]
            cells[row, name] = Wanted(formula, tuple(tuple(step for steps in each for step in steps) for each in asked))
    return Draft(title, cells, rows_are="task", **look)


def addition(profile: Profile) -> Sequence[Draft]:
    """Every method's vectors alone and added up, and the rules on full fine-tuning's."""
    names = methods_or(profile, *METHODS, *RULES, rules=True)
    methods = [name for name in names if name in METHODS]
    return [
        draft
        for words, some in teams(profile, profile.tasks_or(*TASKS)).items()
        for draft in (
            _single(words, some, methods),
            *_sums(words, some, names),
            _scales(words, some, names),
            _learning_rates(words, some, [name for name in methods if not METHODS[name].reads]),
            _near_linearity(words, some, [name for name in methods if not METHODS[name].reads]),
        )
    ]


def _single(words: str, some: Sequence[Team], methods: Sequence[str]) -> Draft:
    columns: dict[str, tuple[Formula, Ask]] = {
        "majority": (_mean_majority, _says_base),
        "base": (v.accuracy, _says_base),
        **{name: (v.accuracy, _says_single(name)) for name in methods},
    }
    plan = some[0][0].plan
    notes = (f"{plan.steps} steps of {plan.batch_size} rows with {plan.optimizer}, the same for every method.",)
    return by_task(f"single-task accuracy, {words}", some, columns, notes=notes)


def _sums(words: str, some: Sequence[Team], names: Sequence[str]) -> list[Draft]:
    def columns(formula: Formula) -> dict[str, tuple[Formula, Ask]]:
        return {name: (formula, _compared(name)) for name in names}

    base = {"base": (v.accuracy, _says_base)}
    return [
        by_task(f"sum: absolute accuracy, {words}", some, {**base, **columns(v.summed)}),
        by_task(f"sum: normalised accuracy, {words}", some, columns(v.compared), notes=(ALONE,)),
        by_task(f"sum: normalised accuracy, undertrained methods too, {words}", some, columns(v.normalised)),
    ]


def _scales(words: str, some: Sequence[Team], names: Sequence[str]) -> Draft:
    facts = {"scale": ("best", "scale"), "normalised accuracy on validation": ("best", "normalised")}
    cells: dict[tuple[str, str], Wanted | str] = {
        (name, column): Wanted(v.fact(*path), tuple((added(team, name),) for team in some))
        for name in names
        for column, path in facts.items()
    }
    return Draft(f"chosen scales, {words}", cells, rows_are="method", unit="number")


def _learning_rates(words: str, some: Sequence[Team], methods: Sequence[str]) -> Draft:
    cells: dict[tuple[str, str], Wanted | str] = {
        (skill.name, name): Wanted(v.learning_rate, tuple((vector(team[place], name),) for team in some))
        for place, skill in enumerate(some[0])
        for name in methods
    }
    tried = "; ".join(f"{name} {_listed(some[0][0].plan.lr, METHODS[name].rates)}" for name in methods)
    notes = (f"Tried: {tried}. The smallest within a point of the best on validation is taken.",)
    return Draft(f"chosen learning rates, {words}", cells, rows_are="task", unit="number", notes=notes)


def _listed(lr: float, rates: Sequence[float]) -> str:
    return ", ".join(f"{lr * rate:g}" for rate in rates)


def _near_linearity(words: str, some: Sequence[Team], methods: Sequence[str]) -> Draft:
    """‖f − f_lin‖ / ‖f − f_0‖ on the test rows of each vector's own task."""

    def steps(skill: Skill, name: str) -> tuple[Step, ...]:
        own = vector(skill, name)
        return skill.says(own), skill.says(own, linear=True), skill.says()

    cells: dict[tuple[str, str], Wanted | str] = {
        (row, name): Wanted(
            v.distance,
            tuple(steps(skill, name) for team in some for skill in team if row in (skill.name, MEAN)),
            partial=row == MEAN,
        )
        for row in (*(skill.name for skill in some[0]), MEAN)
        for name in methods
    }
    title = f"distance from the linearised model, {words}"
    return Draft(title, cells, rows_are="task", unit="number", notes=("0 where a model is linear along its vector.",))


def _says_base(_team: Team, skill: Skill) -> tuple[Step, ...]:
    return (skill.says(),)


def _says_single(name: str) -> Ask:
    return lambda _team, skill: (single(skill, name),)


def _compared(name: str) -> Ask:
    """The combination, the method's own single-task model, and full fine-tuning's."""

    def steps(team: Team, skill: Skill) -> tuple[Step, ...]:
        linear = name in METHODS and METHODS[name].linear
        combined = skill.says(added(team, name), role="graft", linear=linear)
        return combined, single(skill, name), single(skill, "full")

    return steps


def _mean_majority(*said: Any) -> float:
    return sum(map(majority, said)) / len(said)


def negation(profile: Profile) -> Sequence[Draft]:
    """Each task's vector taken away, as far as the control task keeps 95 % of the base's accuracy."""
    controls = profile.controls or CONTROLS
    names = methods_or(profile, *NEGATED)
    return [
        draft
        for words, some in teams(profile, profile.tasks_or(*TASKS)).items()
        for draft in (
            _negated(f"target accuracy, {words}", some, names, controls),
            *(_negated(f"control accuracy: {called(c)}, {words}", some, names, controls, control=c) for c in controls),
            _negation_scales(words, some, names, controls),
        )
    ]


def _negated(
    title: str, some: Sequence[Team], names: Sequence[str], controls: Sequence[str], *, control: str = ""
) -> Draft:
    """What is left of each task, or of a control, once a task's vector is taken away."""

    def left(name: str) -> Ask:
        linear = METHODS[name].linear
        return lambda _team, skill: (
            skill.says(negated(skill, name, controls), task=control, role="graft", linear=linear),
        )

    def base(_team: Team, skill: Skill) -> tuple[Step, ...]:
        return (skill.says(task=control),)

    return by_task(title, some, {"base": (v.accuracy, base), **{name: (v.accuracy, left(name)) for name in names}})


def _negation_scales(words: str, some: Sequence[Team], names: Sequence[str], controls: Sequence[str]) -> Draft:
    cells: dict[tuple[str, str], Wanted | str] = {
        (skill.name, name): Wanted(v.fact("scale"), tuple((negated(team[place], name, controls),) for team in some))
        for place, skill in enumerate(some[0])
        for name in names
    }
    return Draft(f"chosen scales, {words}", cells, rows_are="task", unit="number")


def negated(skill: Skill, method: str, controls: Sequence[str]) -> Step:
    """A task's vector, negated, at the scale that validation rows choose."""
    settings = {**skill.judged, "task": skill.task, "tasks": [task for task in controls if called(task) != skill.name]}
    settings |= {"linear": True} if METHODS[method].linear else {}
    return Step("negate", settings, {"change": vector(skill, method)})


RECIPES: Mapping[str, Recipe] = {
    "talos-addition": Recipe("skills added up, by every method and rule", "P2 task addition", addition),
    "talos-negation": Recipe("one skill taken away, a control task kept", "P2 task negation", negation),
}
