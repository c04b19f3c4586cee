"""Readers of JSONL, CSV and TSV files, also gzipped: UTF-8 (a byte-order mark is accepted), read line by line.

TSV has no quoting: a tab ends a field and a newline ends a row, as in GLUE's files. CSV has the usual double quotes.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from skillgraft.errors import DataError
from skillgraft.tasks.table import Table, needed, shown

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


def _parsed(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"{path}, line {number}: expected one JSON object; {error}: {shown(line.strip())}") from error
    if not isinstance(row, dict):
        raise DataError(f"{path}, line {number}: expected one JSON object; found {shown(row)}")
    return row


def read_csv(path: Path, paths: tuple[str, ...]) -> Table:
    """A header line, then one row per record; quoted fields may span lines."""
    return _read_separated(path, paths, lambda lines: csv.reader(lines, strict=True))


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
        with _opened(path) as file:
            while raw := file.readline(LINE_LIMIT + 1):
                number += 1
                yield number, _decoded(path, number, raw)
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read after line {number}: {error}") from error


def _opened(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


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
