"""A changed copy of a model folder: tensors renamed, added, dropped, or patched entry by entry, in the copy.

Bytes that stay are copied inside the kernel. A tensor of which few entries change is patched in its copy, window by window, so a
small graft costs one copy; one of which many do is not copied first but written once, old numbers and new ones put together
a stretch at a time. Memory is a few stretches whatever the size.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from skillgraft.files import system
from skillgraft.files.regular import opened
from skillgraft.files.tensors import Entry, TensorFile, copy_range, header_bytes, layout_of, windows, write_at
from skillgraft.folders.beside import copy_file, narrow, travelling_files
from skillgraft.folders.checkpoint import Checkpoint, renamed
from skillgraft.folders.ledger import LEDGER, UNDO
from skillgraft.folders.movement import Progress, silent
from skillgraft.folders.weight_files import INDEX, other_weights
from skillgraft.values.numbers import TAGS, Array, bits
from skillgraft.values.region import Indices
from skillgraft.values.stream import Stretch
from skillgraft.values.threads import SharedProgress, together

_WINDOW = 1024 * 1024  # entries that are copied at a time
_DENSE = 8  # a tensor is written anew where at least one in so many of its entries changes


@dataclass(frozen=True)
class NewNumbers:
    """What goes into one tensor: so many entries, and as often as asked for the stretches of sites with their new numbers.

    Stretches of one source come in order. Those of several are patched one source after the other.
    """

    count: int
    sources: Sequence[Callable[[], Iterator[tuple[Stretch, Array]]]]


@dataclass(frozen=True)
class Edit:
    """What to change. `prefix` is the body's prefix in the copy; `add` has the names of the copy, the rest prefix-free ones.

    `rows` says how many rows a tensor has in the copy: it loses its last ones, or gets those of `tails`. `layouts` has the
    headers that files of the copy are to have, where the base's own come back.
    """

    prefix: str
    numbers: Mapping[str, NewNumbers] = field(default_factory=dict)
    add: Mapping[str, Array] = field(default_factory=dict)
    drop: frozenset[str] = frozenset()
    rows: Mapping[str, int] = field(default_factory=dict)
    tails: Mapping[str, Array] = field(default_factory=dict)
    layouts: Mapping[str, str] = field(default_factory=dict)

    def sized(self, name: str, entry: Entry) -> Entry:
        """A tensor's entry with as many rows as it has in the copy."""
        if name not in self.rows:
            return entry
        shape = (self.rows[name], *entry.shape[1:])
        return replace(entry, shape=shape, nbytes=math.prod(shape) * entry.dtype.itemsize)


@dataclass(frozen=True)
class Copied:
    """What was left out of a copy (other formats of the weights), and the old headers of the files that were made anew."""

    left_out: tuple[str, ...]
    old_headers: Mapping[str, str]


def copy_edited(
    source: Checkpoint, target: Path, edit: Edit, *, skip: Iterable[str] = (), progress: Progress = silent
) -> Copied:
    """Fill the folder `target` with an edited copy."""
    left_out = tuple(item.name for item in other_weights(source.path, source.files))
    apart = {*left_out, *(file.path.name for file in source.files), INDEX, LEDGER, UNDO, *skip}
    beside = travelling_files(source.path, apart=apart)  # refuses what may not be copied, before any weight is
    layouts = {file.path.name: _laid_out(source, file, edit) for file in source.files}
    _copy_files(source, target, edit, layouts, progress)
    for name in beside:
        copy_file(source.path / name, target / name)
    anew = {name: layout.old_header for name, layout in layouts.items() if layout.old_header is not None}
    if source.sharded and anew:
        _write_index(source, target, layouts)
    elif source.sharded:
        copy_file(source.path / INDEX, target / INDEX)
    source.check_unchanged()
    return Copied(left_out, anew)


