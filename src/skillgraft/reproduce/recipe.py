"""A recipe: one of the papers' tables or figures as the cells it has and the steps that each cell needs.

Nothing runs here. `Draft` is a sheet whose cells are wanted; `filled` measures them from finished steps, and a cell whose
steps failed carries the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skillgraft.errors import SkillgraftError
from skillgraft.measure.intervals import Estimate
from skillgraft.report.sheet import Cell, Look, Sheet, Unit
from skillgraft.reproduce.profile import Profile
from skillgraft.reproduce.step import Step
from skillgraft.reproduce.store import Store

# Folders of a cell's steps → its number.
Formula = Callable[..., Estimate | float]


@dataclass(frozen=True)
class Wanted:
    """A cell to be measured: a formula over the artefacts of some steps, averaged over samples (seeds, tasks)."""

    formula: Formula
    samples: tuple[tuple[Step, ...], ...]
    paper: float | None = None

    @classmethod
    def of(cls, formula: Formula, *steps: Step, paper: float | None = None) -> Wanted:
        return cls(formula, (steps,), paper)


@dataclass(frozen=True)
class Draft:
    """A sheet before it is measured. A cell is wanted, or known to be missing: then it is the reason."""

    title: str
    cells: Mapping[tuple[str, str], Wanted | str]
    rows_are: str = ""
    columns_are: str = ""
    unit: Unit = "percent"
    look: Look = "table"
    log_x: bool = False
    notes: tuple[str, ...] = ()

    def steps(self) -> Iterator[Step]:
        for wanted in self.cells.values():
            if isinstance(wanted, Wanted):
                yield from (step for sample in wanted.samples for step in sample)


@dataclass(frozen=True)
class Recipe:
    """A name of `reproduce list`: what it shows, where it stands in the paper, and how it is drafted for a profile."""

    title: str
    paper: str
    draft: Callable[[Profile], Sequence[Draft]]
    notes: tuple[str, ...] = field(default=())


def filled(draft: Draft, store: Store, failures: Mapping[str, str]) -> Sheet:
    """The sheet of a draft, measured. Rows and columns come in the order in which their first cells were written."""
    rows = tuple(dict.fromkeys(row for row, _ in draft.cells))
    columns = tuple(dict.fromkeys(column for _, column in draft.cells))
    cells = {
        (row, column): _cell(draft.cells.get((row, column), "not part of this table"), store, failures)
        for row in rows
        for column in columns
    }
    look: dict[str, Any] = {
        name: getattr(draft, name) for name in ("rows_are", "columns_are", "unit", "look", "log_x", "notes")
    }
    return Sheet(draft.title, rows, columns, cells, **look)


def _cell(wanted: Wanted | str, store: Store, failures: Mapping[str, str]) -> Cell:
    if isinstance(wanted, str):
        return Cell(reason=wanted)
    failed = [failures[step.key] for sample in wanted.samples for step in sample if step.key in failures]
    if failed:
        return Cell(reason=failed[0], paper=wanted.paper)
    try:
        found = [_estimate(wanted.formula, [store.path(step) for step in sample]) for sample in wanted.samples]
    except SkillgraftError as error:
        return Cell(reason=str(error), paper=wanted.paper)
    return _mean(found, wanted.paper)


def _estimate(formula: Formula, folders: Sequence[Path]) -> Estimate:
    found = formula(*folders)
    return found if isinstance(found, Estimate) else Estimate(float(found))


def _mean(found: Sequence[Estimate], paper: float | None) -> Cell:
    """The mean over samples; ends of intervals are averaged too. One undefined sample makes the mean undefined."""
    undefined = next((each for each in found if each.value is None), None)
    if undefined is not None:
        return Cell(reason=undefined.reason, paper=paper)
    ends = {name: [getattr(each, name) for each in found] for name in ("value", "low", "high")}
    means: dict[str, Any] = {
        name: None if None in values else sum(values) / len(values) for name, values in ends.items()
    }
    return Cell(**means, paper=paper)
