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
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from skillgraft.errors import FormatError, InputError, SkillgraftError, listed
from skillgraft.files import system
from skillgraft.files.regular import opened
from skillgraft.values import strict_json
from skillgraft.values.numbers import DTYPES, QUANTISED, TAGS, Array

MAX_HEADER_BYTES = 100_000_000  # what the safetensors package allows
_MAX_DIMENSIONS = 64  # what numpy allows
_MAX_MESSAGE = 600
_LONGEST_NAME = 1_000
# Sites nearer than a page or so are read and written together, and no stretch is longer than a few megabytes.
_NEAR = 1024
_WINDOW = 1024 * 1024
_READ_AT_ONCE = 1 << 30


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
    """A checked safetensors file. Nothing but its header is loaded before it is asked for."""

    path: Path
    entries: Mapping[str, Entry]
    metadata: Mapping[str, str]
    data_start: int
    stamp: tuple[int, int, int]
    _promise: list[int] = field(default_factory=list, compare=False, repr=False)  # the descriptor whose lease is held

    @classmethod
    def open(cls, path: Path, *, max_header_bytes: int = MAX_HEADER_BYTES) -> TensorFile:
        """Check the header against the file and remember where everything lies."""
        try:
            with opened(path) as file:
                status = os.fstat(file.fileno())
                header, start = _read_header(file, status.st_size, max_header_bytes)
            metadata = _checked_metadata(header.pop("__metadata__", {}))
            entries = _checked_entries(header, start, status.st_size)
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
        except FormatError as error:
            raise in_file(path, error) from None
        return cls(path, entries, metadata, start, _stamp(status))

    def header_text(self) -> str:
        """The header as it stands in the file, its padding included."""
        with self.path.open("rb") as file:
            return file.read(self.data_start)[8:].decode()

    @cached_property
    def _mapped(self) -> mmap.mmap:
        self.check_unchanged()
        with self.path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    @cached_property
    def _descriptor(self) -> int:
        """The file, open as long as this value lives: whoever puts another in its place does not change what is read."""
        with opened(self.path) as file:
            if _stamp(os.fstat(file.fileno())) != self.stamp:
                raise _changed(self.path)
            descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, descriptor)
        return descriptor

    @contextmanager
    def steady(self) -> Iterator[None]:
        """While the body runs `flat` gives views of mapped memory, which is half as fast again as reading.

        To touch what a file has no more ends the process. So the kernel is asked to let nobody write to the file before we
        know (a lease): whoever wants to waits until the next stretch is asked for, which is then an error, or until the end.
        Where there is no such promise (other people's files, network folders) everything is read as usual.
        """
        descriptor = self._descriptor
        if self._promise or not system.lease(descriptor):
            yield
            return
        self._promise.append(descriptor)
        try:
            yield
        finally:
            self._promise.clear()
            with suppress(OSError):  # the kernel took it back, because we were asked too long ago
                system.end_lease(descriptor)

    def _steady(self) -> bool:
        """Whether the promise of `steady` was given; an error where the kernel has been asked to take it back."""
        if self._promise and not system.lease_holds(self._promise[0]):
            raise _changed(self.path)
        return bool(self._promise)

    def flat(self, name: str, low: int = 0, high: int | None = None) -> Array:
        """Entries [low, high) of a tensor, read-only: read into memory of their own, or see `steady`.

        A file that was cut short or written to meanwhile is an error.
        """
        entry = self.entries[name]
        high = entry.size if high is None else high
        if self._steady():
            return self.mapped(name)[low:high]
        self.check_unchanged()
        result = np.empty(max(0, high - low), entry.dtype)
        self._fill(result, entry.start + low * entry.dtype.itemsize)
        result.flags.writeable = False
        return result

    def at(self, name: str, sites: npt.NDArray[np.integer[Any]]) -> Array:
        """The numbers at sorted sites. Neighbours are read together: the cost follows the sites, not the tensor."""
        entry, size = self.entries[name], self.entries[name].dtype.itemsize
        if self._steady():
            taken: Array = self.mapped(name)[sites]
            return taken
        self.check_unchanged()
        result = np.empty(len(sites), entry.dtype)
        edges = windows(sites)
        firsts, lasts = sites[edges[:-1]].tolist(), sites[edges[1:] - 1].tolist()
        for (low, high), first, last in zip(pairwise(edges.tolist()), firsts, lasts, strict=True):
            if last - first == high - low - 1:
                self._fill(result[low:high], entry.start + first * size)
            else:
                window = np.empty(last + 1 - first, entry.dtype)
                self._fill(window, entry.start + first * size)
                result[low:high] = window[sites[low:high] - first]
        return result

    def _fill(self, array: Array, place: int) -> None:
        """Read exactly as many bytes as the array has."""
        room, done = array.view(np.uint8).data, 0
        while done < len(room):
            count = system.read_into(self._descriptor, room[done : done + _READ_AT_ONCE], place + done)
            if count == 0:
                raise InputError(
                    f"{self.path} became shorter while it was being read; run again on a file that nobody writes"
                )
            done += count

    def mapped(self, name: str) -> Array:
        """A whole tensor as a read-only view of the mapped file, for who holds it for as long as a model.

        To touch a part that the file has no more ends the process: everybody else reads, or is `steady`.
        """
        entry = self.entries[name]
        if not entry.nbytes:
            return np.empty(0, entry.dtype)
        return np.frombuffer(self._mapped, entry.dtype, count=entry.size, offset=entry.start)

    def read(self, name: str) -> Array:
        """A whole tensor in its shape."""
        return self.flat(name).reshape(self.entries[name].shape)

    @contextmanager
    def reading(self) -> Iterator[Callable[[str, int, int], Array]]:
        """Yields a function that reads entries [low, high) of a tensor into memory of their own: nothing is mapped."""
        self.check_unchanged()
        with opened(self.path) as file:

            def read(name: str, low: int, high: int) -> Array:
                entry = self.entries[name]
                count = max(0, min(high, entry.size) - low) * entry.dtype.itemsize
                data = system.read_at(file.fileno(), count, entry.start + low * entry.dtype.itemsize)
                if len(data) < count:
                    raise InputError(f"{self.path} became shorter while it was being read")
                return np.frombuffer(data, entry.dtype)

            yield read
        self.check_unchanged()

    def check_unchanged(self) -> None:
        """Raise if the file was replaced or rewritten since it was opened."""
        try:
            status = self.path.stat()
        except OSError as error:
            raise InputError(f"{self.path} disappeared while working") from error
        if _stamp(status) != self.stamp:
            raise _changed(self.path)


