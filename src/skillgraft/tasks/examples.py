"""Rows that have been read and checked: columns, and one integer label per row."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skillgraft.tasks.pictures import Pictures
from skillgraft.tasks.tables import Column

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Examples:
    """Checked rows of one task. A column is a tuple (texts, choices), one uint8 array, or images to be decoded (`Pictures`).

    `label_names` is empty for multiple choice. `ignored` counts the rows dropped for their label when these were read.
    """

    task: str
    columns: Mapping[str, Column]
    labels: Indices
    label_names: tuple[str, ...] = ()
    ignored: int = 0

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, indices: Sequence[int] | Indices) -> Examples:
        """Those rows, in that order."""
        chosen = np.asarray(indices, dtype=np.int64)
        columns = {name: _chosen(column, chosen) for name, column in self.columns.items()}
        return replace(self, columns=columns, labels=self.labels[chosen])

    def row(self, index: int) -> dict[str, Any]:
        """Row number `index` as field → value: what a template is filled from. The label is not in it."""
        return {name: column[index] for name, column in self.columns.items()}

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every row in order."""
        return (self.row(index) for index in range(len(self)))

    def identities(self) -> Iterator[tuple[Any, ...]]:
        """What tells each row from others: its values, with the keys of images instead of decoded pixels."""
        return zip(*(_undecoded(column) for column in self.columns.values()), strict=True)

    @cached_property
    def class_counts(self) -> dict[str, int]:
        """How many rows each label has, also 0; by position for multiple choice."""
        counts = np.bincount(self.labels, minlength=len(self.label_names))
        names = self.label_names or tuple(f"choice {position}" for position in range(len(counts)))
        return dict(zip(names, counts.tolist(), strict=True))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of labels, names and columns: the same content gives the same digest, in whatever column order."""
        content = hashlib.sha256()
        _feed(content, self.task, self.label_names, self.labels)
        for name in sorted(self.columns):
            _feed(content, name, _undecoded(self.columns[name]))
        return content.hexdigest()


def _chosen(column: Column, indices: Indices) -> Column:
    if isinstance(column, np.ndarray):
        return column[indices]
    if isinstance(column, Pictures):
        return column.chosen(indices.tolist())
    return tuple(column[index] for index in indices.tolist())


def _undecoded(column: Column) -> Column:
    return column.keys() if isinstance(column, Pictures) else column


def _feed(content: hashlib._Hash, *values: Any) -> None:
    """Every value with its kind and length in front, so that no two contents run together."""
    for value in values:
        if isinstance(value, str):
            encoded = value.encode()
            content.update(b"s%d:" % len(encoded) + encoded)
        elif isinstance(value, np.ndarray):
            content.update(f"a{value.dtype.str}{value.shape}:".encode())
            content.update(np.ascontiguousarray(value).data)
        else:
            content.update(b"t%d:" % len(value))
            _feed(content, *value)
