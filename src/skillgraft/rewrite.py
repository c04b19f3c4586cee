"""A changed copy of a model folder: tensors renamed, added, dropped, or patched entry by entry, in the copy.

Files whose header stays as it is are copied inside the kernel and patched in place, so a small graft costs one copy. The
rest are re-made in one pass: a new header, then the kept stretches of the old file, then what was added.
"""

from __future__ import annotations

import json
import mmap
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from skillgraft.checkpoint import Checkpoint, other_weights
from skillgraft.dtypes import TAGS, Array
from skillgraft.ledger import LEDGER, UNDO
from skillgraft.region import Indices
from skillgraft.tensor_file import Entry, TensorFile, copy_range, header_bytes, write_parts

_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Edit:
    """What to change. `prefix` is the body's prefix in the copy; `add` has the names of the copy, the rest prefix-free ones."""

    prefix: str
    numbers: Mapping[str, tuple[Indices, Array]] = field(default_factory=dict)
    add: Mapping[str, Array] = field(default_factory=dict)
    drop: frozenset[str] = frozenset()


def copy_edited(source: Checkpoint, target: Path, edit: Edit, *, skip: Iterable[str] = ()) -> list[str]:
    """Fill the folder `target` with an edited copy. Returns the files left out: weights in other formats."""
    left_out = {file.name for file in other_weights(source.path)}
    ours = {file.path.name for file in source.files} | {_INDEX, LEDGER, UNDO, *skip}
    for item in sorted(source.path.iterdir()):
        if item.name not in ours | left_out and not item.name.startswith("."):
            (shutil.copytree if item.is_dir() else shutil.copyfile)(item, target / item.name)
    weight_map: dict[str, str] = {}
    for place, file in enumerate(source.files):
        last = place == len(source.files) - 1
        for name in _copy_weights(source, file, target / file.path.name, edit, add=edit.add if last else {}):
            weight_map[name] = file.path.name
    if source.sharded:
        size = sum((target / file.path.name).stat().st_size for file in source.files)
        index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(weight_map.items()))}
        (target / _INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    source.check_unchanged()
    return sorted(left_out)


def _copy_weights(
    source: Checkpoint, file: TensorFile, target: Path, edit: Edit, *, add: Mapping[str, Array]
) -> list[str]:
    """Copy one weight file with its changes; returns the names in the copy."""
    names = {place.raw: name for name, place in source.places.items() if place.file is file}
    kept = [
        replace(entry, name=_renamed(entry.name, names[entry.name], source.prefix, edit.prefix))
        for entry in sorted(file.entries.values(), key=lambda entry: entry.start)
        if names[entry.name] not in edit.drop
    ]
    if len(kept) == len(file.entries) and not add and source.prefix == edit.prefix:
        with file.path.open("rb") as old:
            write_parts(target, b"", [lambda new: copy_range(old, new, 0, file.stamp[1])])
    else:
        kept = _remake(file, target, kept, add)
    _patch(target, _targets(source, file, edit, kept))
    return [entry.name for entry in kept] + list(add)


def _renamed(raw: str, name: str, old: str, new: str) -> str:
    """The body's tensors move from one prefix to the other; heads outside it stay."""
    return new + name if raw == old + name else raw


def _remake(file: TensorFile, target: Path, kept: list[Entry], added: Mapping[str, Array]) -> list[Entry]:
    """Write a new header, the kept stretches and the added tensors; returns the kept entries at their new places."""
    moved, position = [], 0
    for entry in kept:
        moved.append(replace(entry, start=position))
        position += entry.nbytes
    fresh = []
    for name, array in added.items():
        fresh.append(Entry(name, TAGS[array.dtype], array.shape, position, array.nbytes))
        position += array.nbytes
    header = header_bytes([*moved, *fresh], file.metadata)

    def old_numbers(new: BinaryIO) -> None:
        with file.path.open("rb") as old:
            for start, count in _stretches(kept):
                copy_range(old, new, start, count)
        new.seek(0, 2)

    def new_numbers(new: BinaryIO) -> None:
        for array in added.values():
            new.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    write_parts(target, header, [old_numbers, new_numbers])
    return [replace(entry, start=entry.start + len(header)) for entry in moved]


def _stretches(entries: list[Entry]) -> list[tuple[int, int]]:
    """Neighbouring tensors as one (start, bytes) stretch."""
    result: list[tuple[int, int]] = []
    for entry in entries:
        if result and sum(result[-1]) == entry.start:
            result[-1] = (result[-1][0], result[-1][1] + entry.nbytes)
        elif entry.nbytes:
            result.append((entry.start, entry.nbytes))
    return result


def _targets(source: Checkpoint, file: TensorFile, edit: Edit, kept: list[Entry]) -> list[tuple[Entry, Indices, Array]]:
    """The entries of the copy to patch: each parameter and, where a file stores it twice, its twin."""
    copies: dict[str, list[str]] = defaultdict(list)
    for name in source.places:
        copies[source.twins.get(name, name)].append(name)
    by_name = {entry.name: entry for entry in kept}
    result = []
    for counted, (at, numbers) in edit.numbers.items():
        for name in copies[counted]:
            place = source.places[name]
            new_name = _renamed(place.raw, name, source.prefix, edit.prefix)
            if place.file is file and new_name in by_name:
                result.append((by_name[new_name], at, numbers))
    return result


def _patch(target: Path, changes: list[tuple[Entry, Indices, Array]]) -> None:
    if not changes:
        return
    with target.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        for entry, at, numbers in changes:
            tensor = np.frombuffer(mapped, entry.dtype, count=entry.size, offset=entry.start)
            tensor[at] = numbers
            del tensor  # a view would keep the map open
