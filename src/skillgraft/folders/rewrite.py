"""A changed copy of a model folder: tensors renamed, added, dropped, or patched entry by entry, in the copy.

Files whose header stays as it is are copied inside the kernel and patched in place, so a small graft costs one copy. The
rest are re-made in one pass: a new header, then the kept stretches of the old file, then what was added.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np

from skillgraft.files.regular import opened
from skillgraft.files.tensors import Entry, TensorFile, copy_range, header_bytes, layout_of, windows, write_parts
from skillgraft.folders.beside import copy_file, narrow, travelling_files
from skillgraft.folders.checkpoint import Checkpoint, renamed
from skillgraft.folders.ledger import LEDGER, UNDO
from skillgraft.folders.weight_files import INDEX, other_weights
from skillgraft.values.numbers import TAGS, Array
from skillgraft.values.region import Indices


@dataclass(frozen=True)
class Edit:
    """What to change. `prefix` is the body's prefix in the copy; `add` has the names of the copy, the rest prefix-free ones.

    `layouts` has the headers that files of the copy are to have, where the base's own come back.
    """

    prefix: str
    numbers: Mapping[str, tuple[Indices, Array]] = field(default_factory=dict)
    add: Mapping[str, Array] = field(default_factory=dict)
    drop: frozenset[str] = frozenset()
    layouts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Copied:
    """What was left out of a copy (other formats of the weights), and the old headers of the files that were made anew."""

    left_out: tuple[str, ...]
    old_headers: Mapping[str, str]


def copy_edited(source: Checkpoint, target: Path, edit: Edit, *, skip: Iterable[str] = ()) -> Copied:
    """Fill the folder `target` with an edited copy."""
    left_out = tuple(item.name for item in other_weights(source.path, source.files))
    apart = {*left_out, *(file.path.name for file in source.files), INDEX, LEDGER, UNDO, *skip}
    beside = travelling_files(source.path, apart=apart)  # refuses what may not be copied, before any weight is
    copies = _copy_files(source, target, edit)
    for name in beside:
        copy_file(source.path / name, target / name)
    anew = {file for file, copy in copies.items() if copy.old_header is not None}
    if source.sharded and anew:
        _write_index(source, target, copies)
    elif source.sharded:
        copy_file(source.path / INDEX, target / INDEX)
    source.check_unchanged()
    return Copied(left_out, {file: copy.old_header or "" for file, copy in copies.items() if file in anew})


def _write_index(source: Checkpoint, target: Path, copies: Mapping[str, WeightCopy]) -> None:
    every = {file: copy.entries.values() for file, copy in copies.items()}
    weight_map = {entry.name: file for file, entries in every.items() for entry in entries}
    size = sum(entry.nbytes for entries in every.values() for entry in entries)
    index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(weight_map.items()))}
    (target / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    narrow(target / INDEX, like=source.path / INDEX)


@dataclass(frozen=True)
class WeightCopy:
    """One copied weight file: prefix-free name or, of what was added, name → entry; its old header if it was made anew."""

    entries: Mapping[str, Entry]
    old_header: str | None


def _copy_files(source: Checkpoint, target: Path, edit: Edit) -> dict[str, WeightCopy]:
    """Copy every weight file; while one is patched the next is being copied. What is added goes into the last one."""

    def copied(file: TensorFile) -> WeightCopy:
        add = edit.add if file is source.files[-1] and not edit.layouts else {}
        return _copy_weights(source, file, target / file.path.name, edit, add=add)

    with ThreadPoolExecutor(max_workers=2) as pool:
        return dict(zip((file.path.name for file in source.files), pool.map(copied, source.files), strict=True))


def _copy_weights(
    source: Checkpoint, file: TensorFile, target: Path, edit: Edit, *, add: Mapping[str, Array]
) -> WeightCopy:
    """Copy one weight file with its changes."""
    names = {place.raw: name for name, place in source.places.items() if place.file is file}
    kept = {
        names[entry.name]: entry
        for entry in sorted(file.entries.values(), key=lambda entry: entry.start)
        if names[entry.name] not in edit.drop
    }
    same = len(kept) == len(file.entries) and not add and source.prefix == edit.prefix
    layout = edit.layouts.get(file.path.name)
    if same and layout is None:
        with opened(file.path) as old:
            write_parts(target, b"", [lambda new: copy_range(old, new, 0, file.stamp[1])])
        entries = kept
    elif layout is None:
        entries = _remake(file, target, kept, add, rename=(source.prefix, edit.prefix))
    else:
        entries = _restore(source, target, edit, header=layout)
    narrow(target, like=file.path)
    with target.open("r+b") as copy:
        for name in entries.keys() & edit.numbers.keys():
            _patch(copy, entries[name], *edit.numbers[name])
    return WeightCopy(entries, None if same and layout is None else file.header_text())


def _remake(
    file: TensorFile, target: Path, kept: Mapping[str, Entry], added: Mapping[str, Array], *, rename: tuple[str, str]
) -> dict[str, Entry]:
    """Write a new header, the kept stretches and the added tensors; returns all entries at their new places."""
    entries, position = {}, 0
    for name, entry in kept.items():
        entries[name] = replace(entry, name=renamed(entry.name, *rename), start=position)
        position += entry.nbytes
    for name, array in added.items():
        entries[name] = Entry(name, TAGS[array.dtype], array.shape, position, array.nbytes)
        position += array.nbytes
    header = header_bytes(list(entries.values()), file.metadata)

    def old_numbers(new: BinaryIO) -> None:
        with opened(file.path) as old:
            for start, count in _stretches(list(kept.values())):
                copy_range(old, new, start, count)
        new.seek(0, 2)

    write_parts(target, header, [old_numbers, *(partial(_write_array, array) for array in added.values())])
    return {name: replace(entry, start=entry.start + len(header)) for name, entry in entries.items()}


def _write_array(array: Array, new: BinaryIO) -> None:
    new.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def fits_layout(source: Checkpoint, edit: Edit) -> bool:
    """Whether the edit's layouts have a place for each tensor of their files and for each that is added, and no other place."""
    held = {
        renamed(place.raw, source.prefix, edit.prefix): (entry.tag, entry.shape)
        for name, place in source.places.items()
        if name not in edit.drop and place.file.path.name in edit.layouts
        for entry in [place.file.entries[place.raw]]
    }
    held |= {name: (TAGS[array.dtype], array.shape) for name, array in edit.add.items()}
    placed = [entry for text in edit.layouts.values() for entry in layout_of(text)]
    return len(placed) == len(held) and {entry.name: (entry.tag, entry.shape) for entry in placed} == held


