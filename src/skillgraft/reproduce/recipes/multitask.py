"""P1 §5.1 and C.2: several skills in one model, a region for each (figures 8 and 11 to 14; one model against many)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from skillgraft.errors import InputError
from skillgraft.reproduce import formulas as f
from skillgraft.reproduce.drafts import Column, table
from skillgraft.reproduce.mixtures import Mixture
from skillgraft.reproduce.profile import Profile
from skillgraft.reproduce.recipe import Draft, Recipe, Remark, Wanted
from skillgraft.reproduce.recipes.localization import OPTIMIZERS
from skillgraft.reproduce.samples import Model, Sample, base, called, drawn, says, tuned
from skillgraft.reproduce.step import Step

# Six of P1's eight tasks. One of trec's classes has 84 rows, too few for a mixture of 256 examples per class.
TASKS = ("sst2", "cr", "ag_news", "qnli", "snli", "qqp")
VARIED = ("sst2", "cr", "qnli")  # whose regions are learned again from other γ_base
GROUPS = (("sst2", "cr"), ("qnli", "snli"), ("ag_news", "qqp"), ("sst2", "cr", "ag_news"), ("qnli", "snli", "qqp"))
MOST_GROUPS = 5  # P1 fig. 8c
FAMILIES: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("sst2", "cr", "mr", "mpqa"), "sentiment"),
        **dict.fromkeys(("ag_news", "trec", "subj"), "classification"),
        **dict.fromkeys(("qnli", "snli", "mnli", "rte"), "inference"),
        **dict.fromkeys(("mrpc", "qqp", "paws"), "paraphrase"),
    }
)


@dataclass(frozen=True)
class Panel:
    """A heat map of grafts (rows) against tasks (columns); `members` are the tasks that a row's graft is made of."""

    title: str
    values_are: str
    members: Mapping[str, tuple[str, ...]]
    cells: Mapping[tuple[str, str], Wanted]
    centre: float | None = None

    def draft(self, about: str, **look: Any) -> Draft:
        return Draft(
            f"{self.title}: {about}", self.cells, rows_are="region of", columns_are="task", look="heatmap",
            values_are=self.values_are, centre=self.centre, **look,
        )  # fmt: skip

    def mean(self, which: Callable[[tuple[str, ...], str], bool]) -> Wanted | str:
        """The mean of the cells whose members and task are chosen, as far as they have numbers."""
        chosen = [cell for (row, task), cell in self.cells.items() if which(self.members[row], task)]
        if not chosen:
            return "there is no such pair among these tasks"
        samples = tuple(sample for cell in chosen for sample in cell.samples)
        return Wanted(chosen[0].formula, samples, partial=True)


def fig8(profile: Profile) -> Sequence[Draft]:
    """(a) what regions share, (b) what each does for every task, (c) unions of them, (d) purified unions."""
    return [draft for shots in profile.shots_or("together") for draft in _composed(_mixtures(profile, shots))]


def _composed(mixtures: Sequence[Mixture]) -> list[Draft]:
    tasks = mixtures[0].tasks
    unions = {"+".join(map(called, group)): group for group in groups(tasks)}
    return _sheets(
        mixtures,
        [
            _coverage(mixtures, tasks),
            _own_gains(mixtures, tasks),
            _gains("(c) gains of unions", mixtures, unions, Mixture.union),
            _gains("(d) gains of purified unions", mixtures, unions, Mixture.purified),
        ],
    )


def groups(tasks: Sequence[str]) -> list[tuple[str, ...]]:
    """The groups of tasks whose regions are united: the recipe's own, or neighbours where other tasks are asked for."""
    known = {called(task): task for task in tasks}
    own = [tuple(known[name] for name in group) for group in GROUPS if set(group) <= known.keys()]
    neighbours: list[tuple[str, ...]] = [*pairwise(tasks)]
    return own or neighbours[:MOST_GROUPS]


def _varied(changes: Mapping[str, Any] | None = None, **how: Any) -> Callable[[Profile], Sequence[Draft]]:
    """Figures 11 to 14: (a) and (b) of figure 8 for another γ_base or another way of tuning."""

    def drafts(profile: Profile) -> Sequence[Draft]:
        found: list[Draft] = []
        for shots in profile.shots_or("together"):
            mixtures = _mixtures(profile, shots, changes=changes or {}, **how)
            tasks = VARIED if "start" in how and not profile.tasks else mixtures[0].tasks
            found += _sheets(mixtures, [_coverage(mixtures, tasks), _own_gains(mixtures, tasks)])
        return found

    return drafts


def _mixtures(profile: Profile, shots: int, **how: Any) -> list[Mixture]:
    """One for each seed."""
    tasks = profile.tasks_or(*TASKS)
    if len(tasks) < 2:
        raise InputError(f"a mixture has at least two tasks, found {called(tasks[0])} alone; give --task several times")
    return [Mixture(profile, tasks, shots, seed, **how) for seed in profile.seeds_at(shots)]


def _coverage(mixtures: Sequence[Mixture], tasks: Sequence[str]) -> Panel:
    cells = {
        (called(row), called(column)): Wanted(f.coverage, tuple((m.graft(row), m.graft(column)) for m in mixtures))
        for row in tasks
        for column in tasks
    }
    covered = "share of the column's region"
    return Panel("(a) what regions share", covered, {called(task): (called(task),) for task in tasks}, cells)


