"""P1 §5.2 and C.3: tasks that come one after the other (table 4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from skillgraft.reproduce import formulas as f
from skillgraft.reproduce.mixtures import Series
from skillgraft.reproduce.profile import Profile
from skillgraft.reproduce.recipe import Draft, Formula, Recipe, Wanted
from skillgraft.reproduce.samples import called
from skillgraft.reproduce.step import Step

TASKS = ("qnli", "ag_news", "sst2")
# A question about one of a series' tasks; a row asks some of every task.
Ask = Callable[[Series, str], Step]
Rows = Mapping[str, tuple[Formula, *tuple[Ask, ...]]]
# What a way of learning tasks in turn says about a task once another one (the last argument) was learned.
Way = Callable[[Series, str, str], Step]
WAYS: Mapping[str, Way] = MappingProxyType({"naive": Series.naive_says, "grafts": Series.store_says})
NOTES = (
    "separate: a model of its own for each task (P1: FT); naive: all parameters tuned on one task after the other "
    "(ContinualFT); grafts: each task in a region of its own (GraftingContinual).",
)


def table4(profile: Profile) -> Sequence[Draft]:
    """A model for each task, one that is tuned on and on, and a store of grafts."""
    tasks = profile.tasks_or(*TASKS)
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
        **{name: (f.score, _after_all(way)) for name, way in WAYS.items()},
    }
    return Draft(
        f"after the last task: {about}", _cells(series, rows), rows_are="way", columns_are="task", notes=NOTES
    ).beside("table4")


def _forgotten(about: str, series: Sequence[Series]) -> Draft:
    """What a task lacks beside a model of its own, and what became of it since it was learned."""
    rows: dict[str, tuple[Formula, *tuple[Ask, ...]]] = {}
    for name, way in WAYS.items():
        now, then = _after_all(way), _in_its_turn(way)
        rows |= {
            f"{name} − separate": (f.difference, now, _separate),
            f"{name}: change since it was learned": (f.difference, now, then),
            f"{name}: rows with the same scores since": (f.same_scores, now, then),
        }
    notes = ("Scores are the same only bit for bit; 100 for all rows of all tasks is P1's forget-free learning.",)
    return Draft(f"what was forgotten: {about}", _cells(series, rows), rows_are="way", columns_are="task", notes=notes)


def _after_each(about: str, series: Sequence[Series]) -> Draft:
    """Scores of the tasks learned so far, after each task."""
    tasks = series[0].tasks
    cells: dict[tuple[str, str], Wanted | str] = {}
    for name, way in WAYS.items():
        for after in tasks:
            for task in tasks:
                learned = task in series[0].upto(after)
                steps = tuple((way(each, task, after),) for each in series) if learned else ()
                found = Wanted(f.score, steps) if learned else "not learned yet"
                cells[f"{name}, after {called(after)}", called(task)] = found
    return Draft(f"after each task: {about}", cells, rows_are="way", columns_are="task")


def _entries(about: str, series: Sequence[Series]) -> Draft:
    """How many entries each task has to itself."""
    cells: dict[tuple[str, str], Wanted | str] = {}
    for task in series[0].tasks:
        name = called(task)
        cells["region", name] = Wanted(f.entries, tuple((each.region(task),) for each in series))
        own = tuple((each.store(task),) for each in series)
        cells["region without earlier ones", name] = Wanted(f.skill_entries(name), own)
    return Draft(f"entries: {about}", cells, columns_are="task", unit="number")


def _memory(about: str, series: Sequence[Series]) -> Draft:
    """The store beside a model for each task, as both grow."""
    cells: dict[tuple[str, str], Wanted | str] = {}
    for after in series[0].tasks:
        column = f"after {called(after)}"
        cells["store of grafts", column] = Wanted(f.skill_bytes, tuple((each.store(after),) for each in series))
        models = tuple(tuple(map(each.alone, each.upto(after))) for each in series)
        cells["separate models", column] = Wanted(f.model_bytes, models)
    return Draft(f"memory: {about}", cells, unit="bytes")


def _cells(series: Sequence[Series], rows: Rows) -> dict[tuple[str, str], Wanted | str]:
    return {
        (row, called(task)): Wanted(formula, tuple(tuple(ask(each, task) for ask in asks) for each in series))
        for row, (formula, *asks) in rows.items()
        for task in series[0].tasks
    }


def _base(series: Series, task: str) -> Step:
    return series.says(task)


def _separate(series: Series, task: str) -> Step:
    return series.says(task, tuned=series.alone(task))


def _after_all(way: Way) -> Ask:
    return lambda series, task: way(series, task, series.tasks[-1])


def _in_its_turn(way: Way) -> Ask:
    return lambda series, task: way(series, task, task)


RECIPES: Mapping[str, Recipe] = {
    "table4": Recipe("tasks learned one after the other in regions of their own", "P1 table 4", table4),
}
