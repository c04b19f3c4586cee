"""Reliability diagrams: is a model as sure as it is right?"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from skillgraft.measure.calibration import Reliability
from skillgraft.report import look
from skillgraft.report.sheet import Cell, Sheet
from skillgraft.report.value_sheets import bin_names

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


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


def reliability_sheet(found: Reliability, *, title: str) -> Sheet:
    """The diagram's numbers; bins without rows are left out."""
    kept = [
        (name, count, sure, right)
        for name, count, sure, right in zip(
            bin_names(found.edges), found.counts, found.confidence, found.accuracy, strict=True
        )
        if count and sure is not None and right is not None
    ]
    total = sum(found.counts)
    columns = ("share of rows", "mean confidence", "accuracy")
    cells = {
        (name, column): Cell(value)
        for name, count, *shares in kept
        for column, value in zip(columns, (count / total, *shares), strict=True)
    }
    return Sheet(title, tuple(name for name, *_ in kept), columns, cells, rows_are="confidence")


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"
