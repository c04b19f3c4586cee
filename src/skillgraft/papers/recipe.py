"""A recipe: one of the papers' tables or figures as the cells it has and the steps that each cell needs.

Nothing runs here. `table` and `curve` draft a sheet from short descriptions: which samples a row has, which question a column
asks of them. `Draft` is a sheet whose cells are wanted; `filled` measures them from finished steps, and a cell whose steps failed
carries the reason.

The papers' own numbers stand in the *.toml files beside this one, as percentages. A table of such a file says which model and
data it is `about`, its `columns`, and a list of percentages for each of its `rows`, in the columns' order; what the paper does
not have is "".
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from skillgraft.errors import SkillgraftError
from skillgraft.measure.intervals import Estimate, SeedMean, over_seeds
from skillgraft.papers.profile import Profile
from skillgraft.papers.run import Store
from skillgraft.papers.samples import Ask, Sample, called
from skillgraft.papers.steps import Asked, steps_in
from skillgraft.report.sheet import Cell, Look, Sheet
from skillgraft.values.printing import Unit

# The results of a cell's steps → its number.
Formula = Callable[..., Estimate | float]
_READ = 16  # results that stay in memory: many cells ask about the same


@dataclass(frozen=True)
class Wanted:
    """A cell to be measured: a formula over the results of some steps, averaged over samples (seeds, tasks).

    `seeds` says which seed each sample belongs to, where several samples share one; by default each is a seed of its own.
    `partial` takes the mean of those samples that have a number, and says how many those are; otherwise all must have one.
    `note` says what a reader must know about all of them.
    """

    formula: Formula
    samples: tuple[tuple[Asked, ...], ...]
    paper: float | None = None
    partial: bool = False
    seeds: tuple[int, ...] = ()
    note: str = ""

    @property
    def seed_of(self) -> tuple[int, ...]:
        """The seed of each sample."""
        return self.seeds or tuple(range(len(self.samples)))

    def once(self) -> Wanted:
        """The same with each sample once, where all seeds have the same ones: what the base answers depends on no seed."""
        distinct = tuple(dict.fromkeys(self.samples))
        if len(distinct) * len({*self.seed_of}) != len(self.samples):
            return self
        return replace(self, samples=distinct, seeds=(0,) * len(distinct))

    @classmethod
    def of(cls, formula: Formula, *steps: Asked, paper: float | None = None) -> Wanted:
        return cls(formula, (steps,), paper)


def mean_of(cells: Sequence[Wanted]) -> Wanted:
    """The mean of cells of one formula, as far as they have numbers; a seed is the same in all of them."""
    samples = tuple(sample for cell in cells for sample in cell.samples)
    seeds = tuple(seed for cell in cells for seed in cell.seed_of)
    return Wanted(cells[0].formula, samples, partial=True, seeds=seeds)


Cells = dict[tuple[str, str], Wanted | str]  # by row and column: wanted, or the reason why there is none


@dataclass(frozen=True)
class Remark:
    """A note to be measured: a sentence from the results of some steps. Where one of these failed it is left out."""

    formula: Callable[..., str]
    steps: tuple[Asked, ...]


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

    def steps(self) -> Iterator[Asked]:
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


# A formula and the steps that it reads, as questions to a sample; or the reason why there is no such cell.
Column = tuple[Formula, *tuple[Ask, ...]] | str
Columns = Mapping[str, Column]
NATURAL = "as many rows as all classes would have train, in natural proportion: a class has fewer rows than that"


def wanted(samples: Sequence[Sample], column: Column, *, partial: bool = False) -> Wanted | str:
    """A column's cell for some samples: the mean over them."""
    if isinstance(column, str):
        return column
    formula, *asks = column
    steps = tuple(tuple(ask(sample) for ask in asks) for sample in samples)
    note = next((f"{NATURAL} ({called(each.task)})" for each in samples if each.most == each.shots), "")
    return Wanted(formula, steps, partial=partial, seeds=tuple(sample.seed for sample in samples), note=note)


def table(
    title: str,
    rows: Mapping[str, Sequence[Sample]],
    columns: Columns,
    *,
    averages: Mapping[str, Sequence[str]] | None = None,
    **look: Any,
) -> Draft:
    """Every column's question asked of every row's samples. `averages` are rows over other rows, as far as these have numbers."""
    over = {
        name: [sample for part in parts for sample in rows.get(part, ())] for name, parts in (averages or {}).items()
    }
    cells = {
        (row, name): wanted(samples, column, partial=row in over)
        for row, samples in {**rows, **over}.items()
        if samples
        for name, column in columns.items()
    }
    return Draft(title, cells, **look)


def curve(
    title: str, samples: Sequence[Sample], columns_at: Callable[[float], Columns], points: Sequence[float], **look: Any
) -> Draft:
    """A line for each column over points (densities, scales, steps); `columns_at` says what is asked at a point."""
    cells = {
        (f"{point:g}", name): wanted(samples, column) for point in points for name, column in columns_at(point).items()
    }
    return Draft(title, cells, **{"look": "lines", **look})


