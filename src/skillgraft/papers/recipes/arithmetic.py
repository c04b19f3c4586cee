"""P2's task arithmetic: adding skills up, taking one away, how skills interfere, and what training them costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from skillgraft.papers import formulas as f
from skillgraft.papers.formulas import majority
from skillgraft.papers.profile import Profile
from skillgraft.papers.recipe import Cells, Draft, Formula, Recipe, Wanted
from skillgraft.papers.samples import called
from skillgraft.papers.steps import Step
from skillgraft.papers.task_vectors import (
    METHODS,
    RULES,
    Skill,
    Team,
    added,
    by_skill,
    methods_or,
    single,
    single_in,
    teams,
    trained_in,
    vector,
)
from skillgraft.values.printing import Unit

TASKS = ("sst2", "ag_news", "trec", "subj", "cr", "mpqa", "mrpc", "snli")
CONTROLS = ("rte",)  # P2's control task for texts
NEGATED = ("full", "linearised", "TaLoS")
MEAN = "mean"
ALONE = "A method has no number where it is more than 2 points below full fine-tuning alone; the next sheet has all of them."
THINNED = (
    "A rule is normalised by the single-task accuracy of its own thinned vectors, as in P2; beside it, by that of full "
    "fine-tuning's vectors."
)
# The steps of one task that a column's formula reads.
Ask = Callable[[Team, Skill], tuple[Step, ...]]
Columns = Mapping[str, tuple[Formula, Ask]]


def by_task(title: str, some: Sequence[Team], columns: Columns, **look: Any) -> Draft:
    """A row for each task and one for all of them together; a cell's samples are the seeds."""
    tasks = [skill.name for skill in some[0]]
    cells: Cells = {}
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
            _single(words, some, names),
            *_sums(words, some, names),
            _scales(words, some, names),
            _learning_rates(words, some, [name for name in methods if not METHODS[name].reads]),
            _near_linearity(words, some, [name for name in methods if not METHODS[name].reads]),
        )
    ]


def _single(words: str, some: Sequence[Team], names: Sequence[str]) -> Draft:
    columns: dict[str, tuple[Formula, Ask]] = {
        "majority": (_mean_majority, _answers_base),
        "base": (f.accuracy, _answers_base),
        **{name: (f.accuracy, _answers_single(name)) for name in names},
    }
    plan = some[0][0].plan
    how = f"{plan.steps} steps of {plan.batch_size} rows with {plan.optimizer}, the same for every method."
    notes = _about_rules(names, "A rule: full's vectors, each thinned as the rule thins it before it joins them.")
    return by_task(f"single-task accuracy, {words}", some, columns, notes=(how, *notes))


def _sums(words: str, some: Sequence[Team], names: Sequence[str]) -> list[Draft]:
    absolute: Columns = {
        name: (f.accuracy, _combined(name)) if name in RULES else (f.summed, _compared(name)) for name in names
    }
    base: Columns = {"base": (f.accuracy, _answers_base)}
    notes = _about_rules(names, THINNED)
    return [
        by_task(f"sum: absolute accuracy, {words}", some, {**base, **absolute}),
        by_task(f"sum: normalised accuracy, {words}", some, _normalised(names, f.compared), notes=(ALONE, *notes)),
        by_task(
            f"sum: normalised accuracy, undertrained methods too, {words}",
            some,
            _normalised(names, f.normalised),
            notes=notes,
        ),
    ]


def _normalised(names: Sequence[str], formula: Formula) -> Columns:
    """A column for each method by the formula, and two for each rule: by its thinned vectors, by full fine-tuning's."""
    by_rule = {"": f.by_single, ", by full's": f.by_full}
    return {
        f"{name}{by}": (how, _compared(name))
        for name in names
        for by, how in (by_rule if name in RULES else {"": formula}).items()
    }


def _about_rules(names: Sequence[str], note: str) -> tuple[str, ...]:
    return (note,) if any(name in RULES for name in names) else ()


def _scales(words: str, some: Sequence[Team], names: Sequence[str]) -> Draft:
    facts = {"scale": "scale", "normalised accuracy on validation": "normalised"}
    cells: Cells = {
        (name, column): Wanted(f.fact("search", "best", fact), tuple((added(team, name).recipe,) for team in some))
        for name in names
        for column, fact in facts.items()
    }
    notes = ("Of 21 scales from 0 to 1; 0 is the base. Localize-and-Stitch searches none.",)
    return Draft(f"chosen scales, {words}", cells, rows_are="method", unit="number", notes=notes)


