"""One safetensors file: its header checked before anything is used, its tensors read lazily, files written in one pass.

Written here because patching needs the byte offsets that the safetensors package does not show, and reading needs
bfloat16 without torch. The format: eight bytes (little-endian length of the header), a JSON header that maps each name to
dtype, shape and byte offsets, then the numbers. Tests read our files with the safetensors package and the reverse.

Refused: truncated files, headers that promise more than the file holds, offsets that overlap, leave gaps or disagree with
dtype and shape, repeated names, unknown formats.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from skillgraft.errors import FormatError, InputError, SkillgraftError
from skillgraft.values import strict_json
from skillgraft.values.numbers import DTYPES, QUANTISED, TAGS, Array

MAX_HEADER_BYTES = 100_000_000  # what the safetensors package allows
_MAX_DIMENSIONS = 64  # what numpy allows
_MAX_MESSAGE = 600


@dataclass(frozen=True)
class Entry:
    """Where one tensor lies in its file. `start` counts from the beginning of the file."""

    name: str
    tag: str
    shape: tuple[int, ...]
    start: int
    nbytes: int

    @property
    def dtype(self) -> np.dtype[Any]:
        return DTYPES[self.tag]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class TensorFile:
    """A checked safetensors file. Reading gives views of mapped memory: nothing is loaded before it is touched."""

    path: Path
    entries: Mapping[str, Entry]
    metadata: Mapping[str, str]
    data_start: int
    stamp: tuple[int, int, int]

    @classmethod
    def open(cls, path: Path, *, max_header_bytes: int = MAX_HEADER_BYTES) -> TensorFile:
        """Check the header against the file and remember where everything lies."""
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                header, start = _read_header(file, status.st_size, max_header_bytes)
            metadata = _checked_metadata(header.pop("__metadata__", {}))
            entries = _checked_entries(header, start, status.st_size)
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
        except FormatError as error:
            raise in_file(path, error) from None
        return cls(path, entries, metadata, start, _stamp(status))

    @cached_property
    def _mapped(self) -> mmap.mmap:
        self.check_unchanged()
        with self.path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def flat(self, name: str, low: int = 0, high: int | None = None) -> Array:
        """Entries [low, high) of a tensor as a read-only view of the mapped file."""
        entry = self.entries[name]
        high = entry.size if high is None else high
        start = entry.start + low * entry.dtype.itemsize
        return np.frombuffer(self._mapped, entry.dtype, count=high - low, offset=start)

    def read(self, name: str) -> Array:
        """A whole tensor in its shape, still a view."""
        return self.flat(name).reshape(self.entries[name].shape)

    def check_unchanged(self) -> None:
        """Raise if the file was replaced or rewritten since it was opened."""
        try:
            status = self.path.stat()
        except OSError as error:
            raise InputError(f"{self.path} disappeared while working") from error
        if _stamp(status) != self.stamp:
            raise InputError(f"{self.path} changed while it was being read; run again on a file that nobody writes")


def write(path: Path, tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    """Write a file whose bytes depend on the content alone: names sorted, wider numbers first, metadata sorted."""
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    entries, offset = [], 0
    for name in names:
        array = tensors[name]
        entries.append(Entry(name, TAGS[array.dtype], tuple(array.shape), offset, array.nbytes))
        offset += array.nbytes
    with path.open("wb") as file:
        file.write(header_bytes(entries, metadata))
        for name in names:
            array = np.ascontiguousarray(tensors[name]).reshape(-1)
            file.write(array.view(np.uint8).data)


def header_bytes(entries: Sequence[Entry], metadata: Mapping[str, str]) -> bytes:
    """The eight length bytes and the header, for entries whose `start` counts from the end of the header."""
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    for entry in entries:
        offsets = [entry.start, entry.start + entry.nbytes]
        header[entry.name] = {"dtype": entry.tag, "shape": list(entry.shape), "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the numbers begin at a multiple of eight
    return len(text).to_bytes(8, "little") + text


def _read_header(file: BinaryIO, file_size: int, limit: int) -> tuple[dict[str, Any], int]:
    first = file.read(8)
    if len(first) < 8:
        raise FormatError(f"not a safetensors file: {file_size} bytes, expected at least 8; is the download complete?")
    length = int.from_bytes(first, "little")
    if length > limit:
        raise FormatError(f"the header claims {length:,} bytes, the most allowed is {limit:,}; not a safetensors file?")
    if 8 + length > file_size:
        raise FormatError(f"truncated: the header needs {8 + length:,} bytes, the file has {file_size:,}")
    text = file.read(length)
    if len(text) < length:
        raise FormatError(f"truncated: the header ends after {len(text)} of {length} bytes")
    try:
        header = strict_json.parse(text.decode())
    except ValueError as error:
        raise FormatError(f"the header is not valid JSON: {error}") from None
    if not isinstance(header, dict):
        raise FormatError("the header is not a JSON object")
    return header, 8 + length


def in_file(path: Path, error: SkillgraftError) -> FormatError:
    """The error with the file's name in front. Names in a corrupt file can be megabytes long, a message is not."""
    return FormatError(f"{path}: {str(error)[:_MAX_MESSAGE]}")


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


