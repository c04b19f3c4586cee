"""Sheets as figures: pure functions from a `Sheet` to a plotly figure, one for each look; and reliability diagrams.

    figure(sheet).show()

Every figure reads without colour, and a cell without a value stays visible: a gap in a line, a grey field with a dash and its
reason under the pointer in a heatmap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from skillgraft.measure.calibration import Reliability
from skillgraft.report import look
from skillgraft.report.sheet import Cell, Look, Sheet
from skillgraft.report.value_sheets import bin_names
from skillgraft.values.printing import Unit, shown

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_ROW_PIXELS, _BAR_PIXELS, _PLOT_PIXELS = 28, 30, 380
_MOST_ANNOTATED = 400  # cells of a heatmap; beyond that numbers would not be legible


def figure(sheet: Sheet) -> Figure:
    """The sheet as its `look` says."""
    return LOOKS[sheet.look](sheet)


def table(sheet: Sheet) -> Figure:
    """The numbers as text, for pages that show figures alone."""
    texts = [[in_words(cell, sheet.unit_of(column)) for cell in sheet.column(column)] for column in sheet.columns]
    shape = {
        "align": ["left", *["right"] * len(sheet.columns)], "height": _ROW_PIXELS, "line": {"color": look.GRID},
    }  # fmt: skip
    head = {
        "values": [look.literal(name) for name in (sheet.corner, *map(sheet.heading, sheet.columns))],
        "fill": {"color": "#F0F2F5"},
    }
    body = {"values": [[look.literal(text) for text in column] for column in (sheet.rows, *texts)]}
    drawn = look.new_figure(sheet.title, height=70 + _ROW_PIXELS * (len(sheet.rows) + 1))
    drawn.add_table(header={**head, **shape}, cells={**body, "fill": {"color": "#FFFFFF"}, **shape})
    return drawn


def lines(sheet: Sheet) -> Figure:
    """One line for each column over the numbers that are the rows; bands are intervals, hollow marks the paper's numbers."""
    go = look.graph_objects()
    drawn = look.new_figure(sheet.title, height=_PLOT_PIXELS)
    numbers = range(len(sheet.columns))
    # Bands first, so that no band hides a line.
    for traces in ([_band(sheet, number) for number in numbers], [_line(sheet, number) for number in numbers]):
        drawn.add_traces([go.Scatter(trace) for trace in traces if trace])
    marks = [_paper_marks(sheet, number, [float(row) for row in sheet.rows]) for number in numbers]
    drawn.add_traces([go.Scatter(trace) for trace in marks if trace])
    x_axis: dict[str, Any] = {"title": {"text": look.literal(sheet.rows_are)}}
    if sheet.log_x:
        x_axis |= {"type": "log", "dtick": 1, "exponentformat": "power"}
    drawn.update_layout(xaxis=x_axis, yaxis={"title": {"text": _axis_title(sheet)}}, showlegend=True)
    return drawn


def _line(sheet: Sheet, number: int) -> dict[str, Any]:
    column, style = sheet.columns[number], look.series(number)
    order = sorted(sheet.rows, key=float)
    return {
        "x": [float(row) for row in order], "y": [_scaled(sheet.cells[row, column].value, sheet) for row in order],
        "name": look.literal(column), "mode": "lines+markers", "legendgroup": str(number), "hoverinfo": "text",
        "hovertext": [_hover(sheet, row, column) for row in order],
        "line": {"color": style["colour"], "dash": style["dash"], "width": 2},
        "marker": {"symbol": style["marker"], "size": 8},
    }  # fmt: skip


def _band(sheet: Sheet, number: int) -> dict[str, Any] | None:
    """Along the upper ends and back along the lower ones."""
    column = sheet.columns[number]
    ends = {float(row): sheet.cells[row, column].interval for row in sorted(sheet.rows, key=float)}
    known = {x: pair for x, pair in ends.items() if pair}
    if not known:
        return None
    there = [_scaled(high, sheet) for _, high in known.values()]
    back = [_scaled(low, sheet) for low, _ in reversed(known.values())]
    return {
        "x": [*known, *reversed(known)], "y": [*there, *back], "fill": "toself", "mode": "none", "hoverinfo": "skip",
        "legendgroup": str(number), "showlegend": False, "fillcolor": look.faded(look.series(number)["colour"], 0.13),
    }  # fmt: skip


