"""A recipe: one of the papers' tables or figures as the cells it has and the steps that each cell needs.

Nothing runs here. `Draft` is a sheet whose cells are wanted; `filled` measures them from finished steps, and a cell whose
steps failed carries the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from skillgraft.errors import SkillgraftError
from skillgraft.measure.intervals import Estimate
from skillgraft.report.numbers import Unit
from skillgraft.report.sheet import Cell, Look, Sheet
from skillgraft.reproduce.papers import paper, paper_note
from skillgraft.reproduce.profile import Profile
from skillgraft.reproduce.step import Step
from skillgraft.reproduce.store import Store

# Folders of a cell's steps → its number.
Formula = Callable[..., Estimate | float]


@dataclass(frozen=True)
class Wanted:
    """A cell to be measured: a formula over the artefacts of some steps, averaged over samples (seeds, tasks).

    `partial` takes the mean of those samples that have a number, and says how many those are; otherwise all must have one.
    """

    formula: Formula
    samples: tuple[tuple[Step, ...], ...]
    paper: float | None = None
    partial: bool = False

    @classmethod
    def of(cls, formula: Formula, *steps: Step, paper: float | None = None) -> Wanted:
        return cls(formula, (steps,), paper)


@dataclass(frozen=True)
class Remark:
    """A note to be measured: a sentence from the artefacts of some steps. Where one of these failed it is left out."""

    formula: Callable[..., str]
    steps: tuple[Step, ...]


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
    values_are: str = ""
    centre: float | None = None
    remarks: tuple[Remark, ...] = ()

    def beside(self, published: str) -> Draft:
        """The same with a paper's numbers beside ours, and a note on what they are about."""
        cells = {
            (row, column): replace(cell, paper=paper(published, row, column)) if isinstance(cell, Wanted) else cell
            for (row, column), cell in self.cells.items()
        }
        found = any(isinstance(cell, Wanted) and cell.paper is not None for cell in cells.values())
        return replace(self, cells=cells, notes=(*self.notes, *([paper_note(published)] if found else [])))

    def steps(self) -> Iterator[Step]:
        for wanted in self.cells.values():
            if isinstance(wanted, Wanted):
                yield from (step for sample in wanted.samples for step in sample)
        yield from (step for remark in self.remarks for step in remark.steps)


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
    look: dict[str, Any] = {name: getattr(draft, name) for name in _LOOK}
    told = [
        remark.formula(*map(store.path, remark.steps))
        for remark in draft.remarks
        if not any(step.key in failures for step in remark.steps)
    ]
    return Sheet(draft.title, rows, columns, cells, notes=(*draft.notes, *told), **look)


_LOOK = ("rows_are", "columns_are", "unit", "look", "log_x", "values_are", "centre")


def _cell(wanted: Wanted | str, store: Store, failures: Mapping[str, str]) -> Cell:
    if isinstance(wanted, str):
        return Cell(reason=wanted)
    found = [_estimate(wanted.formula, sample, store, failures) for sample in wanted.samples]
    missing = [each for each in found if each.value is None]
    if missing and (not wanted.partial or len(missing) == len(found)):
        return Cell(reason=missing[0].reason, paper=wanted.paper)
    return _mean([each for each in found if each.value is not None], of=len(found), paper=wanted.paper)


def _estimate(formula: Formula, sample: Sequence[Step], store: Store, failures: Mapping[str, str]) -> Estimate:
    """One sample's number; where a step failed or the formula has no answer, the reason."""
    failed = next((failures[step.key] for step in sample if step.key in failures), None)
    if failed is not None:
        return Estimate(None, reason=failed)
    try:
        found = formula(*(store.path(step) for step in sample))
    except SkillgraftError as error:
        return Estimate(None, reason=str(error))
    return found if isinstance(found, Estimate) else Estimate(float(found))


def _mean(found: Sequence[Estimate], *, of: int, paper: float | None) -> Cell:
    """The mean over samples; ends of intervals are averaged too. The note tells how far the samples lie apart.

    A number may come with a remark in `reason` (that a bound is vacuous): the note tells it too.
    """
    ends: dict[str, Any] = {
        name: _average([getattr(each, name) for each in found]) for name in ("value", "low", "high")
    }
    values = [each.value for each in found if each.value is not None]
    notes = [f"mean of {len(found)} from {min(values):.4g} to {max(values):.4g}"] if len(found) > 1 else []
    notes += list(dict.fromkeys(each.reason for each in found if each.reason))
    notes += [f"{of - len(found)} of {of} have no number"] if len(found) < of else []
    return Cell(**ends, paper=paper, note="; ".join(notes))


def _average(numbers: Sequence[float | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return sum(known) / len(known) if len(known) == len(numbers) else None