def _write_index(source: Checkpoint, target: Path, layouts: Mapping[str, _Layout]) -> None:
    weight_map = {entry.name: file for file, layout in layouts.items() for entry in layout.entries}
    size = sum(entry.nbytes for layout in layouts.values() for entry in layout.entries)
    index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(weight_map.items()))}
    (target / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    narrow(target / INDEX, like=source.path / INDEX)


def _copy_files(
    source: Checkpoint, target: Path, edit: Edit, layouts: Mapping[str, _Layout], progress: Progress
) -> None:
    """Copy every weight file with its changes."""
    tally = SharedProgress(progress, sum(math.prod(source.shapes[name]) for name in edit.numbers))
    jobs = [partial(_copy_rest, target / name, layout, edit) for name, layout in layouts.items()]
    jobs += [
        partial(_write_dense, source, target / file, name, layout.kept[name].new, edit.numbers[name])
        for file, layout in layouts.items()
        for name in layout.dense
    ]
    together(lambda job: tally.add(job()), jobs)
    for name in layouts:
        narrow(target / name, like=source.path / name)


@dataclass(frozen=True)
class _Kept:
    """A tensor of the copy that the source has: in which file, where it lies there, and where in the copy."""

    file: TensorFile
    old: Entry
    new: Entry

    @property
    def stays(self) -> int:
        """How many of its bytes are in both."""
        return min(self.old.nbytes, self.new.nbytes)


@dataclass(frozen=True)
class _Layout:
    """One weight file's copy: its header, its tensors, which of them are written anew; the old header if it has another."""

    header: bytes
    kept: Mapping[str, _Kept]
    added: Mapping[str, Entry]
    dense: frozenset[str]
    old_header: str | None

    @property
    def entries(self) -> list[Entry]:
        return [*(each.new for each in self.kept.values()), *self.added.values()]


def _laid_out(source: Checkpoint, file: TensorFile, edit: Edit) -> _Layout:
    """What the copy of a file is to look like. Tensors that are added go into the last one, or where a given header has them."""
    names = {place.raw: name for name, place in source.places.items() if place.file is file}
    old = {names[entry.name]: entry for entry in sorted(file.entries.values(), key=lambda entry: entry.start)}
    kept = {name: entry for name, entry in old.items() if name not in edit.drop}
    add = edit.add if file is source.files[-1] and not edit.layouts else {}
    layout = edit.layouts.get(file.path.name)
    if layout is not None:
        return _restored(source, file, edit, layout)
    if len(kept) == len(old) and not add and source.prefix == edit.prefix and not edit.rows.keys() & kept.keys():
        with opened(file.path) as content:
            header = content.read(file.data_start)
        return _with_dense(header, {name: _Kept(file, entry, entry) for name, entry in kept.items()}, {}, edit, None)
    entries, position = [], 0
    for name, entry in kept.items():
        sized = edit.sized(name, entry)
        entries.append(replace(sized, name=renamed(entry.name, source.prefix, edit.prefix), start=position))
        position += sized.nbytes
    for name, array in add.items():
        entries.append(Entry(name, TAGS[array.dtype], array.shape, position, array.nbytes))
        position += array.nbytes
    header = header_bytes(entries, file.metadata)
    entries = [replace(entry, start=entry.start + len(header)) for entry in entries]
    places = {name: _Kept(file, entry, new) for (name, entry), new in zip(kept.items(), entries, strict=False)}
    added = {entry.name: entry for entry in entries[len(kept) :]}
    return _with_dense(header, places, added, edit, file.header_text())


def _restored(source: Checkpoint, file: TensorFile, edit: Edit, text: str) -> _Layout:
    """A file with a header that it once had, each tensor where that header has it, wherever it lies now."""
    header = len(text.encode()).to_bytes(8, "little") + text.encode()
    lies = {renamed(place.raw, source.prefix, edit.prefix): (name, place) for name, place in source.places.items()}
    kept, added = {}, {}
    for entry in layout_of(text):
        new = replace(entry, start=entry.start + len(header))
        if entry.name in edit.add:
            added[entry.name] = new
        else:
            name, place = lies[entry.name]
            kept[name] = _Kept(place.file, place.file.entries[place.raw], new)
    return _with_dense(header, kept, added, edit, file.header_text())


def _with_dense(
    header: bytes, kept: Mapping[str, _Kept], added: Mapping[str, Entry], edit: Edit, old_header: str | None
) -> _Layout:
    dense = frozenset(name for name in kept if name in edit.numbers and _is_dense(edit.numbers[name], kept[name].new))
    return _Layout(header, kept, added, dense, old_header)


def _is_dense(numbers: NewNumbers, entry: Entry) -> bool:
    return len(numbers.sources) == 1 and numbers.count * _DENSE >= entry.size


def fits_layout(source: Checkpoint, edit: Edit) -> bool:
    """Whether the edit's layouts have a place for each tensor of their files and for each that is added, and no other place."""
    held = {
        renamed(place.raw, source.prefix, edit.prefix): (entry.tag, edit.sized(name, entry).shape)
        for name, place in source.places.items()
        if name not in edit.drop and place.file.path.name in edit.layouts
        for entry in [place.file.entries[place.raw]]
    }
    held |= {name: (TAGS[array.dtype], array.shape) for name, array in edit.add.items()}
    placed = [entry for text in edit.layouts.values() for entry in layout_of(text)]
    return len(placed) == len(held) and {entry.name: (entry.tag, entry.shape) for entry in placed} == held


def _copy_rest(target: Path, layout: _Layout, edit: Edit) -> int:
    """Everything of one file but the tensors that are written anew. Returns how many entries were looked at for a change."""
    size = len(layout.header) + sum(entry.nbytes for entry in layout.entries)
    with _for_writing(target, size) as new:
        write_at(new, memoryview(layout.header), 0)
        for file, start, place, count in _stretches([each for n, each in layout.kept.items() if n not in layout.dense]):
            with opened(file.path) as old:
                copy_range(old, new, start, count, place)
        for name, entry in layout.added.items():
            _write_whole(new, edit.add[name], entry.start)
        for name in edit.tails.keys() & layout.kept.keys():
            _write_whole(new, edit.tails[name], layout.kept[name].new.start + layout.kept[name].old.nbytes)
        patched = layout.kept.keys() & edit.numbers.keys() - layout.dense
        for name in patched:
            for source in edit.numbers[name].sources:
                for stretch, numbers in source():
                    _patch(new, layout.kept[name].new, stretch.sites, numbers)
    return sum(layout.kept[name].new.size for name in patched)


def _write_whole(descriptor: int, numbers: Array, place: int) -> None:
    write_at(descriptor, np.ascontiguousarray(numbers.reshape(-1)).view(np.uint8).data, place)


@contextmanager
def _for_writing(path: Path, size: int = 0) -> Iterator[int]:
    """A file's descriptor; several threads may write to one file, and whoever comes first makes it."""
    descriptor = os.open(path, system.flags("O_RDWR", "O_CREAT", "O_CLOEXEC"), 0o666)
    try:
        if size:
            os.ftruncate(descriptor, size)
        yield descriptor
    finally:
        os.close(descriptor)


def _write_dense(source: Checkpoint, target: Path, name: str, entry: Entry, numbers: NewNumbers) -> int:
    """One tensor of the copy, old and new numbers put together."""
    width, (changes,) = entry.dtype.itemsize, numbers.sources
    with _for_writing(target) as new:
        done = 0
        for stretch, fresh in changes():
            _write_old(source, name, new, entry, done, stretch.low)
            if not stretch.full:
                whole = bits(source.flat(name, stretch.low, stretch.high)).copy()
                whole[stretch.where] = bits(np.ascontiguousarray(fresh))
                fresh = whole
            write_at(new, np.ascontiguousarray(fresh).view(np.uint8).data, entry.start + stretch.low * width)
            done = stretch.high
        _write_old(source, name, new, entry, done, min(entry.size, math.prod(source.shapes[name])))
    return entry.size


def _write_old(source: Checkpoint, name: str, new: int, entry: Entry, low: int, high: int) -> None:
    """Entries [low, high) as they are."""
    for start in range(low, high, _WINDOW):
        old = source.flat(name, start, min(start + _WINDOW, high))
        write_at(new, np.ascontiguousarray(old).view(np.uint8).data, entry.start + start * entry.dtype.itemsize)


def _stretches(kept: Sequence[_Kept]) -> list[tuple[TensorFile, int, int, int]]:
    """Neighbouring tensors as one stretch: its old file, where it begins there and in the new one, and its bytes."""
    result: list[tuple[TensorFile, int, int, int]] = []
    for each in sorted(kept, key=lambda each: each.new.start):
        if result:
            file, start, place, count = result[-1]
            if file is each.file and (start + count, place + count) == (each.old.start, each.new.start):
                result[-1] = (file, start, place, count + each.stays)
                continue
        if each.stays:
            result.append((each.file, each.old.start, each.new.start, each.stays))
    return result


def _patch(descriptor: int, entry: Entry, at: Indices, numbers: Array) -> None:
    """Write numbers at sorted sites of one tensor.

    Plain writes, because they report a full disk: a write to mapped memory that shares its blocks with the original (as
    copies do on some file systems) would end the process instead. Sites without neighbours need no reading before.
    """
    size = entry.dtype.itemsize
    data = np.ascontiguousarray(numbers).view(np.uint8).data
    edges = windows(at)
    firsts, lasts = at[edges[:-1]].tolist(), at[edges[1:] - 1].tolist()
    for (low, high), first, last in zip(pairwise(edges.tolist()), firsts, lasts, strict=True):
        place = entry.start + first * size
        if last - first == high - low - 1:
            write_at(descriptor, data[low * size : high * size], place)
        else:
            window = np.frombuffer(bytearray(system.read_at(descriptor, (last + 1 - first) * size, place)), entry.dtype)
            window[at[low:high] - first] = numbers[low:high]
            write_at(descriptor, window.view(np.uint8).data, place)
