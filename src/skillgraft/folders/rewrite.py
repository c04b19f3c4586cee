"""A changed copy of a model folder: tensors renamed, added, dropped, or patched entry by entry, in the copy.

Files whose header stays as it is are copied inside the kernel and patched in place, so a small graft costs one copy. The
rest are re-made in one pass: a new header, then the kept stretches of the old file, then what was added.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from skillgraft.files.tensors import Entry, TensorFile, copy_range, header_bytes, write_parts
from skillgraft.folders.checkpoint import Checkpoint, renamed
from skillgraft.folders.ledger import LEDGER, UNDO
from skillgraft.folders.weight_files import INDEX, other_weights
from skillgraft.values.numbers import TAGS, Array
from skillgraft.values.region import Indices

# Patching reads and writes windows: sites nearer than a page or so share one, and none is longer than a few megabytes.
_NEAR = 1024
_WINDOW = 1024 * 1024


@dataclass(frozen=True)
class Edit:
    """What to change. `prefix` is the body's prefix in the copy; `add` has the names of the copy, the rest prefix-free ones."""

    prefix: str
    numbers: Mapping[str, tuple[Indices, Array]] = field(default_factory=dict)
    add: Mapping[str, Array] = field(default_factory=dict)
    drop: frozenset[str] = frozenset()


def copy_edited(source: Checkpoint, target: Path, edit: Edit, *, skip: Iterable[str] = ()) -> list[str]:
    """Fill the folder `target` with an edited copy. Returns what was left out: other copies of the weights."""
    left_out = [item.name for item in other_weights(source.path, source.files)]
    apart = {*left_out, *(file.path.name for file in source.files), INDEX, LEDGER, UNDO, *skip}
    for item in sorted(source.path.iterdir()):
        if item.name not in apart and not item.name.startswith("."):
            (shutil.copytree if item.is_dir() else shutil.copyfile)(item, target / item.name)
    copies = _copy_files(source, target, edit)
    if source.sharded:
        weight_map = {entry.name: file for file, entries in copies.items() for entry in entries}
        size = sum(entry.nbytes for entries in copies.values() for entry in entries)
        index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(weight_map.items()))}
        (target / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    source.check_unchanged()
    return left_out


def _copy_files(source: Checkpoint, target: Path, edit: Edit) -> dict[str, list[Entry]]:
    """Copy every weight file; while one is patched the next is being copied. What is added goes into the last one."""

    def copied(file: TensorFile) -> list[Entry]:
        add = edit.add if file is source.files[-1] else {}
        return _copy_weights(source, file, target / file.path.name, edit, add=add)

    with ThreadPoolExecutor(max_workers=2) as pool:
        entries = list(pool.map(copied, source.files))
    return {file.path.name: found for file, found in zip(source.files, entries, strict=True)}


def _copy_weights(
    source: Checkpoint, file: TensorFile, target: Path, edit: Edit, *, add: Mapping[str, Array]
) -> list[Entry]:
    """Copy one weight file with its changes; returns the entries of the copy."""
    names = {place.raw: name for name, place in source.places.items() if place.file is file}
    kept = {
        names[entry.name]: entry
        for entry in sorted(file.entries.values(), key=lambda entry: entry.start)
        if names[entry.name] not in edit.drop
    }
    if len(kept) == len(file.entries) and not add and source.prefix == edit.prefix:
        with file.path.open("rb") as old:
            write_parts(target, b"", [lambda new: copy_range(old, new, 0, file.stamp[1])])
        entries = list(kept.values())
    else:
        entries = _remake(file, target, list(kept.values()), add, rename=(source.prefix, edit.prefix))
    with target.open("r+b") as copy:
        for name, entry in zip(kept, entries, strict=False):
            if name in edit.numbers:
                _patch(copy, entry, *edit.numbers[name])
    return entries


def _remake(
    file: TensorFile, target: Path, kept: list[Entry], added: Mapping[str, Array], *, rename: tuple[str, str]
) -> list[Entry]:
    """Write a new header, the kept stretches and the added tensors; returns all entries at their new places."""
    entries, position = [], 0
    for entry in kept:
        entries.append(replace(entry, name=renamed(entry.name, *rename), start=position))
        position += entry.nbytes
    for name, array in added.items():
        entries.append(Entry(name, TAGS[array.dtype], array.shape, position, array.nbytes))
        position += array.nbytes
    header = header_bytes(entries, file.metadata)

    def old_numbers(new: BinaryIO) -> None:
        with file.path.open("rb") as old:
            for start, count in _stretches(kept):
                copy_range(old, new, start, count)
        new.seek(0, 2)

    def new_numbers(new: BinaryIO) -> None:
        for array in added.values():
            new.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    write_parts(target, header, [old_numbers, new_numbers])
    return [replace(entry, start=entry.start + len(header)) for entry in entries]


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
    edges = _windows(at)
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


def _windows(at: Indices) -> npt.NDArray[np.int64]:
    """The edges in `at` of stretches whose sites lie near each other."""
    apart = (np.diff(at) > _NEAR) | (np.diff(at // _WINDOW) > 0)
    return np.concatenate([[0], np.flatnonzero(apart) + 1, [len(at)]])
