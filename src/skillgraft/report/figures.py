"""Sheets as figures: pure functions from a `Sheet` to a plotly figure, one for each look.

    figure(sheet).show()

Every figure reads without colour, and a cell without a value stays visible: a gap in a line, a grey field with a dash and its
reason under the pointer in a heatmap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from skillgraft.report import look
from skillgraft.report.bars import bars
from skillgraft.report.cells import in_words
from skillgraft.report.heatmap import heatmap
from skillgraft.report.lines import lines
from skillgraft.report.sheet import Look, Sheet

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_ROW_PIXELS = 28


def figure(sheet: Sheet) -> Figure:
    """The sheet as its `look` says."""
    return LOOKS[sheet.look](sheet)


def table(sheet: Sheet) -> Figure:
    """The numbers as text, for pages that show figures alone."""
    corner = " / ".join(filter(None, (sheet.rows_are, sheet.columns_are)))
    texts = [[in_words(cell, sheet) for cell in sheet.column(column)] for column in sheet.columns]
    shape = {
        "align": ["left", *["right"] * len(sheet.columns)], "height": _ROW_PIXELS, "line": {"color": look.GRID},
    }  # fmt: skip
    head = {"values": [look.literal(name) for name in (corner, *sheet.columns)], "fill": {"color": "#F0F2F5"}}
    body = {"values": [[look.literal(text) for text in column] for column in (sheet.rows, *texts)]}
    drawn = look.new_figure(sheet.title, height=70 + _ROW_PIXELS * (len(sheet.rows) + 1))
    drawn.add_table(header={**head, **shape}, cells={**body, "fill": {"color": "#FFFFFF"}, **shape})
    return drawn


LOOKS: Mapping[Look, Callable[[Sheet], Figure]] = MappingProxyType(
    {"table": table, "lines": lines, "bars": bars, "heatmap": heatmap}
)