def _learning_rates(words: str, some: Sequence[Team], methods: Sequence[str]) -> Draft:
    cells = by_skill(some, methods, f.learning_rate, lambda skill, name: vector(skill, name).facts)
    tried = "; ".join(f"{name} {_listed(some[0][0].plan.lr, METHODS[name].rates)}" for name in methods)
    notes = (f"Tried: {tried}. The smallest within a point of the best on validation is taken.",)
    return Draft(f"chosen learning rates, {words}", cells, rows_are="task", unit="number", notes=notes)


def _listed(lr: float, rates: Sequence[float]) -> str:
    return ", ".join(f"{lr * rate:g}" for rate in rates)


def _near_linearity(words: str, some: Sequence[Team], methods: Sequence[str]) -> Draft:
    """‖f − f_lin‖ / ‖f − f_0‖ on the test rows of each vector's own task."""

    def steps(skill: Skill, name: str) -> tuple[Step, ...]:
        own = vector(skill, name)
        return skill.answers(own), skill.answers(own, linear=True), skill.answers()

    def cell(row: str, name: str) -> Wanted:
        skills = [skill for team in some for skill in team if row in (skill.name, MEAN)]
        seeds = tuple(skill.seed for skill in skills)
        return Wanted(f.distance, tuple(steps(skill, name) for skill in skills), partial=row == MEAN, seeds=seeds)

    rows = (*(skill.name for skill in some[0]), MEAN)
    cells: Cells = {(row, name): cell(row, name) for row in rows for name in methods}
    title = f"distance from the linearised model, {words}"
    return Draft(title, cells, rows_are="task", unit="number", notes=("0 where a model is linear along its vector.",))


def _answers_base(_team: Team, skill: Skill) -> tuple[Step, ...]:
    return (skill.answers(),)


def _answers_single(name: str) -> Ask:
    return lambda team, skill: (single_in(team, skill, name),)


def _combined(name: str) -> Ask:
    """What the combination answers, read as the method reads it."""
    linear = name in METHODS and METHODS[name].linear
    return lambda team, skill: (skill.answers(added(team, name), role="graft", linear=linear),)


def _compared(name: str) -> Ask:
    """The combination, the method's own single-task model (a rule's thinned one), and full fine-tuning's."""

    def steps(team: Team, skill: Skill) -> tuple[Step, ...]:
        return *_combined(name)(team, skill), single_in(team, skill, name), single(skill, "full")

    return steps


def _mean_majority(*found: Any) -> float:
    return sum(map(majority, found)) / len(found)


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
            skill.answers(negated(skill, name, controls), task=control, role="graft", linear=linear),
        )

    def base(_team: Team, skill: Skill) -> tuple[Step, ...]:
        return (skill.answers(task=control),)

    return by_task(title, some, {"base": (f.accuracy, base), **{name: (f.accuracy, left(name)) for name in names}})


def _negation_scales(words: str, some: Sequence[Team], names: Sequence[str], controls: Sequence[str]) -> Draft:
    cells = by_skill(some, names, f.fact("scale"), lambda skill, name: negated(skill, name, controls).recipe)
    notes = ("Of 21 scales from 0 to 3; 0 is the base.",)
    return Draft(f"chosen scales, {words}", cells, rows_are="task", unit="number", notes=notes)


def negated(skill: Skill, method: str, controls: Sequence[str]) -> Step:
    """A task's vector, negated, at the scale that validation rows choose."""
    from skillgraft.compose.forgetting import forget

    kept = [task for task in controls if called(task) != skill.name]
    asked: dict[str, Any] = {"task": skill.task, "controls": kept, "data": skill.compared_rows, "or_base": True}
    asked |= {"linear": True} if METHODS[method].linear else {}
    return Step(forget, {"base": skill.profile.base, "graft": vector(skill, method), **asked})


SHARES = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4)
SHARE = 0.1  # what the paper settles on
ALPHAS = (-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0)
PAIRED = ("sst2", "snli", "ag_news", "trec")  # two pairs, one after the other
MOST_PAIRS = 2
FEW = ("full", "linearised", "TaLoS")
TRAINED = ("full", "linearised", "LoRA", "LoTA", "random 10 %", "TaLoS")