def bars(sheet: Sheet) -> Figure:
    """Groups of bars, a group for each row and a bar for each column; whiskers are intervals, diamonds the paper's numbers.

    A single column lies down, so that long row names stay legible.
    """
    go = look.graph_objects()
    lying = len(sheet.columns) == 1
    height = 90 + _BAR_PIXELS * len(sheet.rows) if lying else _PLOT_PIXELS
    drawn = look.new_figure(sheet.title, height=height, barmode="group", scattermode="group", bargap=0.25)
    numbers = range(len(sheet.columns))
    marks = [_paper_marks(sheet, number, range(len(sheet.rows))) for number in numbers]
    traces = [_bar(sheet, number) for number in numbers]
    drawn.add_traces([go.Bar(_lying(trace) if lying else trace) for trace in traces])
    drawn.add_traces([go.Scatter(_lying(trace) if lying else trace) for trace in marks if trace])
    names = {**look.names_on_axis(sheet.rows), "title": {"text": "" if lying else look.literal(sheet.rows_are)}}
    values = {"title": {"text": _axis_title(sheet)}, **(_logarithmic(sheet) if sheet.log_values else {})}
    if lying:
        drawn.update_layout(xaxis=values, yaxis={**names, "autorange": "reversed"}, showlegend=any(marks))
    else:
        drawn.update_layout(xaxis=names, yaxis=values, showlegend=True)
    return drawn


def _bar(sheet: Sheet, number: int) -> dict[str, Any]:
    column, style = sheet.columns[number], look.series(number)
    cells = sheet.column(column)
    pattern = {"shape": style["pattern"], "fgcolor": "#FFFFFF", "size": 6, "fillmode": "overlay"}
    # Where whiskers leave room for them, single bars carry their numbers.
    labelled = len(sheet.columns) == 1 and not sheet.has_intervals()
    return {
        "x": list(range(len(cells))), "y": [_scaled(cell.value, sheet) for cell in cells], "error_y": _whiskers(cells, sheet),
        "name": look.literal(column), "offsetgroup": str(number), "legendgroup": str(number), "hoverinfo": "text",
        "hovertext": [_hover(sheet, row, column) for row in sheet.rows],
        "text": [f" {look.literal(in_words(cell, sheet.unit))} " for cell in cells] if labelled else None,
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
    down, up = ([_scaled(reach[end], sheet) if reach else None for reach in reaches] for end in (0, 1))
    look_of = {"type": "data", "symmetric": False, "color": look.INK, "thickness": 1.2, "width": 4}
    return {**look_of, "array": up, "arrayminus": down}


def _reach(cell: Cell) -> tuple[float, float] | None:
    """How far the interval goes below and above the value. ECE's can lie above it: the whisker then goes up only."""
    if cell.value is None or cell.interval is None:
        return None
    return max(0.0, cell.value - cell.interval[0]), max(0.0, cell.interval[1] - cell.value)


def _logarithmic(sheet: Sheet) -> dict[str, Any]:
    """An axis of powers of ten that begins below the smallest number: a bar has no natural foot there."""
    known = [number for cell in sheet.cells.values() if (number := _scaled(cell.value, sheet)) and number > 0]
    low, high = (math.log10(end) for end in (min(known, default=1.0), max(known, default=1.0)))
    return {"type": "log", "dtick": 1, "range": [math.floor(low) - 1, high + 0.05 * (high - low + 1)]}


def heatmap(sheet: Sheet) -> Figure:
    """A coloured field with its number for each cell; grey, with a dash and the reason on hover, where there is none."""
    drawn = look.new_figure(sheet.title, height=130 + _BAR_PIXELS * len(sheet.rows))
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
        "hovertext": [[_hover(sheet, row, column) for column in sheet.columns] for row in sheet.rows],
        "hoverinfo": "text", "xgap": 1, "ygap": 1, **annotated,
    }  # fmt: skip


def _colour_value(cell: Cell, sheet: Sheet) -> float | None:
    if cell.value is None or not sheet.log_values:
        return _scaled(cell.value, sheet)
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
    bar: dict[str, Any] = {"title": {"text": _axis_title(sheet), "side": "right"}, "thickness": 12, "outlinewidth": 0}
    if sheet.log_values:
        powers = list(range(10))
        bar |= {"tickvals": powers, "ticktext": [_short_count(10.0**power) for power in powers]}
    stops = look.SEQUENTIAL if sheet.centre is None else look.DIVERGING
    middle = {} if sheet.centre is None else {"zmid": _scaled(sheet.centre, sheet)}
    return {"colorscale": [list(stop) for stop in stops], "colorbar": bar, **middle}


def in_words(cell: Cell, unit: Unit) -> str:
    """`84.7 [82.4, 86.9], paper 91.0`: a cell in full."""
    number = "–" if cell.value is None else shown(cell.value, unit)
    spread = f" [{', '.join(shown(end, unit) for end in cell.interval)}]" if cell.interval else ""
    paper = f", paper {shown(cell.paper, unit)}" if cell.paper is not None else ""
    return f"{number}{spread}{paper}"


