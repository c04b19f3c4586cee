"""`skillgraft.json`: which grafts a folder carries, and what it takes to undo what cannot be undone entry by entry.

Grafts that overlap were written as one sum and come off together; each such group is one `Layer`. The ledger keeps the
base's own config and prefix, and a layer what it set, so that layers come off in any order: what stays on is the base's with
the rest of the layers over it. The base's whole tensors that a graft replaced or removed (heads) wait in `skillgraft.undo`, a
safetensors file under a name that no loader picks up.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from skillgraft.errors import FormatError
from skillgraft.files.tensors import TensorFile, write
from skillgraft.folders.chat import chat_files
from skillgraft.folders.checkpoint import Checkpoint, renamed
from skillgraft.folders.weight_files import read_json
from skillgraft.values.graft import Graft
from skillgraft.values.info import versions
from skillgraft.values.numbers import Array

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
    """Grafts that came on together and come off together, and what they set beside numbers."""

    members: tuple[Member, ...]
    heads: tuple[str, ...] = ()  # tensors that came whole
    removed: tuple[str, ...] = ()  # tensors that went whole
    prefix: str | None = None  # what the body's names begin with, if the layer says
    settings: Mapping[str, Any] = field(default_factory=dict)  # keys of config.json
    chat: Mapping[str, Any] = field(default_factory=dict)  # chat template and stop tokens

    @property
    def digests(self) -> frozenset[str]:
        return frozenset(member.digest for member in self.members)


@dataclass(frozen=True)
class Ledger:
    """What is on a folder. `made` is the provenance of other outputs (fine-tuning) and is kept as it is."""

    base: str = ""
    base_fingerprint: str = ""
    base_prefix: str = ""
    base_config: str = ""  # the text of its config.json
    base_ledger: str = ""  # the text of its own skillgraft.json
    base_chat: Mapping[str, str] = field(default_factory=dict)  # its chat template and generation_config, by file
    applied: tuple[Layer, ...] = ()
    made: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, source: Checkpoint) -> Ledger:
        """The folder's ledger; where no graft is on, one that takes the folder as the base."""
        path = source.path / LEDGER
        found = _read(path) if path.is_file() else cls()
        if found.applied:
            touched = any(layer.chat for layer in found.applied)
            return found if touched else replace(found, base_chat=chat_files(source.path))
        texts = (_text(source.path / "config.json"), _text(path))
        chat = chat_files(source.path)
        return cls(source.name, source.fingerprint, source.prefix, *texts, base_chat=chat, made=found.made)

    def write(self, folder: Path, *, versions: Mapping[str, str]) -> None:
        """Write the ledger; with every graft off it is the base's own again, or none."""
        text = self.base_ledger
        if self.applied or (self.made and not text):
            text = json.dumps({**self._content, "versions": dict(versions)}, indent=2, ensure_ascii=False) + "\n"
        if text:
            (folder / LEDGER).write_bytes(text.encode())

    @property
    def _content(self) -> dict[str, Any]:
        """What the file holds; of chats nothing where no layer touches them."""
        content = asdict(self)
        if not any(layer.chat for layer in self.applied):
            del content["base_chat"]
            for layer in content["applied"]:
                del layer["chat"]
        return content

    @property
    def files(self) -> list[str]:
        """What the applied grafts were called."""
        return [member.file for layer in self.applied for member in layer.members]

    @property
    def digests(self) -> frozenset[str]:
        return frozenset(digest for layer in self.applied for digest in layer.digests)

    @property
    def heads(self) -> frozenset[str]:
        return frozenset(name for layer in self.applied for name in layer.heads)

    @property
    def removed(self) -> frozenset[str]:
        return frozenset(name for layer in self.applied for name in layer.removed)

    @property
    def prefix(self) -> str:
        """What the body's names begin with: the last layer that says so decides, else the base."""
        return next((layer.prefix for layer in reversed(self.applied) if layer.prefix is not None), self.base_prefix)

    def plus(self, layers: Iterable[Layer]) -> Ledger:
        return replace(self, applied=(*self.applied, *layers))

    def minus(self, layers: Iterable[Layer]) -> Ledger:
        return replace(self, applied=tuple(layer for layer in self.applied if layer not in tuple(layers)))


