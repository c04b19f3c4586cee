"""What every reader gives: columns as they are in the source, and how to name one of its rows in a message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skillgraft.errors import DataError, did_you_mean

Pixels = NDArray[np.uint8]
Column = Sequence[Any] | Pixels  # texts, choices, images where they lie; or images of one size as one array


@dataclass(frozen=True)
class Table:
    """Columns of equal length, at least one row.

    `numbers` are the rows' 1-based numbers in the source (line numbers in text files); `class_names` are the names that
    the source itself states behind a column's integers.
    """

    source: str
    columns: Mapping[str, Column]
    numbers: Sequence[int]
    unit: str = "row"
    class_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not len(self):
            raise DataError(f"{self.source}: it has no rows; expected at least one")

    def __len__(self) -> int:
        return len(self.numbers)

    def column(self, path: str) -> Column:
        """The column of that name; `choices.text` is the entry `text` within each cell of `choices`."""
        if path in self.columns:
            return self.columns[path]
        head, _, inner = path.partition(".")
        return [self._inner(i, cell, head, inner) for i, cell in enumerate(self.columns[head])]

    def wrong(self, index: int, column: str, message: str) -> DataError:
        """The error to raise about one cell."""
        return DataError(f"{self.where(index, column)}: {message}")

    def where(self, index: int, column: str) -> str:
        """One cell's name in a message."""
        return f"{self.source}, {self.unit} {self.numbers[index]}, column {column!r}"

    def _inner(self, index: int, cell: Any, head: str, inner: str) -> Any:
        if not isinstance(cell, Mapping) or inner not in cell:
            raise self.wrong(index, head, f"expected an entry {inner!r} in it; found {shown(cell)}")
        return cell[inner]


def needed(paths: Iterable[str], available: Sequence[str], source: str) -> list[str]:
    """The columns among `available` that hold `paths`; a missing one is an error that lists what is there."""
    names = []
    for path in paths:
        name = path if path in available else path.partition(".")[0]
        if name not in available:
            raise DataError(f"{source}: there is no column {path!r}: {did_you_mean(path, available)}")
        names.append(name)
    return list(dict.fromkeys(names))


def shown(value: object) -> str:
    """A value for a message, never a whole page."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