def _scaled(value: float | None, sheet: Sheet) -> float | None:
    """The number that is drawn: a percentage where that is the unit; None stays None."""
    return 100 * value if value is not None and sheet.unit == "percent" else value


def _axis_title(sheet: Sheet) -> str:
    """What the cells say, with its unit."""
    percent = "(%)" if sheet.unit == "percent" else ""
    return look.literal(f"{sheet.values_are} {percent}".strip())


def _hover(sheet: Sheet, row: str, column: str) -> str:
    """What the pointer reveals of a cell: where it is, its number, its note, and why there is none."""
    cell = sheet.cells[row, column]
    percent = " %" if sheet.unit == "percent" and cell.value is not None else ""
    texts = [
        f"{sheet.rows_are} {row}", f"{sheet.columns_are} {column}", f"{sheet.values_are} {in_words(cell, sheet.unit)}{percent}",
        cell.note, cell.reason,
    ]  # fmt: skip
    return "<br>".join(look.literal(text.strip()) for text in texts if text)


def _paper_marks(sheet: Sheet, number: int, at: Sequence[float]) -> dict[str, Any] | None:
    """The paper's numbers of the nth column as a trace of hollow diamonds over `at`; None where it has none."""
    with_paper = [any(cell.paper is not None for cell in sheet.column(name)) for name in sheet.columns]
    if not with_paper[number]:
        return None
    cells = sheet.column(sheet.columns[number])
    return {
        "x": list(at), "y": [_scaled(cell.paper, sheet) for cell in cells], "mode": "markers", "name": "paper",
        "hovertext": ["" if cell.paper is None else f"paper {shown(cell.paper, sheet.unit)}" for cell in cells],
        "hoverinfo": "text", "showlegend": number == with_paper.index(True), "offsetgroup": str(number),
        "marker": {
            "symbol": "diamond-open", "size": 10, "color": look.INK,
            "line": {"width": 2, "color": look.series(number)["colour"]},
        },
    }  # fmt: skip


LOOKS: Mapping[Look, Callable[[Sheet], Figure]] = MappingProxyType(
    {"table": table, "lines": lines, "bars": bars, "heatmap": heatmap}
)


def reliability_diagram(found: Reliability, *, title: str, small: bool = False) -> Figure:
    """Accuracy by confidence (P1 §4.1): bars below the diagonal are over-confident, the hatched part is the gap.

    A small one leaves axis titles and legend to the text above it.
    """
    drawn = look.new_figure(title, height=180 if small else 320, barmode="overlay", bargap=0, showlegend=not small)
    width = 100 * (found.edges[1] - found.edges[0])
    centres = [100 * (low + high) / 2 for low, high in pairwise(found.edges)]
    texts = [
        f"confidence {name}<br>accuracy {_percent(right)} %, mean confidence {_percent(sure)} %<br>{count} rows"
        for name, count, sure, right in zip(
            bin_names(found.edges), found.counts, found.confidence, found.accuracy, strict=True
        )
    ]
    pairs = list(zip(found.accuracy, found.confidence, strict=True))
    drawn.add_bar(
        x=centres, y=[None if right is None else 100 * right for right, _ in pairs], width=width, name="accuracy",
        marker={"color": look.COLOURS[0], "line": {"color": "#FFFFFF", "width": 1}}, hovertext=texts, hoverinfo="text",
    )  # fmt: skip
    drawn.add_bar(
        x=centres, base=[None if right is None else 100 * right for right, _ in pairs], width=width, name="gap to confidence",
        y=[None if right is None or sure is None else 100 * (sure - right) for right, sure in pairs], hoverinfo="skip",
        marker={
            "color": look.faded(look.COLOURS[1], 0.18), "line": {"color": look.COLOURS[1], "width": 1},
            "pattern": {"shape": "/", "fgcolor": look.COLOURS[1], "size": 6},
        },
    )  # fmt: skip
    drawn.add_scatter(
        x=[0, 100], y=[0, 100], mode="lines", name="as sure as right", hoverinfo="skip",
        line={"color": look.MUTED, "dash": "dash", "width": 1.5},
    )  # fmt: skip
    titles = ("", "") if small else ("confidence (%)", "accuracy (%)")
    across, up = (
        {"title": {"text": text}, "tickvals": [0, 50, 100]} if small else {"title": {"text": text}} for text in titles
    )
    drawn.update_layout(xaxis={**across, "range": [0, 100]}, yaxis={**up, "range": [0, 102]})
    return drawn


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"