def write_undo(source: Checkpoint, before: Ledger, after: Ledger, folder: Path) -> None:
    """Keep the base's whole tensors that the layers of `after` replace or remove, under the base's names."""
    wanted = after.heads | after.removed
    # A head that is on already is a layer's, not the base's: the base's waits in the old undo file, if there was one.
    fresh = (wanted - before.heads) & source.places.keys()
    kept = {renamed(source.places[n].raw, source.prefix, before.base_prefix): source.read(n) for n in fresh}
    kept |= {raw: tensor for raw, tensor in _undo(source).items() if raw.removeprefix(before.base_prefix) in wanted}
    if kept:
        write(folder / UNDO, kept, {})


def undone_tensors(source: Checkpoint, before: Ledger, after: Ledger) -> dict[str, Array]:
    """The base's whole tensors that come back when `before` becomes `after`, by their full names then."""
    back = (before.heads | before.removed) - (after.heads | after.removed)
    return {
        renamed(raw, before.base_prefix, after.prefix): tensor
        for raw, tensor in _undo(source).items()
        if raw.removeprefix(before.base_prefix) in back
    }


def _text(path: Path) -> str:
    return path.read_bytes().decode() if path.is_file() else ""


def _undo(source: Checkpoint) -> dict[str, Array]:
    if not (source.path / UNDO).is_file():
        return {}
    file = TensorFile.open(source.path / UNDO)
    return {raw: file.read(raw) for raw in file.entries}


def _read(path: Path) -> Ledger:
    content = read_json(path)
    content.pop("versions", None)
    try:
        layers = tuple(_layer(layer) for layer in content.pop("applied", []))
        return Ledger(**content, applied=layers)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"{path}: not a ledger that skillgraft wrote ({error!r})") from None


def _layer(content: Mapping[str, Any]) -> Layer:
    members = tuple(
        Member(str(m["digest"]), str(m["file"]), float(m["scale"]), int(m["entries"])) for m in content["members"]
    )
    return Layer(
        members,
        tuple(content["heads"]),
        tuple(content["removed"]),
        content["prefix"],
        dict(content["settings"]),
        dict(content.get("chat", {})),
    )


CARD, BASE_CARD = "README.md", "README.base.md"


def changes_architecture(graft: Graft) -> bool:
    """Whether a graft brings heads, takes tensors away or renames the body, so that the config must follow."""
    return bool(graft.heads or "prefix" in graft.info or "removed" in graft.info)


def settings_of(graft: Graft) -> dict[str, Any]:
    """The keys of config.json that a graft sets: what tuned set otherwise than base, and the architecture that its heads need."""
    settings = dict(graft.info.get("config", {}))
    if changes_architecture(graft):
        settings |= {key: graft.info[key] for key in ("architectures", "id2label") if key in graft.info}
    if "id2label" in settings:
        settings["label2id"] = {label: int(key) for key, label in settings["id2label"].items()}
    return settings


def agreed_settings(grafts: Sequence[Graft]) -> dict[str, Any]:
    """The settings of several grafts, without those on which they disagree."""
    every = [settings_of(graft) for graft in grafts]
    return {
        key: value for mine in every for key, value in mine.items() if all(o.get(key, value) == value for o in every)
    }


def write_config(ledger: Ledger, folder: Path) -> None:
    """The base's config.json with what the layers set over it; the base's own text where that changes nothing."""
    if not ledger.base_config:
        return
    before = json.loads(ledger.base_config)
    after = dict(before)
    for layer in ledger.applied:
        after.update(layer.settings)
    text = ledger.base_config if after == before else json.dumps(after, indent=2, ensure_ascii=False) + "\n"
    (folder / "config.json").write_bytes(text.encode())


def write_card(source: Checkpoint, ledger: Ledger, folder: Path) -> None:
    """A model card that says which grafts made this folder, the base's own beside it; the base's again when none is on."""
    original = source.path / BASE_CARD if (source.path / BASE_CARD).is_file() else source.path / CARD
    own = original.is_file() and (original.name == BASE_CARD or not Ledger.of(source).applied)
    if own:
        (folder / (BASE_CARD if ledger.applied else CARD)).write_bytes(original.read_bytes())
    if not ledger.applied:
        return
    lines = ["---", f"base_model: {ledger.base}", "tags: [skillgraft]", "---", "", f"# {ledger.base}, grafted", ""]
    lines += [f"Made with skillgraft {versions().get('skillgraft', '')} from `{ledger.base}`. Grafts on it:", ""]
    lines += ["| graft | entries | scale | SHA-256 |", "|---|---|---|---|"]
    members = [member for layer in ledger.applied for member in layer.members]
    lines += [f"| {m.file} | {m.entries:,} | {m.scale:g} | `{m.digest[:16]}…` |" for m in members]
    (folder / CARD).write_text("\n".join(lines) + "\n", encoding="utf-8")
