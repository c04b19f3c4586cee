"""A sheet's cells in a figure: numbers in the sheet's unit, what the pointer reveals, and the paper's own numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from skillgraft.report import look
from skillgraft.report.numbers import shown
from skillgraft.report.sheet import Cell, Sheet


def scaled(value: float | None, sheet: Sheet) -> float | None:
    """The number that is drawn: a percentage where that is the unit; None stays None."""
    return 100 * value if value is not None and sheet.unit == "percent" else value


def axis_title(sheet: Sheet) -> str:
    """What the cells say, with its unit."""
    percent = "(%)" if sheet.unit == "percent" else ""
    return look.literal(f"{sheet.values_are} {percent}".strip())


def in_words(cell: Cell, sheet: Sheet) -> str:
    """`84.7 [82.4, 86.9], paper 91.0`: a cell in full."""
    number = "–" if cell.value is None else shown(cell.value, sheet.unit)
    spread = f" [{', '.join(shown(end, sheet.unit) for end in cell.interval)}]" if cell.interval else ""
    paper = f", paper {shown(cell.paper, sheet.unit)}" if cell.paper is not None else ""
    return f"{number}{spread}{paper}"


def hover(sheet: Sheet, row: str, column: str) -> str:
    """What the pointer reveals of a cell: where it is, its number, its note, and why there is none."""
    cell = sheet.cells[row, column]
    percent = " %" if sheet.unit == "percent" and cell.value is not None else ""
    lines = [
        f"{sheet.rows_are} {row}", f"{sheet.columns_are} {column}", f"{sheet.values_are} {in_words(cell, sheet)}{percent}",
        cell.note, cell.reason,
    ]  # fmt: skip
    return "<br>".join(look.literal(line.strip()) for line in lines if line)


def paper_marks(sheet: Sheet, place: int, at: Sequence[float]) -> dict[str, Any] | None:
    """The paper's numbers of the nth column as a trace of hollow diamonds over `at`; None where it has none."""
    cells = sheet.column(sheet.columns[place])
    if all(cell.paper is None for cell in cells):
        return None
    first = next(
        n for n, name in enumerate(sheet.columns) if any(cell.paper is not None for cell in sheet.column(name))
    )
    colour = look.series(place)["colour"]
    return {
        "x": list(at), "y": [scaled(cell.paper, sheet) for cell in cells], "mode": "markers", "name": "paper",
        "hovertext": ["" if cell.paper is None else f"paper {shown(cell.paper, sheet.unit)}" for cell in cells],
        "hoverinfo": "text", "showlegend": place == first, "offsetgroup": str(place),
        "marker": {"symbol": "diamond-open", "size": 10, "color": look.INK, "line": {"width": 2, "color": colour}},
    }  # fmt: skip
