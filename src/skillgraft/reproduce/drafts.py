"""Tables and curves from short descriptions: which samples a row has, which question a column asks of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from skillgraft.reproduce.recipe import Draft, Formula, Wanted
from skillgraft.reproduce.samples import Ask, Sample

# A formula and the steps that it reads, as questions to a sample; or the reason why there is no such cell.
Column = tuple[Formula, *tuple[Ask, ...]] | str
Columns = Mapping[str, Column]


def wanted(samples: Sequence[Sample], column: Column, *, partial: bool = False) -> Wanted | str:
    """A column's cell for some samples: the mean over them."""
    if isinstance(column, str):
        return column
    formula, *asks = column
    return Wanted(formula, tuple(tuple(ask(sample) for ask in asks) for sample in samples), partial=partial)


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
