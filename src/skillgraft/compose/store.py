"""Skills that were learned one after the other, on disk: which base, which tasks in which order, and each task's entries.

    STORE/store.json              the base's name and fingerprint, and the tasks in their order
    STORE/001-sst2.safetensors    one graft per task: the entries that its own training changed, and its heads

Regions are disjoint and a task's file is never written again, so what was learned stays as it was, bit for bit: the model
for task n is the base with the grafts 1 … n on (P1 §5.2, C.3). Memory follows the number of entries.

Refused: another base, a file that is missing or is not the one that was stored, grafts that overlap, two writers at once.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from skillgraft.errors import FormatError, InputError, RunError, WrongBase, did_you_mean, listed
from skillgraft.files import atomic, graft_file, system
from skillgraft.files.regular import CONFIG_BYTES, open_lock, read_text
from skillgraft.folders.apply import WrittenFolder, apply
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.folders.given import Named
from skillgraft.values import strict_json
from skillgraft.values.graft import Graft, total

STORE = "store.json"
LOCK = ".lock"
_OWNER_BYTES = 24  # of a lock: the number of the process that holds it, padded, so that nothing is ever cut off
FORMAT, FORMAT_VERSION = "skillgraft.store", "1"


@dataclass(frozen=True)
class KeptTask:
    """One task in a store: its file, and what must be in it."""

    task: str
    file: str
    digest: str
    entries: int


@dataclass(frozen=True)
class ContinualStore:
    """What a store's `store.json` says; grafts are read, and checked, when they are asked for."""

    path: Path
    base: str
    base_fingerprint: str
    kept: tuple[KeptTask, ...] = ()

    @classmethod
    def open(cls, path: str | Path) -> ContinualStore:
        """The store in this folder."""
        file = Path(path) / STORE
        if not file.is_file():
            raise InputError(f"{path} is not a store: it has no {STORE}; `skillgraft continual add` makes one")
        try:
            return _parsed(Path(path), strict_json.parse(read_text(file, limit=CONFIG_BYTES)))
        except (ValueError, KeyError, TypeError) as error:
            raise FormatError(f"{file}: not what skillgraft wrote ({error}); take it from a backup") from None

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks' names, in the order in which they were learned."""
        return tuple(kept.task for kept in self.kept)

    def own(self, task: str) -> Graft:
        """The entries that this task alone changed, with its heads."""
        return self._read(self.kept[self._place(task)])

    def upto(self, task: str) -> list[Named[Graft]]:
        """The grafts of this task and of all before it, each with its file's name."""
        found: list[Named[Graft]] = []
        for kept in self.kept[: self._place(task) + 1]:
            graft = self._read(kept)
            for earlier in found:
                shared = len(graft.region & earlier.graft.region)
                if shared:
                    raise FormatError(f"{self.path}: {kept.file} and {earlier.file} share {shared} entries")
            found.append(Named(graft, kept.file))
        return found

    def graft(self, task: str) -> Graft:
        """What turns the base into the model for this task: the union up to it, with its own heads (P1 C.3)."""
        named = self.upto(task)
        own = named[-1].graft
        return replace(total([one.graft.without_heads() for one in named]), heads=own.heads, info=own.info)

    def grafts(self) -> list[Named[Graft]]:
        """Every task's graft, each with its file's name."""
        return self.upto(self.tasks[-1]) if self.kept else []

    def use(self, base: str | Path, task: str, out: str | Path) -> WrittenFolder:
        """Write the model for this task as a folder."""
        self.check_base(Checkpoint.open(base))
        named = self.upto(task)
        return apply(base, *named, out=out, head=named[-1].graft)

    def check_base(self, base: Checkpoint) -> None:
        if base.fingerprint != self.base_fingerprint:
            raise WrongBase(
                f"{base.path} (fingerprint {base.fingerprint[:12]}…) is not the base of {self.path}, which is "
                f"{self.base} ({self.base_fingerprint[:12]}…); use that one, or begin another store"
            )

    def keep(self, task: str, graft: Graft) -> ContinualStore:
        """The store with one more task; `store.json` is replaced last, so a killed process changes nothing."""
        if graft.base_fingerprint != self.base_fingerprint:
            raise WrongBase(f"the graft for {task} is of another base than {self.path} ({self.base})")
        file = f"{len(self.kept) + 1:03d}-{file_name(task)}.safetensors"
        # A file that store.json does not list is what a killed process left.
        graft_file.save(graft, self.path / file, overwrite=True)
        more = replace(self, kept=(*self.kept, KeptTask(task, file, graft.digest, len(graft))))
        more.write()
        return more

    def write(self) -> None:
        content = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "base": self.base,
            "base_fingerprint": self.base_fingerprint,
            "tasks": [asdict(kept) for kept in self.kept],
        }
        with atomic.new_file(self.path / STORE, overwrite=True) as temporary:
            temporary.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    def _place(self, task: str) -> int:
        if task not in self.tasks:
            raise InputError(f"{self.path} has no task {task!r}; {did_you_mean(task, self.tasks)}")
        return self.tasks.index(task)

    def _read(self, kept: KeptTask) -> Graft:
        file = self.path / kept.file
        if not file.is_file():
            raise FormatError(
                f"{self.path}: {kept.file}, the graft of task {kept.task}, is missing; take it from a backup"
            )
        graft = graft_file.load(file)
        if graft.digest != kept.digest or graft.base_fingerprint != self.base_fingerprint:
            raise FormatError(
                f"{file} is not the graft that was stored for task {kept.task} ({kept.entries} entries, digest "
                f"{kept.digest[:12]}…), found {len(graft)} entries, digest {graft.digest[:12]}…; take it from a backup"
            )
        return graft