def is_shape(shape: Any) -> bool:
    """Whether a JSON value is the shape of something that can exist: few dimensions, fewer than 2^60 entries.

    Zeros do not count in the product: numpy refuses [0, 2^60, 2^60] although it holds nothing.
    """
    if not isinstance(shape, list) or len(shape) > _MAX_DIMENSIONS or not all(map(_is_count, shape)):
        return False
    return math.prod(length or 1 for length in shape) < 2**60


def _is_count(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 2**63


def _checked_metadata(metadata: Any) -> dict[str, str]:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise FormatError("__metadata__ must map names to strings")
    return metadata


def _checked_entries(header: Mapping[str, Any], data_start: int, file_size: int) -> dict[str, Entry]:
    entries = {name: _checked_entry(name, found, data_start) for name, found in header.items()}
    position = data_start
    for entry in sorted(entries.values(), key=lambda entry: (entry.start, entry.nbytes)):
        if entry.start != position:
            what = "overlaps the one before it" if entry.start < position else "leaves a gap before it"
            raise FormatError(f"{entry.name}: begins at byte {entry.start}, expected {position}: it {what}")
        position += entry.nbytes
    if position > file_size:
        raise FormatError(f"truncated: the tensors need {position:,} bytes, the file has {file_size:,}")
    if position < file_size:
        raise FormatError(f"{file_size - position:,} bytes follow the last tensor")
    return entries


def _checked_entry(name: str, found: Any, data_start: int) -> Entry:
    match found:
        case {"dtype": str(tag), "shape": list(shape), "data_offsets": [int(low), int(high)], **rest} if not rest:
            pass
        case _:
            raise FormatError(f"{name}: expected dtype, shape and two data_offsets, found {reprlib.repr(found)}")
    if tag in QUANTISED:
        raise FormatError(f"{name}: {tag} is a quantised format; skillgraft works on F64, F32, F16 and BF16 weights")
    if tag not in DTYPES:
        raise FormatError(f"{name}: unknown dtype {tag[:20]!r}; known: {', '.join(DTYPES)}")
    if not is_shape(shape) or not _is_count(low) or not _is_count(high):
        raise FormatError(f"{name}: shape and data_offsets must be possible sizes, found {reprlib.repr(found)}")
    needed = math.prod(shape) * DTYPES[tag].itemsize
    if high - low != needed:
        raise FormatError(f"{name}: {tag} {shape} needs {needed} bytes, data_offsets hold {high - low}")
    return Entry(name, tag, tuple(shape), data_start + low, needed)


def copy_range(source: BinaryIO, target: BinaryIO, start: int, count: int) -> None:
    """Copy bytes between files inside the kernel; falls back to reading and writing."""
    target.flush()
    done = 0
    while done < count:
        try:
            moved = os.copy_file_range(source.fileno(), target.fileno(), min(count - done, 1 << 30), start + done)
        except OSError:
            moved = os.sendfile(target.fileno(), source.fileno(), start + done, min(count - done, 1 << 30))
        if moved == 0:
            raise InputError(f"{source.name} became shorter while it was being copied")
        done += moved


Source = Callable[[BinaryIO], None]


def write_parts(path: Path, header: bytes, parts: Iterable[Source]) -> None:
    """Write a header and then whatever each part writes: how a file is re-made with tensors kept, added and removed."""
    with path.open("wb") as file:
        file.write(header)
        file.flush()
        for part in parts:
            part(file)
