"""The rows of a split, read and checked before any model is loaded: columns, and one integer label per row.

What is refused names file, row and column: a missing column, a cell that is not text, a label that is missing or unknown, a
multiple-choice row whose label points past its choices.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skillgraft.errors import DataError, InputError, listed
from skillgraft.tasks.completions import completed_rows
from skillgraft.tasks.pictures import Picture, Pictures, pictures_of
from skillgraft.tasks.prompt import CHOICES
from skillgraft.tasks.sources import origin_of, read_table
from skillgraft.tasks.tables import Column, Table, check_encodable, shown, texts
from skillgraft.tasks.task import Origin, SplitName, Task

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


def read_examples(task: Task, split: SplitName) -> Examples:
    """All rows of a split, its sources one after the other. Held-out rows are those that their own content chooses."""
    origin = origin_of(task)
    if origin.holdout and split != "validation":
        return _held_out(_read(task, origin, "train"), origin.holdout, is_test=split == "test")
    return _read(task, origin, split)


def _held_out(pool: Examples, share: float, *, is_test: bool) -> Examples:
    """A row's content decides, so that equal rows stay together and new ones move no other."""
    bar = int(share * 2**32)
    chosen = np.array([int.from_bytes(_hashed(row)[:4], "big") < bar for row in pool.identities()])
    if chosen.all() or not chosen.any():
        raise DataError(
            f"task {pool.task!r}: holdout = {share:g} of {len(pool)} rows leaves none to train or to test on"
        )
    return pool.select(np.flatnonzero(chosen == is_test))


def _hashed(row: tuple[Any, ...]) -> bytes:
    return hashlib.sha256(repr(tuple(_plain(value) for value in row)).encode()).digest()


