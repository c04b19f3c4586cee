"""Graft files of any size, read and written stretch by stretch.

    stream = open_stream("skill.safetensors")      # the header, checked; no numbers yet
    save_stream(stream, "copy.safetensors")        # the same bytes

What `graft_file.load` refuses is refused here too, the numbers' part of it when they are read: so a verb that reads a graft
to its end before it publishes anything has checked all of it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from skillgraft.errors import FormatError, InputError, SkillgraftError
from skillgraft.files import atomic, graft_file
from skillgraft.files.graft_file import FORMS
from skillgraft.files.packed import Packed, save_packed
from skillgraft.files.tensors import Entry, TensorFile, header_bytes, in_file, laid_out, write_at
from skillgraft.values.numbers import Array, all_finite, is_float
from skillgraft.values.region import index_dtype
from skillgraft.values.stream import EVERY, GraftStream, Stretch, Where, where_of, windows
from skillgraft.values.threads import SharedProgress, together

_READ_AHEAD = 1 << 20  # indices
Progress = Callable[[int, int], None]


def open_stream(path: str | Path) -> GraftStream:
    """A graft file as a stream: everything but the numbers is read and checked, the numbers whenever they are asked for."""
    file = graft_file.opened(Path(path))
    try:
        return _stream(file)
    except SkillgraftError as error:
        raise in_file(file.path, error) from None


def _packed(file: TensorFile) -> GraftStream:
    header, formats = graft_file.packed_header(file)
    packed = Packed.open(file, formats, {name: math.prod(header.scope.shapes[name]) for name in header.names})
    about = GraftStream(
        header.scope, packed.counts, formats, lambda _: iter(()), heads=header.heads,
        base_fingerprint=header.base_fingerprint, info=header.info,
    )  # fmt: skip
    stream = packed.stream(about)
    graft_file.check_counts(file, len(stream), stream.density)
    return stream


def _stream(file: TensorFile) -> GraftStream:
    if graft_file.is_packed(file):
        return _packed(file)
    header = graft_file.checked_header(file)
    change = FORMS[header.form]
    counts = {}
    for name in header.names:
        count = _length(file, f"{name}.before")
        if count == 0:
            raise FormatError(f"{name}: listed without entries")
        for part in (f"{name}.{change}", *([f"{name}.indices"] if f"{name}.indices" in file.entries else [])):
            if _length(file, part) != count:
                raise FormatError(f"{part}: {_length(file, part)} numbers, {name}.before has {count}")
        counts[name] = count
    formats = {name: file.entries[f"{name}.before"].dtype for name in counts}
    for name, dtype in formats.items():
        wanted = dtype if header.form == "exact" else np.dtype(np.float32)
        found = file.entries[f"{name}.{change}"].dtype
        if not is_float(dtype) or found != wanted:
            raise FormatError(f"{name}: {header.form} form needs {wanted} numbers, found {found} beside {dtype}")
    reader = _Reader(file, header.scope.shapes, change)
    stream = GraftStream(
        header.scope, counts, formats, lambda name: reader.checked(name, numbers=True), header.form, header.scale,
        header.heads, header.base_fingerprint, header.info, places=lambda name: reader.checked(name, numbers=False),
    )  # fmt: skip
    graft_file.check_counts(file, len(stream), stream.density)
    return stream


def _length(file: TensorFile, name: str) -> int:
    entry = file.entries[name]
    if len(entry.shape) != 1:
        raise FormatError(f"{name}: one row of numbers expected, found shape {list(entry.shape)}")
    return entry.shape[0]


class _Reader:
    """One graft file's numbers, a window at a time, each checked as it is read."""

    def __init__(self, file: TensorFile, shapes: Mapping[str, tuple[int, ...]], change: str) -> None:
        self.file, self.shapes, self.change = file, shapes, change

    def checked(self, name: str, *, numbers: bool) -> Iterator[Stretch]:
        """The stretches of a parameter. Refusals name the file."""
        try:
            yield from self._stretches(name, numbers=numbers)
        except FormatError as error:
            raise in_file(self.file.path, error) from None

    def _stretches(self, name: str, *, numbers: bool) -> Iterator[Stretch]:
        size, start, none = math.prod(self.shapes[name]), 0, np.empty(0, np.float32)
        with self.file.reading() as read:
            bitmap = f"{name}.bitmap" in self.file.entries
            places = self._from_bitmap(read, name, size) if bitmap else self._from_indices(read, name, size)
            total = self.file.entries[f"{name}.before"].size
            for low, high, where, count in places:
                stop = start + count
                if stop > total:
                    raise FormatError(f"{name}: more sites than the {total} numbers of before")
                before, change = none, none
                if numbers:
                    before = self._numbers(read, f"{name}.before", start, stop)
                    change = self._numbers(read, f"{name}.{self.change}", start, stop)
                yield Stretch(low, high, where, before, change)
                start = stop
            if start != total:
                raise FormatError(f"{name}: {start} sites but {total} numbers of before")

    def _numbers(self, read: Callable[[str, int, int], Array], name: str, low: int, high: int) -> Array:
        numbers = read(name, low, high)
        if not all_finite(numbers):
            raise FormatError(f"{name}: {int((~np.isfinite(numbers)).sum())} numbers are NaN or infinite")
        return numbers

    def _from_bitmap(
        self, read: Callable[[str, int, int], Array], name: str, size: int
    ) -> Iterator[tuple[int, int, Where, int]]:
        key = f"{name}.bitmap"
        if self.file.entries[key].shape != ((size + 7) // 8,) or self.file.entries[key].dtype != np.uint8:
            raise FormatError(f"{key}: {(size + 7) // 8} bytes expected for {size} entries")
        for low, high in windows(size):
            packed = read(key, low // 8, (high + 7) // 8)
            if (high - low) % 8 == 0 and packed.min(initial=255) == 255:
                yield low, high, EVERY, high - low
                continue
            flags = np.unpackbits(packed, bitorder="little")
            if flags[high - low :].any():
                raise FormatError(f"{key}: unused bits are set")
            mask = flags[: high - low].view(bool)
            count = int(np.count_nonzero(mask))
            if count:
                yield low, high, EVERY if count == high - low else where_of(mask), count

    def _from_indices(
        self, read: Callable[[str, int, int], Array], name: str, size: int
    ) -> Iterator[tuple[int, int, Where, int]]:
        key = f"{name}.indices"
        entry = self.file.entries[key]
        if entry.dtype not in (np.int32, np.int64):
            raise FormatError(f"{key}: int32 or int64 indices expected, found {entry.dtype}")
        at, done, last = np.empty(0, np.int64), 0, -1
        for low, high in windows(size):
            while done < entry.size and (not len(at) or at[-1] < high):
                more = read(key, done, min(done + _READ_AHEAD, entry.size)).astype(np.int64)
                if more[0] <= last or not (more[1:] > more[:-1]).all() or more[-1] >= size:
                    raise FormatError(f"{key}: indices must be rising, from 0 and below {size}")
                at, done, last = np.concatenate([at, more]), done + len(more), int(more[-1])
            count = int(np.searchsorted(at, high))
            if count:
                yield low, high, EVERY if count == high - low else at[:count] - low, count
                at = at[count:]
            if done == entry.size and not len(at):
                return


def save_stream(
    stream: GraftStream,
    path: str | Path,
    *,
    overwrite: bool = False,
    pack: bool = False,
    progress: Progress | None = None,
    proved: Callable[[], None] = lambda: None,
) -> None:
    """Write a graft as its stretches come: the bytes of `graft_file.save`, complete or not there at all.

    `pack` writes the packed form. `proved` is called when everything is written, before the file appears: it may still raise.
    """
    if pack:
        metadata = graft_file.packed_metadata_of(stream)
        save_packed(stream, path, metadata=metadata, progress=progress, proved=proved)
        return
    tensors = {f"{name}.head": (head.dtype, head.shape) for name, head in stream.heads.items()}
    for name, count in stream.counts.items():
        size, dtype = stream.size(name), stream.formats[name]
        index = index_dtype(size)
        few = count * index.itemsize <= (size + 7) // 8
        tensors[f"{name}.indices" if few else f"{name}.bitmap"] = (
            (index, (count,)) if few else (np.dtype(np.uint8), ((size + 7) // 8,))
        )
        tensors[f"{name}.before"] = dtype, (count,)
        tensors[f"{name}.{FORMS[stream.form]}"] = dtype if stream.form == "exact" else np.dtype(np.float32), (count,)
    entries = {entry.name: entry for entry in laid_out(tensors)}
    metadata = graft_file.metadata_of(stream)
    with atomic.new_file(Path(path), overwrite=overwrite) as temporary, temporary.open("wb") as file:
        header = header_bytes(list(entries.values()), metadata)
        file.write(header)
        file.flush()
        os.ftruncate(file.fileno(), len(header) + sum(entry.nbytes for entry in entries.values()))
        _Writer(file, entries, len(header)).write(stream, progress)
        proved()


class _Writer:
    """Writes each part of a graft at its place in a file whose layout is known."""

    def __init__(self, file: BinaryIO, entries: Mapping[str, Entry], start: int) -> None:
        self.descriptor, self.entries, self.start = file.fileno(), entries, start

    def write(self, stream: GraftStream, progress: Progress | None) -> None:
        for name, head in stream.heads.items():
            self.put(f"{name}.head", 0, head.reshape(-1))
        tally = SharedProgress(progress, sum(map(stream.size, stream.counts)))
        together(lambda name: self.parameter(stream, name, tally), stream.counts)

    def parameter(self, stream: GraftStream, name: str, tally: SharedProgress) -> None:
        written, done, count = 0, 0, stream.counts[name]
        for stretch in stream.stretches(name):
            if written + len(stretch) > count:
                break
            self.stretch(name, stretch, written, change=FORMS[stream.form])
            written += len(stretch)
            tally.add(stretch.high - done)
            done = stretch.high
        if written != count:
            raise InputError(
                f"{name}: {count} entries were counted, others were found; did its files change meanwhile?"
            )
        tally.add(stream.size(name) - done)

    def stretch(self, name: str, stretch: Stretch, written: int, *, change: str) -> None:
        for numbers in (stretch.before, stretch.change):
            if not all_finite(numbers):
                odd = int((~np.isfinite(numbers)).sum())
                raise InputError(f"{name}: {odd} of {len(numbers)} numbers ({change}) are NaN or infinite")
        self.put(f"{name}.before", written, stretch.before)
        self.put(f"{name}.{change}", written, stretch.change)
        indices = self.entries.get(f"{name}.indices")
        if indices is not None:
            self.put(indices.name, written, stretch.sites.astype(indices.dtype))
        else:
            self.put(f"{name}.bitmap", stretch.low // 8, np.packbits(stretch.mask, bitorder="little"))

    def put(self, key: str, place: int, numbers: Array) -> None:
        entry = self.entries[key]
        data = np.ascontiguousarray(numbers).view(np.uint8).data
        write_at(self.descriptor, data, self.start + entry.start + place * entry.dtype.itemsize)
