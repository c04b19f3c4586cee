"""A sheet as lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from skillgraft.report import look
from skillgraft.report.cells import axis_title, hover, paper_marks, scaled
from skillgraft.report.sheet import Sheet

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def lines(sheet: Sheet) -> Figure:
    """One line for each column over the numbers that are the rows; bands are intervals, hollow marks the paper's numbers."""
    go = look.graph_objects()
    drawn = look.new_figure(sheet.title, height=380)
    places = range(len(sheet.columns))
    # Bands first, so that no band hides a line.
    for traces in ([_band(sheet, place) for place in places], [_line(sheet, place) for place in places]):
        drawn.add_traces([go.Scatter(trace) for trace in traces if trace])
    marks = [paper_marks(sheet, place, _numbers(sheet)) for place in places]
    drawn.add_traces([go.Scatter(trace) for trace in marks if trace])
    x_axis: dict[str, Any] = {"title": {"text": look.literal(sheet.rows_are)}}
    if sheet.log_x:
        x_axis |= {"type": "log", "dtick": 1, "exponentformat": "power"}
    drawn.update_layout(xaxis=x_axis, yaxis={"title": {"text": axis_title(sheet)}}, showlegend=True)
    return drawn


def _numbers(sheet: Sheet) -> list[float]:
    return [float(row) for row in sheet.rows]


def _line(sheet: Sheet, place: int) -> dict[str, Any]:
    column, style = sheet.columns[place], look.series(place)
    order = sorted(sheet.rows, key=float)
    return {
        "x": [float(row) for row in order], "y": [scaled(sheet.cells[row, column].value, sheet) for row in order],
        "name": look.literal(column), "mode": "lines+markers", "legendgroup": str(place), "hoverinfo": "text",
        "hovertext": [hover(sheet, row, column) for row in order],
        "line": {"color": style["colour"], "dash": style["dash"], "width": 2},
        "marker": {"symbol": style["marker"], "size": 8},
    }  # fmt: skip


def _band(sheet: Sheet, place: int) -> dict[str, Any] | None:
    """Along the upper ends and back along the lower ones."""
    column = sheet.columns[place]
    ends = {float(row): sheet.cells[row, column].interval for row in sorted(sheet.rows, key=float)}
    known = {x: pair for x, pair in ends.items() if pair}
    if not known:
        return None
    there = [scaled(high, sheet) for _, high in known.values()]
    back = [scaled(low, sheet) for low, _ in reversed(known.values())]
    return {
        "x": [*known, *reversed(known)], "y": [*there, *back], "fill": "toself", "mode": "none", "hoverinfo": "skip",
        "legendgroup": str(place), "showlegend": False, "fillcolor": look.faded(look.series(place)["colour"], 0.13),
    }  # fmt: skip