def _plain(value: Any) -> Any:
    return (value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value


def _read(task: Task, origin: Origin, split: SplitName) -> Examples:
    sources = origin.sources(split)
    if not sources:
        raise InputError(f"task {task.name!r} has no {split!r} source; name one in its file")
    parts = [_examples(task, origin, read_table(source, _paths(task, origin))) for source in sources]
    whole = parts[0] if len(parts) == 1 else _concatenated(parts)
    if not len(whole):
        raise DataError(f"{listed(sources)}: all {whole.ignored} rows have labels in 'ignore_labels'; none is left")
    return whole


def _paths(task: Task, origin: Origin) -> tuple[str, ...]:
    return tuple(chain.from_iterable(_source_columns(origin, field) for field in task.read))


def _source_columns(origin: Origin, field: str) -> tuple[str, ...]:
    return origin.columns.get(field, (field,))


def _examples(task: Task, origin: Origin, table: Table) -> Examples:
    if task.completing is not None:
        rows = completed_rows(task, table, [_source_columns(origin, field) for field in task.inputs])
        return Examples(task.name, rows, np.zeros(len(table), np.int64))
    columns: dict[str, Any] = {name: _inputs(task, table, _source_columns(origin, name)) for name in task.inputs}
    if task.kind == "choice":
        columns[CHOICES] = _choices(table, _source_columns(origin, CHOICES))
        labels = _positions(task, origin, table, columns[CHOICES])
    else:
        labels = _class_indices(task, origin, table)
    kept = np.flatnonzero(labels >= 0)
    every = Examples(task.name, columns, labels, task.labels, ignored=len(labels) - len(kept))
    return every if len(kept) == len(labels) else every.select(kept)


def _inputs(task: Task, table: Table, paths: tuple[str, ...]) -> Column:
    if task.kind == "image":
        return _images(table, paths[0])
    columns = [texts(table, path) for path in paths]
    return columns[0] if len(columns) == 1 else tuple(map(" ".join, zip(*columns, strict=True)))


def _images(table: Table, path: str) -> Column:
    column = table.column(path)
    if isinstance(column, np.ndarray):
        return column
    pictures = pictures_of(column, lambda index: table.where(index, path))
    for picture in pictures.pictures:
        picture.check()
    return pictures


def _choices(table: Table, paths: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Each row's choices: a list in one column, or one choice from each of several columns."""
    if len(paths) > 1:
        return tuple(zip(*(texts(table, path) for path in paths), strict=True))
    rows = table.column(paths[0])
    for index, row in enumerate(rows):
        if not isinstance(row, list | tuple) or len(row) < 2 or not all(isinstance(choice, str) for choice in row):
            raise table.wrong(index, paths[0], f"expected a list of at least two texts; found {shown(row)}")
    check_encodable(table, paths[0], [" ".join(row) for row in rows])
    return tuple(map(tuple, rows))


def _positions(task: Task, origin: Origin, table: Table, choices: Sequence[Sequence[str]]) -> NDArray[np.int64]:
    path = _source_columns(origin, task.label)[0]
    names = _names(origin, table, path) or tuple(str(i) for i in range(max(map(len, choices))))
    labels = _indices(table, path, _Labels(_numbered(names), names, task.ignore_labels))
    for index, (label, row) in enumerate(zip(labels.tolist(), choices, strict=True)):
        if label >= len(row):
            found = f"choice number {label} (from 0)"
            raise table.wrong(index, path, f"the label says {found}, but the row has {len(row)} choices")
    return labels


def _class_indices(task: Task, origin: Origin, table: Table) -> NDArray[np.int64]:
    path = _source_columns(origin, task.label)[0]
    own = _numbered(task.labels)
    numbers = {name: own[label] for name, label in origin.meanings.items()} or own
    names = _names(origin, table, path)
    return _indices(table, path, _Labels(numbers, names, task.ignore_labels, by_name=origin.by_name))


def _numbered(names: Sequence[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(names)}


def _names(origin: Origin, table: Table, path: str) -> tuple[str, ...]:
    """The names behind the source's integers. A source that states the same names in its own order is believed."""
    stated = table.class_names.get(path, ())
    if stated and origin.data_labels and len(stated) != len(origin.data_labels):
        raise DataError(
            f"{table.source}, column {path!r}: it states {len(stated)} classes ({listed(stated)}), "
            f"but the task {len(origin.data_labels)} ({listed(origin.data_labels)})"
        )
    return stated if set(stated) == set(origin.data_labels) else origin.data_labels


@dataclass(frozen=True)
class _Labels:
    """What a label cell can mean: the number of each label, the names behind the data's integers, those to ignore."""

    numbers: Mapping[str, int]
    names: tuple[str, ...]
    ignored: frozenset[str]
    by_name: bool = False  # numbers are names like others

    def number(self, cell: Any) -> int | None:
        """The number of the cell's label, -1 if it is to be ignored, None if it is unknown."""
        name = self._name(cell)
        return -1 if name in self.ignored else self.numbers.get(name)

    def _name(self, cell: Any) -> str:
        """A name as it is; a number, perhaps spelled out as in a CSV, as the name behind it."""
        if isinstance(cell, str) and (cell in self.names or not cell.isdecimal()):
            return cell
        if self.by_name and str(cell) in self.names:
            return str(cell)
        try:
            number = int(cell)
            known = number == float(cell) and 0 <= number < len(self.names)
        except (ValueError, OverflowError):  # infinite, or of hundreds of digits
            known = False
        return self.names[number] if known else str(cell)


def _indices(table: Table, path: str, labels: _Labels) -> NDArray[np.int64]:
    """Every row's label number; -1 for a label to ignore."""
    known: dict[Any, int] = {}  # few labels, many rows: each spelling is looked up once
    numbers = np.empty(len(table), np.int64)
    for index, cell in enumerate(table.column(path)):
        if not isinstance(cell, str | int | float | np.number) or cell == "" or cell != cell:
            raise table.wrong(index, path, f"the label is missing; found {shown(cell)}")
        if cell not in known:
            number = labels.number(cell)
            if number is None:
                expected = f"expected {listed(labels.numbers, most=10)}, or a number from 0 to {len(labels.names) - 1}"
                raise table.wrong(index, path, f"unknown label {shown(cell)}; {expected}")
            known[cell] = number
        numbers[index] = known[cell]
    return numbers


def _concatenated(parts: Sequence[Examples]) -> Examples:
    return Examples(
        task=parts[0].task,
        columns={name: _joined([part.columns[name] for part in parts]) for name in parts[0].columns},
        labels=np.concatenate([part.labels for part in parts]),
        label_names=parts[0].label_names,
        ignored=sum(part.ignored for part in parts),
    )


def _joined(columns: Sequence[Any]) -> Column:
    arrays = [column for column in columns if isinstance(column, np.ndarray)]
    if len(arrays) == len(columns) and len({array.shape[1:] for array in arrays}) == 1:
        return np.concatenate(arrays)
    if any(isinstance(column, Pictures) for column in columns):
        return Pictures([picture for column in columns for picture in _pictures(column)])
    return tuple(chain.from_iterable(columns))


def _pictures(column: Pictures | NDArray[np.uint8]) -> tuple[Picture, ...]:
    return (column if isinstance(column, Pictures) else pictures_of(column, "image {}".format)).pictures