def fig1(profile: Profile) -> Sequence[Draft]:
    """Every task without the entries to which one task is least sensitive: a tenth of them, and 1 to 40 %."""
    return [
        draft
        for words, some in teams(profile, profile.tasks_or(*TASKS)).items()
        for draft in (_pruning_matrix(words, some), _pruning_curve(words, some))
    ]


def _pruning_matrix(words: str, some: Sequence[Team]) -> Draft:
    cells: Cells = {
        (finder.name, scored.name): Wanted(
            f.pruned(scored.name, f"{SHARE:g}"), tuple((_pruned(team, index),) for team in some)
        )
        for index, finder in enumerate(some[0])
        for scored in some[0]
    }
    look: dict[str, Any] = {"look": "heatmap", "values_are": "accuracy / base's", "centre": 1.0}
    title = f"without the least sensitive {100 * SHARE:g} %, {words}"
    return Draft(title, cells, rows_are="found on", columns_are="scored on", **look)


def _pruning_curve(words: str, some: Sequence[Team]) -> Draft:
    steps = tuple((_pruned(team, index),) for team in some for index in range(len(team)))
    seeds = tuple(skill.seed for team in some for skill in team)
    lines = {"the task itself": True, "other tasks": False}
    cells: Cells = {
        (f"{share:g}", name): Wanted(f.pruned_mean(f"{share:g}", own=own), steps, partial=True, seeds=seeds)
        for share in SHARES
        for name, own in lines.items()
    }
    title = f"mean over the share of entries set to 0, {words}"
    return Draft(title, cells, rows_are="share", values_are="accuracy / base's", look="lines")


def _pruned(team: Team, finder: int) -> Step:
    from skillgraft.regions.pruning import pruning_sensitivity

    skill = team[finder]
    asked = {"tasks": [each.task for each in team], "found_on": [skill.name], "shares": SHARES, "scope": skill.scope}
    data = replace(skill.few_rows, test_rows=skill.profile.test_rows)
    return Step(pruning_sensitivity, {"base": skill.profile.base, **asked, "data": data})


def fig2(profile: Profile) -> Sequence[Draft]:
    """ξ over the scales of two skills, for pairs of tasks and a few methods; and each map's mean."""
    return [
        draft
        for words, some in teams(profile, profile.tasks_or(*PAIRED)).items()
        for draft in _disentanglement(words, some, methods_or(profile, *FEW))
    ]


def _disentanglement(words: str, some: Sequence[Team], methods: Sequence[str]) -> list[Draft]:
    pairs = [slice(low, low + 2) for low in range(0, min(2 * MOST_PAIRS, len(some[0]) - 1), 2)]
    means: Cells = {}
    maps = []
    for pair in pairs:
        names = [skill.name for skill in some[0][pair]]
        for method in methods:
            steps = tuple((_map_of(team[pair], method),) for team in some)
            means[" + ".join(names), method] = Wanted(f.mean_error, steps)
            maps.append(_map(f"{method}: {' and '.join(names)}, {words}", names, steps))
    mean = Draft(f"mean of ξ over the map, {words}", means, rows_are="tasks", columns_are="method", unit="number")
    return [*maps, *([mean] if means else [])]


def _map(title: str, names: Sequence[str], steps: tuple[tuple[Step, ...], ...]) -> Draft:
    cells: Cells = {
        (f"{down:g}", f"{across:g}"): Wanted(f.error(row, column), steps)
        for row, down in enumerate(ALPHAS)
        for column, across in enumerate(ALPHAS)
    }
    first, second = (f"scale of {name}" for name in names)
    notes = ("To add skills up, scales are searched from 0 to 1; to take one away, from 0 to −3.",)
    look: dict[str, Any] = {"look": "heatmap", "unit": "number", "values_are": "disentanglement error ξ"}
    return Draft(title, cells, rows_are=first, columns_are=second, notes=notes, **look)


def _map_of(pair: Team, method: str) -> Step:
    from skillgraft.papers.calls import disentangle

    asked: dict[str, Any] = {"tasks": [skill.task for skill in pair], "alphas": ALPHAS, "data": pair[0].compared_rows}
    asked |= {"linear": True} if METHODS[method].linear else {}
    grafts = [vector(skill, method) for skill in pair]
    return Step(disentangle, {"base": pair[0].profile.base, "grafts": grafts, **asked})


