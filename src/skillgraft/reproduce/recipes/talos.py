"""P2's figures 1 to 3 and its efficiency: what a model can do without, how skills interfere, what training them costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from skillgraft.report.numbers import Unit
from skillgraft.reproduce import vector_formulas as v
from skillgraft.reproduce.profile import Profile
from skillgraft.reproduce.recipe import Draft, Formula, Recipe, Wanted
from skillgraft.reproduce.recipes.arithmetic import TASKS
from skillgraft.reproduce.skills import METHODS, Skill, Team, methods_or, single, teams, trained_in, vector
from skillgraft.reproduce.step import Step

SHARES = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4)
SHARE = 0.1  # what the paper settles on
ALPHAS = (-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0)
PAIRED = ("sst2", "snli", "ag_news", "trec")  # two pairs, one after the other
MOST_PAIRS = 2
FEW = ("full", "linearised", "TaLoS")
TRAINED = ("full", "linearised", "LoRA", "LoTA", "random 10 %", "TaLoS")
Cells = dict[tuple[str, str], Wanted | str]


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
            v.pruned(scored.name, f"{SHARE:g}"), tuple((_pruned(team, place),) for team in some)
        )
        for place, finder in enumerate(some[0])
        for scored in some[0]
    }
    look: dict[str, Any] = {"look": "heatmap", "values_are": "accuracy / base's", "centre": 1.0}
    title = f"without the least sensitive {100 * SHARE:g} %, {words}"
    return Draft(title, cells, rows_are="found on", columns_are="scored on", **look)


def _pruning_curve(words: str, some: Sequence[Team]) -> Draft:
    steps = tuple((_pruned(team, place),) for team in some for place in range(len(team)))
    lines = {"the task itself": True, "other tasks": False}
    cells: Cells = {
        (f"{share:g}", name): Wanted(v.pruned_mean(f"{share:g}", own=own), steps, partial=True)
        for share in SHARES
        for name, own in lines.items()
    }
    title = f"mean over the share of entries set to 0, {words}"
    return Draft(title, cells, rows_are="share", values_are="accuracy / base's", look="lines")


def _pruned(team: Team, finder: int) -> Step:
    skill = team[finder]
    settings = {"task": skill.task, "tasks": [each.task for each in team], "shares": list(SHARES)}
    asked = {"base": skill.profile.base, "rows": skill.profile.test_rows, "scope": skill.scope, "data": skill.few_rows}
    return Step("prune", {**asked, **settings})


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
            means[" + ".join(names), method] = Wanted(v.mean_error, steps)
            maps.append(_map(f"{method}: {' and '.join(names)}, {words}", names, steps))
    mean = Draft(f"mean of ξ over the map, {words}", means, rows_are="tasks", columns_are="method", unit="number")
    return [*maps, *([mean] if means else [])]


def _map(title: str, names: Sequence[str], steps: tuple[tuple[Step, ...], ...]) -> Draft:
    cells: Cells = {
        (f"{down:g}", f"{across:g}"): Wanted(v.error(row, column), steps)
        for row, down in enumerate(ALPHAS)
        for column, across in enumerate(ALPHAS)
    }
    first, second = (f"scale of {name}" for name in names)
    notes = ("Scales are searched from 0 to 1.",)
    look: dict[str, Any] = {"look": "heatmap", "unit": "number", "values_are": "disentanglement error ξ"}
    return Draft(title, cells, rows_are=first, columns_are=second, notes=notes, **look)


def _map_of(pair: Team, method: str) -> Step:
    settings: dict[str, Any] = {**pair[0].judged, "tasks": [skill.task for skill in pair], "alphas": list(ALPHAS)}
    settings |= {"linear": True} if METHODS[method].linear else {}
    return Step("disentangle", settings, {skill.name: vector(skill, method) for skill in pair})


def fig3(profile: Profile) -> Sequence[Draft]:
    """Each tuned model on every task, over the base; and the means of what it does to its own and to others."""
    return [
        draft
        for words, some in teams(profile, profile.tasks_or(*TASKS)).items()
        for draft in _function_localisation(words, some, methods_or(profile, *FEW))
    ]


def _function_localisation(words: str, some: Sequence[Team], methods: Sequence[str]) -> list[Draft]:
    def asked(pairs: Sequence[tuple[Skill, Skill]], method: str, formula: Formula = v.localised, **how: Any) -> Wanted:
        samples = tuple((single(a, method, task=b.task), b.says()) for a, b in pairs)
        return Wanted(formula, samples, **how)

    places = range(len(some[0]))
    matrices = []
    for method in methods:
        cells: Cells = {
            (some[0][down].name, some[0][across].name): asked([(team[down], team[across]) for team in some], method)
            for down in places
            for across in places
        }
        look: dict[str, Any] = {"look": "heatmap", "values_are": "accuracy / base's", "centre": 1.0}
        matrices.append(Draft(f"{method}, {words}", cells, rows_are="tuned on", columns_are="scored on", **look))
    every = [(a, b) for team in some for a in team for b in team]
    own, others = [(a, b) for a, b in every if a == b], [(a, b) for a, b in every if a != b]
    rows: dict[str, tuple[Sequence[tuple[Skill, Skill]], Formula]] = {
        "its own task": (own, v.localised),
        "other tasks": (others, v.localised),
        "other tasks: distance from 100": (others, v.disturbed),
    }
    means: Cells = {
        (row, method): asked(pairs, method, formula, partial=True)
        for row, (pairs, formula) in rows.items()
        if pairs
        for method in methods
    }
    return [*matrices, Draft(f"means, {words}", means, rows_are="scored on", columns_are="method")]


def cost(profile: Profile) -> Sequence[Draft]:
    """What a step of every way to train costs in one run: seconds, optimizer state, the most memory."""
    names = methods_or(profile, *TRAINED)
    ways = ["full", *(name for name in names if name != "full" and not METHODS[name].reads)]
    return [
        draft
        for words, some in teams(profile, profile.tasks_or("sst2")[:1]).items()
        for draft in _costs(f"{some[0][0].name}, {words}", [team[0] for team in some], ways)
    ]


def _costs(words: str, samples: Sequence[Skill], ways: Sequence[str]) -> list[Draft]:
    steps = tuple((_measured(skill, ways),) for skill in samples)

    def sheet(title: str, names: Mapping[str, str], formula: Callable[[str, str], Formula], unit: Unit) -> Draft:
        cells: Cells = {(way, name): Wanted(formula(way, key), steps) for way in ways for name, key in names.items()}
        return Draft(f"{title}, {words}", cells, rows_are="method", unit=unit)

    counts = {"entries trained": "trained", "seconds per step": "step_seconds"}
    sizes = {"optimizer state": "optimizer_bytes", "peak memory": "peak_bytes"}
    return [
        sheet("over full fine-tuning", {**counts, **sizes}, v.cost_over_full, "percent"),
        sheet("a step", counts, v.cost, "number"),
        sheet("bytes", sizes, v.cost, "bytes"),
    ]


def _measured(skill: Skill, ways: Sequence[str]) -> Step:
    changes = {way: dict(METHODS[way].changes) for way in ways}
    regions = {way: trained_in(skill, way) for way in ways if METHODS[way].region}
    settings = {**skill.read, "task": skill.task, "plan": skill.plan.as_dict(), "ways": changes}
    return Step("cost", {**settings, "rows": skill.rows, "seed": skill.seed}, regions)


RECIPES: Mapping[str, Recipe] = {
    "talos-fig1": Recipe("what a model can do without", "P2 figure 1", fig1),
    "talos-fig2": Recipe("how much two skills see of each other", "P2 figure 2", fig2),
    "talos-fig3": Recipe("what a skill does to other tasks", "P2 figure 3", fig3),
    "talos-cost": Recipe("what a step of training costs", "P2 efficiency table", cost),
}