def filled(draft: Draft, store: Store, failures: Mapping[str, str]) -> Sheet:
    """The sheet of a draft, measured. Rows and columns come in the order in which their first cells were written."""
    rows = tuple(dict.fromkeys(row for row, _ in draft.cells))
    columns = tuple(dict.fromkeys(column for _, column in draft.cells))
    read = lru_cache(maxsize=_READ)(store.read)
    cells = {
        (row, column): _cell(draft.cells.get((row, column), "not part of this table"), read, failures)
        for row in rows
        for column in columns
    }
    look: dict[str, Any] = {name: getattr(draft, name) for name in _LOOK}
    remarks = [
        remark.formula(*map(read, remark.steps)) for remark in draft.remarks if _failure(remark.steps, failures) is None
    ]
    return Sheet(draft.title, rows, columns, cells, notes=(*draft.notes, *remarks), **look)


_LOOK = ("rows_are", "columns_are", "unit", "look", "log_x", "values_are", "centre")
Read = Callable[[Asked], Any]


def _failure(steps: Sequence[Asked], failures: Mapping[str, str]) -> str | None:
    """Why one of the steps could not run."""
    return next((failures[step.key] for step in steps_in(steps) if step.key in failures), None)


def _cell(wanted: Wanted | str, read: Read, failures: Mapping[str, str]) -> Cell:
    if isinstance(wanted, str):
        return Cell(reason=wanted)
    wanted = wanted.once()
    found = [_estimate(wanted.formula, sample, read, failures) for sample in wanted.samples]
    missing = [each for each in found if each.value is None]
    if missing and (not wanted.partial or len(missing) == len(found)):
        return Cell(reason=missing[0].reason, paper=wanted.paper)
    cell = _mean(found, wanted.seed_of, paper=wanted.paper)
    return replace(cell, note="; ".join(filter(None, (cell.note, wanted.note))))


def _estimate(formula: Formula, sample: Sequence[Asked], read: Read, failures: Mapping[str, str]) -> Estimate:
    """One sample's number; where a step failed or the formula has no answer, the reason."""
    failed = _failure(sample, failures)
    if failed is not None:
        return Estimate(None, reason=failed)
    try:
        found = formula(*map(read, sample))
    except SkillgraftError as error:
        return Estimate(None, reason=str(error))
    return found if isinstance(found, Estimate) else Estimate(float(found))


def _mean(found: Sequence[Estimate], seeds: Sequence[int], *, paper: float | None) -> Cell:
    """The mean over the samples that have a number. The note has every seed's own number, and what the interval is over.

    A number may come with a remark in `reason` (that a bound is vacuous): the note has it too.
    """
    known = [(each, seed) for each, seed in zip(found, seeds, strict=True) if each.value is not None]
    mean = over_seeds([each for each, _ in known], [seed for _, seed in known])
    values = [each.value for each, _ in known if each.value is not None]
    many = len(values) > len(mean.seeds)  # several tasks of each seed
    notes = [f"mean of {len(values)} from {min(values):.4g} to {max(values):.4g}"] if many else []
    notes += [_seed_note(mean)] if len(mean.seeds) > 1 else []
    notes += list(dict.fromkeys(each.reason for each, _ in known if each.reason))
    notes += [f"{len(found) - len(known)} of {len(found)} have no number"] if len(known) < len(found) else []
    own = mean.seeds if len(mean.seeds) > 1 else ()
    return Cell(mean.value, mean.low, mean.high, paper=paper, note="; ".join(notes), seeds=own)


def _seed_note(mean: SeedMean) -> str:
    numbers = ", ".join(f"{number:.4g}" for number in mean.seeds)
    over = f"; interval over {mean.interval_over}" if mean.interval_over else ""
    return f"seeds {numbers}; std {mean.std:.2g}{over}"


FOLDER = Path(__file__).parent  # of the papers' numbers


def paper(table: str, row: str, column: str) -> float | None:
    """The paper's percentage as a fraction, or None where it has none."""
    found = _tables().get(table)
    if found is None:
        return None
    number = dict(zip(found["columns"], found["rows"].get(row, ()), strict=False)).get(column, "")
    return None if number == "" else number / 100


def paper_note(table: str) -> str:
    """Which model and how many examples the paper's numbers are about; "" where there are none."""
    found = _tables().get(table)
    return f"paper: {found['about']}" if found else ""


@cache
def _tables() -> Mapping[str, Mapping[str, Any]]:
    tables: dict[str, Mapping[str, Any]] = {}
    for file in sorted(FOLDER.glob("*.toml")):
        tables |= tomllib.loads(file.read_text(encoding="utf-8"))
    return tables