def _changed(path: Path) -> InputError:
    return InputError(f"{path} changed while it was being read; run again on a file that nobody writes")


def windows(at: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
    """The edges in sorted `at` of stretches whose sites lie near each other."""
    if not len(at):
        return np.zeros(1, np.int64)
    apart = (np.diff(at) > _NEAR) | (np.diff(at // _WINDOW) > 0)
    return np.concatenate([[0], np.flatnonzero(apart) + 1, [len(at)]])


def write(path: Path, tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    """Write a file whose bytes depend on the content alone: names sorted, wider numbers first, metadata sorted."""
    entries = laid_out({name: (array.dtype, array.shape) for name, array in tensors.items()})
    with path.open("wb") as file:
        file.write(header_bytes(entries, metadata))
        for entry in entries:
            array = np.ascontiguousarray(tensors[entry.name]).reshape(-1)
            file.write(array.view(np.uint8).data)


def laid_out(tensors: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]) -> list[Entry]:
    """Where tensors of these formats and shapes lie in a file, counted from the end of its header."""
    entries, offset = [], 0
    for name in sorted(tensors, key=lambda name: (-tensors[name][0].itemsize, name)):
        dtype, shape = tensors[name]
        entries.append(Entry(name, TAGS[dtype], tuple(shape), offset, math.prod(shape) * dtype.itemsize))
        offset += entries[-1].nbytes
    return entries


def header_bytes(entries: Sequence[Entry], metadata: Mapping[str, str]) -> bytes:
    """The eight length bytes and the header, for entries whose `start` counts from the end of the header.

    Refused: two entries of one name, of which a reader would see one.
    """
    if len({entry.name for entry in entries}) < len(entries):
        counts = Counter(entry.name for entry in entries)
        raise FormatError(f"repeated names: {listed(sorted(name for name in counts if counts[name] > 1))}")
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    for entry in entries:
        offsets = [entry.start, entry.start + entry.nbytes]
        header[entry.name] = {"dtype": entry.tag, "shape": list(entry.shape), "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the numbers begin at a multiple of eight
    return len(text).to_bytes(8, "little") + text


def layout_of(text: str) -> list[Entry]:
    """Where the tensors of a header lie, in the order of the file, counted from the header's end."""
    header = _parsed_header(text)
    _checked_metadata(header.pop("__metadata__", {}))
    entries = {name: _checked_entry(name, found, 0) for name, found in header.items()}
    _check_contiguous(entries, 0, sum(entry.nbytes for entry in entries.values()))
    return sorted(entries.values(), key=lambda entry: (entry.start, entry.nbytes))


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
        return _parsed_header(text.decode()), 8 + length
    except UnicodeDecodeError as error:
        raise FormatError(f"the header is not valid JSON: {error}") from None


def _parsed_header(text: str) -> dict[str, Any]:
    try:
        header = strict_json.parse(text)
    except ValueError as error:
        raise FormatError(f"the header is not valid JSON: {error}") from None
    if not isinstance(header, dict):
        raise FormatError("the header is not a JSON object")
    return header


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
    _check_contiguous(entries, data_start, file_size)
    return entries


def _check_contiguous(entries: Mapping[str, Entry], data_start: int, file_size: int) -> None:
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


def _checked_entry(name: str, found: Any, data_start: int) -> Entry:
    match found:
        case {"dtype": str(tag), "shape": list(shape), "data_offsets": [int(low), int(high)], **rest} if not rest:
            pass
        case _:
            raise FormatError(f"{name}: expected dtype, shape and two data_offsets, found {reprlib.repr(found)}")
    if len(name) > _LONGEST_NAME:
        raise FormatError(f"a tensor's name has {len(name):,} characters, the most that is read is {_LONGEST_NAME:,}")
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


def copy_range(source: BinaryIO, target: int, start: int, count: int, place: int) -> None:
    """Copy bytes of a file to a place in another one, inside the kernel; falls back to reading and writing."""
    done = 0
    while done < count:
        moved = system.copy_some(source.fileno(), target, min(count - done, 1 << 30), start + done, place + done)
        if moved is None:
            data = system.read_at(source.fileno(), min(count - done, 1 << 22), start + done)
            write_at(target, memoryview(data), place + done)
            moved = len(data)
        if moved == 0:
            raise InputError(f"{source.name} became shorter while it was being copied")
        done += moved


def write_at(descriptor: int, data: memoryview, place: int) -> None:
    """All of the bytes: a nearly full disk takes some of them and reports the rest at the next call."""
    done = system.write_some(descriptor, data, place)
    while done < len(data):
        done += system.write_some(descriptor, data[done:], place + done)
