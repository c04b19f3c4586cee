"""What every reader gives: columns as they are in the source, and how to name one of its rows in a message."""

from __future__ import annotations

import csv
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skillgraft.errors import DataError, InputError, did_you_mean
from skillgraft.files.archives import opened_text

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
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested without end, or a whole number of thousands of digits
        return f"a value that cannot be spelt ({type(value).__name__})"
    return text if len(text) <= 80 else f"{text[:77]}..."


def texts(table: Table, path: str) -> tuple[str, ...]:
    """A column in which every cell is text."""
    column = table.column(path)
    for index, value in enumerate(column):
        if not isinstance(value, str):
            raise table.wrong(index, path, f"expected text; found {shown(value)}")
    found = tuple(column)
    check_encodable(table, path, found)
    return found


def check_encodable(table: Table, path: str, texts: Sequence[str]) -> None:
    """JSON can spell half of a surrogate pair, which no tokenizer accepts."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        for index, text in enumerate(texts):
            if any("\ud800" <= character <= "\udfff" for character in text):
                raise table.wrong(index, path, f"half a character (a lone surrogate): {shown(text)}") from None


LINE_LIMIT = 5_000_000  # bytes; a longer line is a file without line ends, not a row


def read_jsonl(path: Path, paths: tuple[str, ...]) -> Table:
    """One JSON object per line; empty lines hold nothing."""
    names: list[str] = []
    columns: list[list[Any]] = []
    numbers: list[int] = []
    for number, line in _lines(path):
        if not line.strip():
            continue
        row = _parsed(path, number, line)
        if not numbers:
            names = needed(paths, list(row), f"{path}, line {number}")
            columns = [[] for _ in names]
        for name, column in zip(names, columns, strict=True):
            if name not in row:
                raise DataError(f"{path}, line {number}: there is no {name!r}; this row has {', '.join(row)}")
            column.append(row[name])
        numbers.append(number)
    return Table(str(path), dict(zip(names, columns, strict=True)), numbers, unit="line")


def keys_of(path: Path, *, rows: int = 1000) -> list[str]:
    """The columns that every one of the first rows of a file has, in order."""
    ending = path.name.removesuffix(".gz").rpartition(".")[2]
    if ending == "parquet":
        from skillgraft.tasks.arrow_files import parquet_columns

        return parquet_columns(path)
    if ending == "txt":
        return ["text"]
    if ending in ("csv", "tsv"):
        between = "\t" if ending == "tsv" else delimiter_of(path)
        return next(csv.reader((line for _, line in _lines(path)), delimiter=between), [])
    parsed = (_parsed(path, number, line) for number, line in _lines(path) if line.strip())
    keys = [list(row) for row in islice(parsed, rows)]
    return [key for key in keys[0] if all(key in row for row in keys)] if keys else []


def _parsed(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # not JSON, or a number of thousands of digits
        raise DataError(f"{path}, line {number}: expected one JSON object; {error}: {shown(line.strip())}") from error
    if not isinstance(row, dict):
        raise DataError(f"{path}, line {number}: expected one JSON object; found {shown(row)}")
    return row


def read_txt(path: Path, paths: tuple[str, ...]) -> Table:
    """One row a line, in the column `text`; empty lines hold nothing."""
    names = needed(paths, ("text",), str(path))
    lines = [(number, line.strip()) for number, line in _lines(path) if line.strip()]
    columns = {name: [line for _, line in lines] for name in names or ("text",)}
    return Table(str(path), columns, [number for number, _ in lines], unit="line")


def read_csv(path: Path, paths: tuple[str, ...]) -> Table:
    """A header line, then one row per record; quoted fields may span lines. Fields stand between commas, or what else fits."""
    between = delimiter_of(path, paths)
    return _read_separated(path, paths, lambda lines: csv.reader(lines, strict=True, delimiter=between))


DELIMITERS = (",", ";", "\t", "|")


def delimiter_of(path: Path, paths: tuple[str, ...] = ()) -> str:
    """What stands between the fields of a header: the first that gives the columns wanted, else the one that gives most."""
    header = next((line for _, line in _lines(path)), "")
    try:
        with _long_fields():
            split = {mark: next(csv.reader([header], delimiter=mark), []) for mark in DELIMITERS}
    except csv.Error as error:
        raise DataError(f"{path}, line 1: {error}; save the file with line ends as LF or CR LF") from error
    for mark, names in split.items():
        if paths and all(name in names or name.partition(".")[0] in names for name in paths):
            return mark
    return "," if paths else max(DELIMITERS, key=lambda mark: len(split[mark]))


def read_tsv(path: Path, paths: tuple[str, ...]) -> Table:
    """A header line, then one row per line, fields between tabs."""
    return _read_separated(path, paths, lambda lines: csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))


def _read_separated(path: Path, paths: tuple[str, ...], reader: Callable[[Iterator[str]], Any]) -> Table:
    with _long_fields():
        records = list(_records(path, reader))
    header = records[0][1] if records else []
    if len(set(header)) < len(header):
        raise DataError(f"{path}: its header names a column twice: {', '.join(header)}")
    names = needed(paths, header, str(path)) if header else []
    for number, record in records[1:]:
        if len(record) != len(header):
            found = f"expected {len(header)} fields as in the header; found {len(record)}"
            raise DataError(f"{path}, line {number}: {found}")
    columns = {name: [record[header.index(name)] for _, record in records[1:]] for name in names}
    return Table(str(path), columns, [number for number, _ in records[1:]], unit="line")


def _records(path: Path, reader: Callable[[Iterator[str]], Any]) -> Iterator[tuple[int, list[str]]]:
    """Every record that is not empty, with the number of the line it begins on."""
    records = reader(line for _, line in _lines(path))
    start = 1
    try:
        for record in records:
            if record:
                yield start, record
            start = records.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}, record that begins on line {start}: {error}; is a quote left open?") from error


@contextmanager
def _long_fields() -> Iterator[None]:
    """The csv module's limit is global and low (131,072 characters): raised here, given back after."""
    before = csv.field_size_limit(LINE_LIMIT)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines with their numbers, each checked: length, encoding, NUL bytes."""
    number = 0
    try:
        with opened_text(path) as file:
            while raw := file.readline(LINE_LIMIT + 1):
                number += 1
                yield number, _decoded(path, number, raw)
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file") from None
    except (OSError, EOFError, zlib.error, ValueError) as error:  # a ValueError: a NUL in the path
        raise DataError(f"{path}: cannot be read after line {number}: {error}") from error
    except DataError:
        raise
    except InputError as error:
        raise DataError(f"{path}: cannot be read after line {number}: {error}") from None


def _decoded(path: Path, number: int, raw: bytes) -> str:
    where = f"{path}, line {number}"
    if len(raw) > LINE_LIMIT:
        raise DataError(f"{where}: longer than {LINE_LIMIT:,} bytes; expected one row per line")
    if b"\0" in raw:
        raise DataError(
            f"{where}: it holds a NUL byte; expected text in UTF-8 (not UTF-16, not binary): convert the file"
        )
    try:
        return raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        found = f"byte 0x{raw[error.start]:02x} at position {error.start + 1}"
        raise DataError(f"{where}: not UTF-8 ({found}); save the file as UTF-8") from error
