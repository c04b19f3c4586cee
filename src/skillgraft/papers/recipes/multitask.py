"""P1 §5 and C.2, C.3: several skills in one model, a region for each (figures 8 and 11 to 14; one model against many), and tasks
that come one after the other (table 4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from skillgraft.errors import InputError
from skillgraft.papers import formulas as f
from skillgraft.papers.profile import Profile
from skillgraft.papers.recipe import Cells, Column, Draft, Formula, Recipe, Remark, Wanted, mean_of, table
from skillgraft.papers.recipes.localization import OPTIMIZERS
from skillgraft.papers.samples import Model, Sample, answers, base, called, drawn, tuned
from skillgraft.papers.several_tasks import Mixture, Series
from skillgraft.papers.steps import Asked, Step

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
    """A heat map of grafts (rows) against tasks (columns); `members` are the tasks that a row's graft is made of.

    `grafts` are those of each row, one for each mixture.
    """

    title: str
    values_are: str
    members: Mapping[str, tuple[str, ...]]
    cells: Mapping[tuple[str, str], Wanted]
    centre: float | None = None
    grafts: Mapping[str, tuple[tuple[Asked, ...], ...]] = field(default_factory=dict)

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
        return mean_of(chosen)


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
    """Figures 11 to 14: (a) and (b) of figure 8 for another γ_base, or otherwise tuned."""

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
    graft: Callable[[Mixture, tuple[str, ...]], Asked],
) -> Panel:
    grafts = {row: tuple((graft(mixture, group),) for mixture in mixtures) for row, group in rows.items()}
    cells = {
        (row, called(task)): Wanted(f.gain, tuple(m.gained(graft(m, group), task) for m in mixtures))
        for row, group in rows.items()
        for task in mixtures[0].tasks
    }
    members = {row: tuple(map(called, group)) for row, group in rows.items()}
    return Panel(title, "relative gain", members, cells, centre=0.0, grafts=grafts)


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
    cells: Cells = {}
    for panel in panels[1:]:
        for row in panel.members:
            for column, formula in (("entries", f.entries), ("density", f.density)):
                cells[f"{panel.title[:3]} {row}", column] = Wanted(formula, panel.grafts[row])
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
        "majority": (f.majority, answers(base)), "base": (f.score, answers(base)), "single task": (f.score, answers(tuned)),
        **{f"multi-task {name}": (f.score, answers(mixed(changes))) for name, changes in OPTIMIZERS.items()},
        "multi-task SGD − single task": (f.difference, answers(mixed({})), answers(tuned)),
    }  # fmt: skip
    averages = {"average": [called(task) for task in tasks]}
    rows = drawn(profile, tasks, shots)
    return table(f"{shots} examples per class", rows, columns, averages=averages, rows_are="task")


IN_TURN = ("qnli", "ag_news", "sst2")
# A question about one of a series' tasks; a row asks some of every task.
Ask = Callable[[Series, str], Step]
Rows = Mapping[str, tuple[Formula, *tuple[Ask, ...]]]
# What a method of learning tasks in turn answers about a task once another one (the last argument) was learned.
Method = Callable[[Series, str, str], Step]
METHODS: Mapping[str, Method] = MappingProxyType({"naive": Series.naive_answers, "grafts": Series.store_answers})
NOTES = (
    "separate: a model of its own for each task (P1: FT); naive: all parameters tuned on one task after the other "
    "(ContinualFT); grafts: each task in a region of its own (GraftingContinual).",
)


def table4(profile: Profile) -> Sequence[Draft]:
    """A model for each task, one that is tuned on and on, and a store of grafts."""
    tasks = profile.tasks_or(*IN_TURN)
    return [
        sheet(f"{shots} examples per class", [Series(profile, tasks, shots, seed) for seed in profile.seeds_at(shots)])
        for shots in profile.shots_or("together")
        for sheet in (_at_the_end, _forgotten, _after_each, _entries, _memory)
    ]


def _at_the_end(about: str, series: Sequence[Series]) -> Draft:
    """The paper's table: every task after the last one was learned."""
    rows: Rows = {
        "majority": (f.majority, _base),
        "base": (f.score, _base),
        "separate": (f.score, _separate),
        **{name: (f.score, _after_all(method)) for name, method in METHODS.items()},
    }
    return Draft(
        f"after the last task: {about}", _cells(series, rows), rows_are="method", columns_are="task", notes=NOTES
    ).beside("table4")


def _forgotten(about: str, series: Sequence[Series]) -> Draft:
    """What a task lacks beside a model of its own, and what became of it since it was learned."""
    rows: dict[str, tuple[Formula, *tuple[Ask, ...]]] = {}
    for name, method in METHODS.items():
        now, then = _after_all(method), _in_its_turn(method)
        rows |= {
            f"{name} − separate": (f.difference, now, _separate),
            f"{name}: change since it was learned": (f.difference, now, then),
            f"{name}: rows with the same scores since": (f.identical, now, then),
        }
    notes = ("Scores are the same only bit for bit; 100 for all rows of all tasks is P1's forget-free learning.",)
    return Draft(
        f"what was forgotten: {about}", _cells(series, rows), rows_are="method", columns_are="task", notes=notes
    )


def _after_each(about: str, series: Sequence[Series]) -> Draft:
    """Scores of the tasks learned so far, after each task."""
    tasks = series[0].tasks
    cells: Cells = {}
    for name, method in METHODS.items():
        for after in tasks:
            for task in tasks:
                learned = task in series[0].upto(after)
                steps = tuple((method(each, task, after),) for each in series) if learned else ()
                found = Wanted(f.score, steps) if learned else "not learned yet"
                cells[f"{name}, after {called(after)}", called(task)] = found
    return Draft(f"after each task: {about}", cells, rows_are="method", columns_are="task")


def _entries(about: str, series: Sequence[Series]) -> Draft:
    """How many entries each task has to itself."""
    cells: Cells = {}
    for task in series[0].tasks:
        name = called(task)
        cells["region", name] = Wanted(f.entries, tuple((each.region(task),) for each in series))
        own = tuple((each.store(task),) for each in series)
        cells["region without earlier ones", name] = Wanted(f.skill_entries(name), own)
    return Draft(f"entries: {about}", cells, columns_are="task", unit="number")


def _memory(about: str, series: Sequence[Series]) -> Draft:
    """The store beside a model for each task, as both grow."""
    cells: Cells = {}
    for after in series[0].tasks:
        column = f"after {called(after)}"
        cells["store of grafts", column] = Wanted(f.skill_bytes, tuple((each.store(after),) for each in series))
        models = tuple(tuple(map(each.alone, each.upto(after))) for each in series)
        cells["separate models", column] = Wanted(f.model_bytes, models)
    return Draft(f"memory: {about}", cells, unit="bytes")


def _cells(series: Sequence[Series], rows: Rows) -> Cells:
    return {
        (row, called(task)): Wanted(formula, tuple(tuple(ask(each, task) for ask in asks) for each in series))
        for row, (formula, *asks) in rows.items()
        for task in series[0].tasks
    }


def _base(series: Series, task: str) -> Step:
    return series.answers(task)


def _separate(series: Series, task: str) -> Step:
    return series.answers(task, tuned=series.alone(task))


def _after_all(method: Method) -> Ask:
    return lambda series, task: method(series, task, series.tasks[-1])


def _in_its_turn(method: Method) -> Ask:
    return lambda series, task: method(series, task, task)


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
    "table4": Recipe("tasks learned one after the other in regions of their own", "P1 table 4", table4),
}
