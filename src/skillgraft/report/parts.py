"""What a page's sections are made of: a sheet as a table, a sheet as a figure with its table, several figures side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from skillgraft.report.artefacts import Artefact
from skillgraft.report.figures import figure
from skillgraft.report.markup import Field, Markup, drawing, join, paragraphs, table, tag
from skillgraft.report.numbers import Unit, shown
from skillgraft.report.sheet import Cell, Sheet, mark, seeds_shown

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def sheet_table(sheet: Sheet) -> Markup:
    """Rows and columns as the sheet has them; the reasons of missing cells stand below."""
    reasons = list(dict.fromkeys(cell.reason for cell in sheet.cells.values() if cell.value is None))
    corner = " / ".join(filter(None, (sheet.rows_are, sheet.columns_are)))
    rows = [[row_name(row), *(cell_field(cell, sheet.unit, reasons) for cell in sheet.row(row))] for row in sheet.rows]
    notes = [f"{mark(place)} {reason}" for place, reason in enumerate(reasons)]
    percent = " (%)" if sheet.unit == "percent" else ""
    return table(f"{sheet.title}{percent}", [corner, *sheet.columns], rows, notes=notes)


def row_name(name: str) -> Field:
    """A name; a number sorts as one."""
    try:
        return Field(name, sort=float(name))
    except ValueError:
        return Field(name)


def cell_field(cell: Cell, unit: Unit, reasons: Sequence[str] = ()) -> Field:
    """`84.7` with its interval, seeds and the paper's number; a dash, with the mark of its reason where there are any."""
    remarks = [f"[{', '.join(shown(end, unit) for end in cell.interval)}]"] if cell.interval else []
    remarks += filter(None, [seeds_shown(cell, unit)])
    remarks += [f"paper {shown(cell.paper, unit)}"] if cell.paper is not None else []
    if cell.value is None:
        remarks = [mark(reasons.index(cell.reason)), *remarks] if cell.reason in reasons else remarks
        return Field("–", " ".join(remarks), hint=cell.reason)
    return Field(shown(cell.value, unit), " ".join(remarks), sort=cell.value, hint=cell.note or cell.reason)


def sheet_drawing(name: str, sheet: Sheet, *, drawn: Figure | None = None) -> Markup:
    """The sheet's figure with its numbers folded below; a plain table where that is its look."""
    if sheet.look == "table" and drawn is None:
        return join(sheet_table(sheet), paragraphs(sheet.notes))
    return drawing(name, drawn or figure(sheet), caption=sheet.title, notes=sheet.notes, data=sheet_table(sheet))


def side_by_side(drawings: Sequence[Markup], *, wide: bool = False) -> Markup:
    """Figures in as many columns as fit."""
    return tag("div", *drawings, class_="grid wide" if wide else "grid")


def short_names(artefacts: Sequence[Artefact]) -> list[str]:
    """What figures call these: the file's name alone where it tells them apart, the whole one where not."""
    stems = [each.stem for each in artefacts]
    return [stem if stems.count(stem) == 1 else each.name for stem, each in zip(stems, artefacts, strict=True)]
