"""`skillgraft.json`: which grafts a folder carries, and what it takes to undo what cannot be undone entry by entry.

Grafts that overlap were written as one sum and come off together; each such group is one `Layer`. Whole tensors that a
graft replaced or removed (heads) wait in `skillgraft.undo`, a safetensors file under a name that no loader picks up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from skillgraft.checkpoint import Checkpoint, read_json
from skillgraft.dtypes import Array
from skillgraft.errors import FormatError
from skillgraft.tensor_file import TensorFile, write

LEDGER = "skillgraft.json"
UNDO = "skillgraft.undo"


@dataclass(frozen=True)
class Member:
    """One applied graft: what it is, what it was called, and the scale it was given on top of its own."""

    digest: str
    file: str
    scale: float
    entries: int


@dataclass(frozen=True)
class Layer:
    """Grafts that came on together and come off together."""

    members: tuple[Member, ...]
    heads: tuple[str, ...] = ()  # tensors that came whole
    removed: tuple[str, ...] = ()  # tensors that went whole
    prefix: str | None = None  # the body's prefix before, if it changed
    config: Mapping[str, Any] | None = None  # config.json before, if it changed

    @property
    def digests(self) -> frozenset[str]:
        return frozenset(member.digest for member in self.members)


@dataclass(frozen=True)
class Ledger:
    """What is on a folder. `made` is the provenance of other outputs (fine-tuning) and is kept as it is."""

    base: str = ""
    base_fingerprint: str = ""
    applied: tuple[Layer, ...] = ()
    made: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Ledger:
        """The folder's ledger; an empty one where there is none."""
        path = folder / LEDGER
        if not path.is_file():
            return cls()
        content = read_json(path)
        try:
            layers = tuple(_layer(layer) for layer in content.get("applied", []))
            return cls(content.get("base", ""), content.get("base_fingerprint", ""), layers, content.get("made", {}))
        except (KeyError, TypeError, AttributeError) as error:
            raise FormatError(f"{path}: not a ledger that skillgraft wrote ({error!r})") from None

    def write(self, folder: Path, *, versions: Mapping[str, str]) -> None:
        content = {**asdict(self), "versions": dict(versions)}
        (folder / LEDGER).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    def plus(self, layers: tuple[Layer, ...]) -> Ledger:
        return replace(self, applied=(*self.applied, *layers))

    def minus(self, layers: tuple[Layer, ...]) -> Ledger:
        return replace(self, applied=tuple(layer for layer in self.applied if layer not in layers))


def write_undo(source: Checkpoint, layers: Sequence[Layer], folder: Path) -> None:
    """Keep the whole tensors that these layers replace or remove, under the names that they have now."""
    names = {name for layer in layers for name in (*layer.heads, *layer.removed)} & source.places.keys()
    kept = {source.places[name].raw: source.read(name) for name in names}
    _write_undo({**kept, **_undo(source.path)}, folder)


def undone_tensors(source: Checkpoint, layers: Sequence[Layer]) -> dict[str, Array]:
    """The whole tensors that come back when these layers come off, under the names that they had."""
    prefixes = {"", source.prefix, *(layer.prefix or "" for layer in layers)}
    back = {prefix + name for layer in layers for name in (*layer.heads, *layer.removed) for prefix in prefixes}
    return {raw: tensor for raw, tensor in _undo(source.path).items() if raw in back}


def keep_undo(source: Checkpoint, rest: Ledger, folder: Path) -> None:
    """Carry over what the layers that stay on will need."""
    _write_undo(undone_tensors(source, rest.applied), folder)


def _undo(folder: Path) -> dict[str, Array]:
    if not (folder / UNDO).is_file():
        return {}
    file = TensorFile.open(folder / UNDO)
    return {raw: file.read(raw) for raw in file.entries}


def _write_undo(tensors: Mapping[str, Array], folder: Path) -> None:
    if tensors:
        write(folder / UNDO, tensors, {})


def _layer(content: Mapping[str, Any]) -> Layer:
    members = tuple(Member(**member) for member in content["members"])
    return Layer(members, tuple(content["heads"]), tuple(content["removed"]), content["prefix"], content["config"])