def _restore(source: Checkpoint, target: Path, edit: Edit, *, header: str) -> dict[str, Entry]:
    """Write a file with a header that it once had, each tensor where that header has it, wherever it lies now."""
    text = header.encode()
    first = len(text).to_bytes(8, "little") + text
    lies = {renamed(place.raw, source.prefix, edit.prefix): (name, place) for name, place in source.places.items()}
    entries = {}
    with target.open("wb") as new:
        new.write(first)
        for entry in layout_of(header):
            name = entry.name
            if name in edit.add:
                _write_array(edit.add[name], new)
            else:
                name, place = lies[name]
                with opened(place.file.path) as old:
                    copy_range(old, new, place.file.entries[place.raw].start, entry.nbytes)
                new.seek(0, 2)
            entries[name] = replace(entry, start=entry.start + len(first))
    return entries


def _stretches(entries: list[Entry]) -> list[tuple[int, int]]:
    """Neighbouring tensors as one (start, bytes) stretch."""
    result: list[tuple[int, int]] = []
    for entry in entries:
        if result and sum(result[-1]) == entry.start:
            result[-1] = (result[-1][0], result[-1][1] + entry.nbytes)
        elif entry.nbytes:
            result.append((entry.start, entry.nbytes))
    return result


def _patch(file: BinaryIO, entry: Entry, at: Indices, numbers: Array) -> None:
    """Write numbers at sorted sites of one tensor.

    Plain writes, because they report a full disk: a write to mapped memory that shares its blocks with the original (as
    copies do on some file systems) would end the process instead. Sites without neighbours need no reading before.
    """
    size, descriptor = entry.dtype.itemsize, file.fileno()
    data = np.ascontiguousarray(numbers).view(np.uint8).data
    edges = windows(at)
    firsts, lasts = at[edges[:-1]].tolist(), at[edges[1:] - 1].tolist()
    for (low, high), first, last in zip(pairwise(edges.tolist()), firsts, lasts, strict=True):
        place = entry.start + first * size
        if last - first == high - low - 1:
            _write(descriptor, data[low * size : high * size], place)
        else:
            window = np.frombuffer(bytearray(os.pread(descriptor, (last + 1 - first) * size, place)), entry.dtype)
            window[at[low:high] - first] = numbers[low:high]
            _write(descriptor, window.view(np.uint8).data, place)


def _write(descriptor: int, data: memoryview, place: int) -> None:
    """All of the bytes: a nearly full disk takes some of them and reports the rest at the next call."""
    done = os.pwrite(descriptor, data, place)
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], place + done)
