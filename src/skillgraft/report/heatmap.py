"""A sheet as a heatmap."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from skillgraft.report import look
from skillgraft.report.cells import axis_title, hover, scaled
from skillgraft.report.numbers import shown
from skillgraft.report.sheet import Cell, Sheet

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_ROW_PIXELS = 30
_MOST_ANNOTATED = 400  # cells; beyond that numbers would not be legible


def heatmap(sheet: Sheet) -> Figure:
    """A coloured field with its number for each cell; grey, with a dash and the reason on hover, where there is none."""
    drawn = look.new_figure(sheet.title, height=130 + _ROW_PIXELS * len(sheet.rows))
    drawn.add_heatmap(**_fields(sheet, lambda cell: _colour_value(cell, sheet), _brief(sheet)), **_colours(sheet))
    if any(cell.value is None for cell in sheet.cells.values()):
        grey = {"colorscale": [[0, look.UNDEFINED], [1, look.UNDEFINED]], "showscale": False}
        undefined = _fields(sheet, lambda c: 0 if c.value is None else None, lambda c: "–" if c.value is None else "")
        drawn.add_heatmap(**undefined, **grey)
    quiet = {"showgrid": False, "showline": False, "ticks": "", "ticklabelstandoff": 5}
    across = {**look.names_on_axis(sheet.columns), **quiet, "title": {"text": look.literal(sheet.columns_are)}}
    down = {**look.names_on_axis(sheet.rows), **quiet, "title": {"text": look.literal(sheet.rows_are)}}
    drawn.update_layout(xaxis=across, yaxis={**down, "autorange": "reversed"})
    return drawn


def _fields(sheet: Sheet, colour: Callable[[Cell], float | None], text: Callable[[Cell], str]) -> dict[str, Any]:
    """A trace over all cells; a field without a colour is not drawn."""
    rows = [sheet.row(row) for row in sheet.rows]
    annotated = {"texttemplate": "%{text}"} if len(sheet.cells) <= _MOST_ANNOTATED else {}
    return {
        "z": [[colour(cell) for cell in row] for row in rows],
        "text": [[text(cell) for cell in row] for row in rows],
        "hovertext": [[hover(sheet, row, column) for column in sheet.columns] for row in sheet.rows],
        "hoverinfo": "text", "xgap": 1, "ygap": 1, **annotated,
    }  # fmt: skip


def _colour_value(cell: Cell, sheet: Sheet) -> float | None:
    if cell.value is None or not sheet.log_values:
        return scaled(cell.value, sheet)
    # Nothing at all is half a step below one entry.
    return math.log10(cell.value) if cell.value > 0 else -0.5


def _brief(sheet: Sheet) -> Callable[[Cell], str]:
    """What fits in a field: 12k instead of 12,345; two decimals for all where one number has decimals."""
    whole = all(float(cell.value).is_integer() for cell in sheet.cells.values() if cell.value is not None)

    def brief(cell: Cell) -> str:
        if cell.value is None:
            return ""
        if sheet.unit != "number":
            return shown(cell.value, sheet.unit)
        return _short_count(cell.value) if whole else f"{cell.value:.2f}"

    return brief


def _short_count(count: float) -> str:
    if abs(count) >= 1e6:
        return f"{count / 1e6:.3g}M"
    return f"{count / 1e3:.0f}k" if abs(count) >= 1e4 else f"{count:,.0f}"


def _colours(sheet: Sheet) -> dict[str, Any]:
    bar: dict[str, Any] = {"title": {"text": axis_title(sheet), "side": "right"}, "thickness": 12, "outlinewidth": 0}
    if sheet.log_values:
        powers = list(range(10))
        bar |= {"tickvals": powers, "ticktext": [_short_count(10.0**power) for power in powers]}
    stops = look.SEQUENTIAL if sheet.centre is None else look.DIVERGING
    middle = {} if sheet.centre is None else {"zmid": scaled(sheet.centre, sheet)}
    return {"colorscale": [list(stop) for stop in stops], "colorbar": bar, **middle}
