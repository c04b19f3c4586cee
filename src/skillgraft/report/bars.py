"""A sheet as bars."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from skillgraft.report import look
from skillgraft.report.cells import axis_title, hover, in_words, paper_marks, scaled
from skillgraft.report.sheet import Cell, Sheet

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_BAR_PIXELS = 30


def bars(sheet: Sheet) -> Figure:
    """Groups of bars, a group for each row and a bar for each column; whiskers are intervals, diamonds the paper's numbers.

    A single column lies down, so that long row names stay legible.
    """
    go = look.graph_objects()
    lying = len(sheet.columns) == 1
    height = 90 + _BAR_PIXELS * len(sheet.rows) if lying else 380
    drawn = look.new_figure(sheet.title, height=height, barmode="group", scattermode="group", bargap=0.25)
    places = range(len(sheet.columns))
    marks = [paper_marks(sheet, place, range(len(sheet.rows))) for place in places]
    drawn.add_traces([go.Bar(_lying(trace) if lying else trace) for trace in (_bar(sheet, place) for place in places)])
    drawn.add_traces([go.Scatter(_lying(trace) if lying else trace) for trace in marks if trace])
    names = {**look.names_on_axis(sheet.rows), "title": {"text": "" if lying else look.literal(sheet.rows_are)}}
    values = {"title": {"text": axis_title(sheet)}, **(_logarithmic(sheet) if sheet.log_values else {})}
    if lying:
        drawn.update_layout(xaxis=values, yaxis={**names, "autorange": "reversed"}, showlegend=any(marks))
    else:
        drawn.update_layout(xaxis=names, yaxis=values, showlegend=True)
    return drawn


def _bar(sheet: Sheet, place: int) -> dict[str, Any]:
    column, style = sheet.columns[place], look.series(place)
    cells = sheet.column(column)
    pattern = {"shape": style["pattern"], "fgcolor": "#FFFFFF", "size": 6, "fillmode": "overlay"}
    # Where whiskers leave room for them, single bars carry their numbers.
    labelled = len(sheet.columns) == 1 and not sheet.has_intervals()
    return {
        "x": list(range(len(cells))), "y": [scaled(cell.value, sheet) for cell in cells], "error_y": _whiskers(cells, sheet),
        "name": look.literal(column), "offsetgroup": str(place), "legendgroup": str(place), "hoverinfo": "text",
        "hovertext": [hover(sheet, row, column) for row in sheet.rows],
        "text": [f" {look.literal(in_words(cell, sheet))} " for cell in cells] if labelled else None,
        "textposition": "auto" if labelled else "none", "textangle": 0, "cliponaxis": False,
        "marker": {"color": style["colour"], "pattern": pattern},
    }  # fmt: skip


def _lying(trace: dict[str, Any]) -> dict[str, Any]:
    """The same trace with its axes exchanged."""
    turned = {"x": "y", "y": "x", "error_y": "error_x"}
    return {"orientation": "h", **{turned.get(key, key): value for key, value in trace.items()}}


def _whiskers(cells: list[Cell], sheet: Sheet) -> dict[str, Any]:
    reaches = [_reach(cell) for cell in cells]
    if not any(reaches):
        return {"visible": False}
    down, up = ([scaled(reach[end], sheet) if reach else None for reach in reaches] for end in (0, 1))
    look_of = {"type": "data", "symmetric": False, "color": look.INK, "thickness": 1.2, "width": 4}
    return {**look_of, "array": up, "arrayminus": down}


def _reach(cell: Cell) -> tuple[float, float] | None:
    """How far the interval goes below and above the value. ECE's can lie above it: the whisker then goes up only."""
    if cell.value is None or cell.interval is None:
        return None
    return max(0.0, cell.value - cell.interval[0]), max(0.0, cell.interval[1] - cell.value)


def _logarithmic(sheet: Sheet) -> dict[str, Any]:
    """An axis of powers of ten that begins below the smallest number: a bar has no natural foot there."""
    known = [number for cell in sheet.cells.values() if (number := scaled(cell.value, sheet)) and number > 0]
    low, high = (math.log10(end) for end in (min(known, default=1.0), max(known, default=1.0)))
    return {"type": "log", "dtick": 1, "range": [math.floor(low) - 1, high + 0.05 * (high - low + 1)]}