def _own_gains(mixtures: Sequence[Mixture], tasks: Sequence[str]) -> Panel:
    rows = {called(task): (task,) for task in tasks}
    return _gains("(b) gains of one task's region", mixtures, rows, lambda mixture, group: mixture.graft(*group))


def _gains(
    title: str,
    mixtures: Sequence[Mixture],
    rows: Mapping[str, tuple[str, ...]],
    graft: Callable[[Mixture, tuple[str, ...]], Step],
) -> Panel:
    cells = {
        (row, called(task)): Wanted(f.gain, tuple(m.gained(graft(m, group), task) for m in mixtures))
        for row, group in rows.items()
        for task in mixtures[0].tasks
    }
    members = {row: tuple(map(called, group)) for row, group in rows.items()}
    return Panel(title, "relative gain", members, cells, centre=0.0)


def _sheets(mixtures: Sequence[Mixture], panels: Sequence[Panel]) -> list[Draft]:
    """The heat maps, which tasks are alike, the means of each map, and how large the regions are."""
    tasks = [task for task in mixtures[0].tasks if called(task) in panels[0].members]
    likeness = f.likeness([called(task) for task in tasks])
    alike = tuple(Remark(likeness, tuple(map(mixture.graft, tasks))) for mixture in mixtures)
    shots = f"{mixtures[0].shots} examples per class"
    first, *others = panels
    return [
        first.draft(shots, remarks=alike),
        *(panel.draft(shots) for panel in others),
        _means(shots, panels),
        _sizes(shots, panels),
    ]


def _means(about: str, panels: Sequence[Panel]) -> Draft:
    """Whether a region serves its own tasks, and whether like tasks share more than others do."""
    cells = {(panel.title, column): panel.mean(which) for panel in panels for column, which in COLUMNS.items()}
    return Draft(f"means of the maps: {about}", cells, rows_are="map")


def _kin(members: tuple[str, ...], task: str) -> bool:
    return FAMILIES.get(task, task) in {FAMILIES.get(name, name) for name in members}


# Which cells of a map a column of its means takes: the diagonal, what is beside it, and this in two parts.
COLUMNS: Mapping[str, Callable[[tuple[str, ...], str], bool]] = MappingProxyType(
    {
        "own tasks": lambda members, task: task in members,
        "all others": lambda members, task: task not in members,
        "others of the same family": lambda members, task: task not in members and _kin(members, task),
        "others of other families": lambda members, task: not _kin(members, task),
    }
)


def _sizes(about: str, panels: Sequence[Panel]) -> Draft:
    """The regions of all maps of gains: their entries, and what share of the scope these are."""
    cells: dict[tuple[str, str], Wanted | str] = {}
    for panel in panels[1:]:
        task = next(iter(panel.cells))[1]
        for row in panel.members:
            grafts = tuple((said.needs["graft"],) for said, *_ in panel.cells[row, task].samples)
            for column, formula in (("entries", f.entries), ("density", f.density)):
                cells[f"{panel.title[:3]} {row}", column] = Wanted(formula, grafts)
    return Draft(f"sizes of the regions: {about}", cells, rows_are="region", unit="number")


def one_or_many(profile: Profile) -> Sequence[Draft]:
    """Multi-task models of three optimizers against a model of its own for each task."""
    return [_one_or_many(profile, shots) for shots in profile.shots_or("together")]


def _one_or_many(profile: Profile, shots: int) -> Draft:
    tasks = _mixtures(profile, shots)[0].tasks

    def mixed(changes: Mapping[str, Any]) -> Model:
        def model(sample: Sample) -> dict[str, Any]:
            return {"tuned": Mixture(sample.profile, tasks, sample.shots, sample.seed, changes).tuned()}

        return model

    columns: dict[str, Column] = {
        "majority": (f.majority, says(base)), "base": (f.score, says(base)), "single task": (f.score, says(tuned)),
        **{f"multi-task {name}": (f.score, says(mixed(changes))) for name, changes in OPTIMIZERS.items()},
        "multi-task SGD − single task": (f.difference, says(mixed({})), says(tuned)),
    }  # fmt: skip
    averages = {"average": [called(task) for task in tasks]}
    rows = drawn(profile, tasks, shots)
    return table(f"{shots} examples per class", rows, columns, averages=averages, rows_are="task")


RECIPES: Mapping[str, Recipe] = {
    "fig8": Recipe("a multi-task model holds each skill in a region of its own", "P1 figure 8", fig8),
    "fig11": Recipe("regions of a multi-task model from γ_base 1e-5", "P1 figure 11", _varied(start=1e-5)),
    "fig12": Recipe("regions of a multi-task model from γ_base 1e-4", "P1 figure 12", _varied(start=1e-4)),
    "fig13": Recipe("regions of a multi-task model tuned by AdamW", "P1 figure 13", _varied(OPTIMIZERS["AdamW"])),
    "fig14": Recipe(
        "regions of a multi-task model tuned by AdamW with a pull towards the base",
        "P1 figure 14",
        _varied(OPTIMIZERS["AdamW + L1"]),
    ),
    "mt-vs-single": Recipe("one model for all tasks against one for each", "P1 §5.1", one_or_many),
}
