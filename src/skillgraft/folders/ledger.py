"""`skillgraft.json`: which grafts a folder carries, and what it takes to undo what cannot be undone entry by entry.

Grafts that overlap were written as one sum and come off together; each such group is one `Layer`. The ledger keeps the
base's own config and prefix, and a layer what it set, so that layers come off in any order: what stays on is the base's with
the rest of the layers over it. What else it takes waits in `skillgraft.undo` (undo.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from skillgraft.errors import FormatError
from skillgraft.files.regular import CONFIG_BYTES, read_text
from skillgraft.folders.beside import copy_file, narrow
from skillgraft.folders.chat import chat_files, check_chat
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.folders.weight_files import read_json
from skillgraft.values.escaping import markdown, yaml
from skillgraft.values.graft import Graft
from skillgraft.values.info import versions
from skillgraft.values.permitted import key_problem, prefix_problem
from skillgraft.values.stream import GraftStream
from skillgraft.values.tails import tail_of, vocabulary_size

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

    def sealed(self, digests: Sequence[str]) -> Layer:
        """The layer with its members' digests in place of their numbers among those that came on together."""
        return replace(self, members=tuple(replace(each, digest=digests[int(each.digest)]) for each in self.members))


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

    def write(self, folder: Path, *, versions: Mapping[str, str], like: Path | None = None) -> None:
        """Write the ledger; with every graft off it is the base's own again, or none."""
        text = self.base_ledger
        if self.applied or (self.made and not text):
            text = json.dumps({**self._content, "versions": dict(versions)}, indent=2, ensure_ascii=False) + "\n"
        if text:
            (folder / LEDGER).write_bytes(text.encode())
            if like is not None:
                narrow(folder / LEDGER, like=like)

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
    def digest_of(self) -> dict[str, str]:
        """What each applied graft was called → its digest."""
        return {member.file: member.digest for layer in self.applied for member in layer.members}

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


def _text(path: Path) -> str:
    return read_text(path, limit=CONFIG_BYTES) if path.is_file() else ""


def _read(path: Path) -> Ledger:
    content = read_json(path)
    content.pop("versions", None)
    try:
        layers = tuple(_layer(layer) for layer in content.pop("applied", []))
        return _checked(Ledger(**content, applied=layers))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise FormatError(f"{path}: not a ledger that skillgraft wrote ({error!r})") from None


def _checked(ledger: Ledger) -> Ledger:
    """Every field of the type that is promised: the file may have been edited, by anybody."""
    texts = (ledger.base, ledger.base_fingerprint, ledger.base_prefix, ledger.base_config, ledger.base_ledger)
    if not all(isinstance(text, str) for text in texts) or not isinstance(ledger.made, dict):
        raise ValueError("base and its fingerprint, prefix, config and ledger must be texts, made an object")
    for prefix in (ledger.base_prefix, *(layer.prefix for layer in ledger.applied if layer.prefix is not None)):
        if problem := prefix_problem(prefix):
            raise ValueError(f"the prefix {prefix!r:.80} {problem}")
    chats = ledger.base_chat
    if not isinstance(chats, dict) or not all(isinstance(text, str) for text in (*chats, *chats.values())):
        raise ValueError("base_chat must hold texts")
    for text in chats.values():
        text.encode("latin-1")  # a file's bytes, one by one
    for layer in ledger.applied:
        check_chat(layer.chat, LEDGER)
    if ledger.base_config and not isinstance(json.loads(ledger.base_config), dict):
        raise ValueError("base_config must be the text of an object")
    return ledger


def _texts(found: Any) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise ValueError(f"expected a list of names, found {found!r:.80}")
    return tuple(found)


def _layer(content: Mapping[str, Any]) -> Layer:
    members = tuple(
        Member(str(m["digest"]), str(m["file"]), float(m["scale"]), int(m["entries"])) for m in content["members"]
    )
    if not all(math.isfinite(member.scale) for member in members):
        raise ValueError("a scale must be a finite number")
    if not isinstance(content["prefix"], str | None):
        raise ValueError("a prefix must be a text")
    return Layer(
        members,
        _texts(content["heads"]),
        _texts(content["removed"]),
        content["prefix"],
        dict(content["settings"]),
        dict(content.get("chat", {})),
    )


CARD, BASE_CARD = "README.md", "README.base.md"


def changes_architecture(graft: Graft | GraftStream) -> bool:
    """Whether a graft brings heads, takes tensors away or renames the body, so that the config must follow."""
    heads = any(tail_of(name) is None for name in graft.heads)
    return bool(heads or "prefix" in graft.info or "removed" in graft.info)


def settings_of(graft: Graft | GraftStream) -> dict[str, Any]:
    """The keys of config.json that a graft sets: what tuned set otherwise than base, and the architecture that its heads need."""
    settings = dict(graft.info.get("config", {}))
    if changes_architecture(graft):
        settings |= {key: graft.info[key] for key in ("architectures", "id2label") if key in graft.info}
    size = vocabulary_size(graft.heads)
    settings |= {"vocab_size": size} if size is not None else {}
    if not key_problem("id2label", settings.get("id2label")):
        settings["label2id"] = {label: int(key) for key, label in settings["id2label"].items()}
    return settings


def agreed_settings(grafts: Sequence[Graft | GraftStream]) -> dict[str, Any]:
    """The settings of several grafts, without those on which they disagree."""
    every = [settings_of(graft) for graft in grafts]
    return {
        key: value for mine in every for key, value in mine.items() if all(o.get(key, value) == value for o in every)
    }


def write_config(ledger: Ledger, folder: Path, *, like: Path) -> None:
    """The base's config.json with what the layers set over it; the base's own text where that changes nothing."""
    if not ledger.base_config:
        return
    before = json.loads(ledger.base_config)
    after = dict(before)
    for layer in ledger.applied:
        after.update(layer.settings)
    text = ledger.base_config if after == before else json.dumps(after, indent=2, ensure_ascii=False) + "\n"
    (folder / "config.json").write_bytes(text.encode())
    narrow(folder / "config.json", like=like / "config.json")


def write_card(source: Checkpoint, ledger: Ledger, folder: Path) -> None:
    """A model card that says which grafts made this folder, the base's own beside it; the base's again when none is on."""
    grafted = bool(Ledger.of(source).applied)
    original = source.path / (BASE_CARD if grafted else CARD)
    if original.is_file():
        copy_file(original, folder / (BASE_CARD if ledger.applied else CARD))
    if not ledger.applied:
        return
    base = markdown(ledger.base)
    lines = ["---", f"base_model: {yaml(ledger.base)}", "tags: [skillgraft]", "---", "", f"# {base}, grafted", ""]
    lines += [f"Made with skillgraft {versions().get('skillgraft', '')} from {base}. Grafts on it:", ""]
    lines += ["| graft | entries | scale | SHA-256 |", "|---|---|---|---|"]
    members = [member for layer in ledger.applied for member in layer.members]
    lines += [f"| {markdown(m.file)} | {m.entries:,} | {m.scale:g} | `{m.digest:.64}` |" for m in members]
    (folder / CARD).write_text("\n".join(lines) + "\n", encoding="utf-8")
