"""P2's figures 4 and 5: which entries TaLoS and LoTA train, and whether tasks agree about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from skillgraft.names import KINDS, kind_of, layer_of, natural_key
from skillgraft.region import Scope
from skillgraft.reproduce import vector_formulas as v
from skillgraft.reproduce.content import scope_of
from skillgraft.reproduce.formulas import jaccard
from skillgraft.reproduce.profile import Profile
from skillgraft.reproduce.recipe import Draft, Formula, Recipe, Wanted
from skillgraft.reproduce.skills import METHODS, Skill, Team, methods_or, teams, trained_in

REGIONS = ("TaLoS", "TaLoS plain", "LoTA")
Cells = dict[tuple[str, str], Wanted | str]


def fig4(profile: Profile) -> Sequence[Draft]:
    """Which kinds of entries TaLoS and LoTA train in one block, the middle one."""
    return [
        _by_kind(words, samples, _methods(profile))
        for words, some in teams(profile, profile.tasks_or("sst2")).items()
        for samples in zip(*some, strict=True)
    ]


def _by_kind(words: str, samples: Sequence[Skill], methods: Sequence[str]) -> Draft:
    layers = _layers(samples[0])
    middle = layers[len(layers) // 2]
    cells: Cells = {
        (kind, method): _of_region(v.selected(middle, kind), samples, method)
        for kind in _kinds(samples[0])
        for method in methods
    }
    title = f"{samples[0].name}: {middle}, {words}"
    return Draft(title, cells, rows_are="kind", look="bars", values_are="share of its entries that is trained")


def fig5(profile: Profile) -> Sequence[Draft]:
    """TaLoS's and LoTA's regions in the whole model, their bare rows and columns, and whether tasks agree about them."""
    methods = _methods(profile)
    return [
        draft
        for words, some in teams(profile, profile.tasks_or("sst2", "ag_news", "trec")).items()
        for draft in (
            *(_everywhere(words, samples, method) for samples in zip(*some, strict=True) for method in methods),
            _bare(words, some, methods),
            *_agreement(words, some, methods),
            _insensitive(words, some, [name for name in methods if name.startswith("TaLoS")]),
        )
    ]


def _everywhere(words: str, samples: Sequence[Skill], method: str) -> Draft:
    cells: Cells = {
        (layer, kind): _of_region(v.selected(layer, kind), samples, method)
        for layer in _layers(samples[0])
        for kind in _kinds(samples[0])
    }
    look: dict[str, Any] = {"look": "heatmap", "values_are": "share of its entries that is trained"}
    return Draft(f"{method}: {samples[0].name}, {words}", cells, rows_are="layer", columns_are="kind", **look)


def _bare(words: str, some: Sequence[Team], methods: Sequence[str]) -> Draft:
    """Rows and columns of the matrices without any entry to train: what hardware can leave out."""
    matrices = {kind_of(name) for name, shape in _shapes(some[0][0]).items() if len(shape) > 1}
    kinds = [kind for kind in _kinds(some[0][0]) if kind in matrices]
    skills = [skill for team in some for skill in team]
    cells: Cells = {
        (kind, f"{method}, {axis}"): _of_region(v.empty(kind, axis), skills, method)
        for kind in kinds
        for method in methods
        for axis in ("rows", "columns")
    }
    return Draft(f"rows and columns without entries, mean over tasks, {words}", cells, rows_are="kind")


def _agreement(words: str, some: Sequence[Team], methods: Sequence[str]) -> list[Draft]:
    """Regions of several tasks under the same seed, pair by pair and together."""
    if len(some[0]) < 2:
        return []
    sheets = []
    for method in methods:
        regions = [[trained_in(skill, method) for skill in team] for team in some]
        cells: Cells = {
            (one.name, two.name): Wanted(jaccard, tuple((found[down], found[across]) for found in regions))
            for down, one in enumerate(some[0])
            for across, two in enumerate(some[0])
        }
        sheets.append(Draft(f"jaccard of {method}'s regions, {words}", cells, look="heatmap", values_are="jaccard"))
    together: dict[str, Formula] = {
        "mean jaccard": v.alike, "jaccard by chance": v.alike_by_chance, "entries that all tasks share": v.in_all
    }  # fmt: skip
    means: Cells = {
        (method, name): Wanted(formula, tuple(tuple(trained_in(s, method) for s in team) for team in some))
        for method in methods
        for name, formula in together.items()
    }
    return [*sheets, Draft(f"do tasks agree, {words}", means, rows_are="method")]


def _insensitive(words: str, some: Sequence[Team], methods: Sequence[str]) -> Draft:
    cells: Cells = {
        (skill.name, method): _of_region(v.fact("insensitive_share"), [team[place] for team in some], method)
        for place, skill in enumerate(some[0])
        for method in methods
    }
    return Draft(f"chosen entries without any sensitivity, {words}", cells, rows_are="task")


def _methods(profile: Profile) -> tuple[str, ...]:
    return tuple(name for name in methods_or(profile, *REGIONS) if METHODS[name].region)


def _of_region(formula: Formula, samples: Sequence[Skill], method: str) -> Wanted:
    return Wanted(formula, tuple((trained_in(skill, method),) for skill in samples))


def _shapes(skill: Skill) -> Mapping[str, tuple[int, ...]]:
    """The parameters that may hold a skill's region."""
    return Scope.select(skill.scope, scope_of(skill.profile.base).shapes).shapes


def _layers(skill: Skill) -> list[str]:
    return sorted({layer_of(name) for name in _shapes(skill)}, key=natural_key)


def _kinds(skill: Skill) -> list[str]:
    found = set(map(kind_of, _shapes(skill)))
    return [kind for kind in KINDS if kind in found]


RECIPES: Mapping[str, Recipe] = {
    "talos-fig4": Recipe("which kinds of entries are trained, in one block", "P2 figure 4", fig4),
    "talos-fig5": Recipe("which entries are trained, in the whole model", "P2 figure 5", fig5),
}