@contextmanager
def writing(path: str | Path, base: Checkpoint) -> Iterator[ContinualStore]:
    """The store, made if it is not there, for this process alone; another one that wants to write is refused meanwhile."""
    folder = Path(path)
    if folder.exists() and not (folder / STORE).is_file() and not _nearly_empty(folder):
        raise InputError(f"{folder} is no store and not empty; choose a new folder for the store")
    atomic.check_target(folder / STORE, overwrite=True)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        if not (folder / STORE).is_file():
            ContinualStore(folder, base.name, base.fingerprint).write()
        store = ContinualStore.open(folder)
        store.check_base(base)
        yield store


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The kernel takes the lock back when its process ends, however it ends: nothing is left to clean up after a kill."""
    descriptor = open_lock(folder / LOCK)
    try:
        owner = system.read_at(descriptor, 64, 0).decode(errors="replace").strip()
        if owner and not owner.isdecimal():
            raise InputError(f"{folder / LOCK} holds something else than a process number; it is no lock: move it away")
        if not system.lock(descriptor, wait=False):
            raise RunError(
                f"{folder} is being written by another process ({owner or 'unknown'}); wait until it is done"
            )
        system.write_some(descriptor, memoryview(f"{os.getpid()}\n".ljust(_OWNER_BYTES).encode()), 0)
        yield
    finally:
        os.close(descriptor)


def _nearly_empty(folder: Path) -> bool:
    """Whether there is nothing but what a process that was killed at the very start leaves."""
    return folder.is_dir() and all(item.name == LOCK or item.name.startswith(f".{STORE}.") for item in folder.iterdir())


def file_name(task: str) -> str:
    """A task's name as part of a file's."""
    return re.sub(r"[^\w.-]+", "-", task)


def _parsed(path: Path, content: Any) -> ContinualStore:
    if not isinstance(content, Mapping) or content["format"] != FORMAT:
        raise ValueError("its format is not skillgraft.store")
    if content["format_version"] != FORMAT_VERSION:
        raise ValueError(f"format version {content['format_version']!r}, this skillgraft reads {FORMAT_VERSION!r}")
    kept = tuple(_kept(one) for one in content["tasks"])
    names = [one.task for one in kept]
    if len(set(names)) < len(names):
        raise ValueError(f"a task is listed twice: {listed(names)}")
    base, fingerprint = content["base"], content["base_fingerprint"]
    if not isinstance(base, str) or not isinstance(fingerprint, str):
        raise ValueError("base and base_fingerprint must be texts")
    return ContinualStore(path, base, fingerprint, kept)


def _kept(content: Any) -> KeptTask:
    kept = KeptTask(**content)
    texts = (kept.task, kept.file, kept.digest)
    if not all(isinstance(text, str) for text in texts) or not isinstance(kept.entries, int):
        raise ValueError(f"task {kept.task!r}: file and digest must be texts, entries a number")
    if Path(kept.file).name != kept.file or len(os.fsencode(kept.file)) > atomic.LONGEST_NAME:
        raise ValueError(f"task {kept.task!r}: {kept.file!r} is not a file of this folder")
    return kept