def fig3(profile: Profile) -> Sequence[Draft]:
    """Each tuned model on every task, over the base; and the means of what it does to its own and to others."""
    return [
        draft
        for words, some in teams(profile, profile.tasks_or(*TASKS)).items()
        for draft in _function_localisation(words, some, methods_or(profile, *FEW))
    ]


def _function_localisation(words: str, some: Sequence[Team], methods: Sequence[str]) -> list[Draft]:
    def asked(pairs: Sequence[tuple[Skill, Skill]], method: str, formula: Formula = f.localised, **how: Any) -> Wanted:
        samples = tuple((single(a, method, task=b.task), b.answers()) for a, b in pairs)
        return Wanted(formula, samples, seeds=tuple(a.seed for a, _ in pairs), **how)

    every_task = range(len(some[0]))
    matrices = []
    for method in methods:
        cells: Cells = {
            (some[0][down].name, some[0][across].name): asked([(team[down], team[across]) for team in some], method)
            for down in every_task
            for across in every_task
        }
        look: dict[str, Any] = {"look": "heatmap", "values_are": "accuracy / base's", "centre": 1.0}
        matrices.append(Draft(f"{method}, {words}", cells, rows_are="tuned on", columns_are="scored on", **look))
    every = [(a, b) for team in some for a in team for b in team]
    own, others = [(a, b) for a, b in every if a == b], [(a, b) for a, b in every if a != b]
    rows: dict[str, tuple[Sequence[tuple[Skill, Skill]], Formula]] = {
        "its own task": (own, f.localised),
        "other tasks": (others, f.localised),
        "other tasks: distance from 100": (others, f.disturbed),
    }
    means: Cells = {
        (row, method): asked(pairs, method, formula, partial=True)
        for row, (pairs, formula) in rows.items()
        if pairs
        for method in methods
    }
    return [*matrices, Draft(f"means, {words}", means, rows_are="scored on", columns_are="method")]


def cost(profile: Profile) -> Sequence[Draft]:
    """What a step of every method of training costs in one run: seconds, optimizer state, the most memory."""
    names = methods_or(profile, *TRAINED)
    methods = ["full", *(name for name in names if name != "full" and not METHODS[name].reads)]
    return [
        draft
        for words, some in teams(profile, profile.tasks_or("sst2")[:1]).items()
        for draft in _costs(f"{some[0][0].name}, {words}", [team[0] for team in some], methods)
    ]


def _costs(words: str, samples: Sequence[Skill], methods: Sequence[str]) -> list[Draft]:
    steps = tuple((_measured(skill, methods),) for skill in samples)

    def sheet(title: str, names: Mapping[str, str], formula: Callable[[str, str], Formula], unit: Unit) -> Draft:
        cells: Cells = {
            (method, name): Wanted(formula(method, key), steps) for method in methods for name, key in names.items()
        }
        return Draft(f"{title}, {words}", cells, rows_are="method", unit=unit)

    counts = {"entries trained": "trained", "seconds per step": "step_seconds"}
    sizes = {"optimizer state": "optimizer_bytes", "peak memory": "peak_bytes"}
    return [
        sheet("over full fine-tuning", {**counts, **sizes}, f.cost_over_full, "percent"),
        sheet("a step", counts, f.cost, "number"),
        sheet("bytes", sizes, f.cost, "bytes"),
    ]


def _measured(skill: Skill, methods: Sequence[str]) -> Step:
    from skillgraft.training.costs import Setup, training_costs

    def setup(method: str) -> Setup:
        inside: Any = trained_in(skill, method) if METHODS[method].region else None  # a region once the step runs
        return Setup(skill.plan.with_changes(**METHODS[method].changes), inside)

    every = {method: setup(method) for method in methods}
    return Step(training_costs, {"base": skill.profile.base, "task": skill.task, "setups": every, "data": skill.data})


RECIPES: Mapping[str, Recipe] = {
    "talos-addition": Recipe("skills added up, by every method and rule", "P2 task addition", addition),
    "talos-negation": Recipe("one skill taken away, a control task kept", "P2 task negation", negation),
    "talos-fig1": Recipe("what a model can do without", "P2 figure 1", fig1),
    "talos-fig2": Recipe("how much two skills see of each other", "P2 figure 2", fig2),
    "talos-fig3": Recipe("what a skill does to other tasks", "P2 figure 3", fig3),
    "talos-cost": Recipe("what a step of training costs", "P2 efficiency table", cost),
}
