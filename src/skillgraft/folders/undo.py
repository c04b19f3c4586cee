"""`skillgraft.undo`: what of the base a grafted folder no longer shows, kept until the grafts come off.

A safetensors file under a name that no loader picks up. Its tensors are the base's whole tensors that a graft replaced or took
away (heads); its metadata are texts: the headers of weight files that were made anew (`header:model.safetensors`) and files
that the copy replaces by its own (`file:model.safetensors.index.json`). With them the base comes back byte for byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from skillgraft.files.regular import CONFIG_BYTES, read_bytes
from skillgraft.files.tensors import TensorFile, write
from skillgraft.folders.beside import narrow
from skillgraft.folders.checkpoint import Checkpoint, renamed
from skillgraft.folders.ledger import BASE_CARD, UNDO, Ledger
from skillgraft.folders.weight_files import INDEX
from skillgraft.values.numbers import Array

_HEADER, _FILE = "header:", "file:"
# Files of a base that its grafted copy has in its own words.
_REPLACED = (INDEX, BASE_CARD)


@dataclass(frozen=True)
class Kept:
    """Weight file → its header's text in the base; replaced file → its bytes in the base."""

    headers: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, source: Checkpoint, ledger: Ledger) -> Kept:
        """What a grafted folder keeps; of a base, which shows everything, the files that a copy would replace."""
        if not ledger.applied:
            card = source.path / BASE_CARD
            own = {card.name: read_bytes(card, limit=CONFIG_BYTES)} if card.is_file() else {}
            return cls({}, {**_index(source), **own})
        texts = _undo_file(source).metadata if (source.path / UNDO).is_file() else {}
        files = {key.removeprefix(_FILE): text for key, text in texts.items() if key.startswith(_FILE)}
        return cls(
            {key.removeprefix(_HEADER): text for key, text in texts.items() if key.startswith(_HEADER)},
            {**_index(source), **{n: files[n].encode("latin-1", errors="replace") for n in _REPLACED if n in files}},
        )

    def with_headers(self, old: Mapping[str, str]) -> Kept:
        """The same with the headers of files that are made anew now, unless an older one is kept already."""
        return replace(self, headers={**old, **self.headers})

    def without_layout(self) -> Kept:
        """The same where the headers do not fit (a folder of an older version): the files are laid out anew."""
        return Kept({}, {name: content for name, content in self.files.items() if name != INDEX})

    @property
    def texts(self) -> dict[str, str]:
        """As the undo file holds it. An index stays what it is where no file was made anew."""
        kept = {name: text for name, text in self.files.items() if name != INDEX or self.headers}
        return {
            **{f"{_HEADER}{name}": text for name, text in self.headers.items()},
            **{f"{_FILE}{name}": content.decode("latin-1") for name, content in kept.items()},
        }

    def write_files(self, folder: Path, *, like: Checkpoint) -> None:
        """Put the replaced files back."""
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
            narrow(folder / name, like=known(like, name))


def write_undo(source: Checkpoint, before: Ledger, after: Ledger, folder: Path, *, kept: Kept) -> None:
    """Keep the base's whole tensors that the layers of `after` replace or remove, under the base's names."""
    wanted = after.heads | after.removed
    # A head that is on already is a layer's, not the base's: the base's waits in the old undo file, if there was one.
    fresh = (wanted - before.heads) & source.places.keys()
    tensors = {renamed(source.places[n].raw, source.prefix, before.base_prefix): source.read(n) for n in fresh}
    tensors |= {raw: tensor for raw, tensor in _undo(source).items() if raw.removeprefix(before.base_prefix) in wanted}
    if tensors or kept.texts:
        write(folder / UNDO, tensors, kept.texts)
        narrow(folder / UNDO, like=source.files[0].path)


def undone_tensors(source: Checkpoint, before: Ledger, after: Ledger) -> dict[str, Array]:
    """The base's whole tensors that come back when `before` becomes `after`, by their full names then."""
    back = (before.heads | before.removed) - (after.heads | after.removed)
    return {
        renamed(raw, before.base_prefix, after.prefix): tensor
        for raw, tensor in _undo(source).items()
        if raw.removeprefix(before.base_prefix) in back
    }


def known(source: Checkpoint, name: str) -> Path:
    """The folder's own file of that name, or else its weights: whose permissions a new file gets."""
    return source.path / name if (source.path / name).is_file() else source.files[0].path


def _index(source: Checkpoint) -> dict[str, bytes]:
    """The index as it is now: the base's, as long as no file was made anew."""
    return {INDEX: read_bytes(source.path / INDEX, limit=CONFIG_BYTES)} if source.sharded else {}


def _undo_file(source: Checkpoint) -> TensorFile:
    return TensorFile.open(source.path / UNDO)


def _undo(source: Checkpoint) -> dict[str, Array]:
    if not (source.path / UNDO).is_file():
        return {}
    file = _undo_file(source)
    return {raw: file.read(raw) for raw in file.entries}
