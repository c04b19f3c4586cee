"""What a step's inputs contain, in few characters: two runs share an artefact exactly when these are equal."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from skillgraft.checkpoint import Checkpoint
from skillgraft.errors import InputError
from skillgraft.region import Scope
from skillgraft.strict_json import canonical
from skillgraft.tasks import Task, load_task
from skillgraft.tasks.sources import origin_of, source_path


def digest(value: Any) -> str:
    """SHA-256 of a JSON value."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def content_of(name: str, value: Any) -> Any:
    """A setting as it enters a step's key: folders and tasks by what is in them, everything else as it is."""
    return CONTENT[name](value) if name in CONTENT and value is not None else value


@lru_cache(maxsize=64)
def base_content(base: str) -> str:
    """A model folder by its fingerprint and its small files."""
    folder = Path(base)
    small = sorted(file for file in folder.glob("*.json") if file.is_file())
    return digest([Checkpoint.open(folder).fingerprint, [[file.name, _bytes(file)] for file in small]])


@lru_cache(maxsize=64)
def scope_of(base: str) -> Scope:
    """The layers of a model folder, from its headers."""
    return Scope.select("layers", Checkpoint.open(base).shapes)


@lru_cache(maxsize=256)
def task_of(name: str) -> Task:
    """A task by its name or file, read once: recipes ask for it a thousand times."""
    return load_task(name)


@lru_cache(maxsize=256)
def task_content(name: str) -> str:
    """A task by its definition and the bytes of its sources; a public dataset by its name.

    A task whose data are not here has a content too: its steps fail when they run, with the reason, and nothing is kept.
    """
    task = task_of(name)
    try:
        origin = origin_of(task)
    except InputError:
        return digest(["not here", task.name])
    sources = [*origin.train, *origin.test, *origin.validation]
    return digest([_plain(dataclasses.replace(task, data=origin, hub=None)), [_source(source) for source in sources]])


def _source(source: str) -> str:
    if source.startswith("hf:"):
        return source
    path = source_path(source)
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return digest([[file.name, _bytes(file)] for file in files])


def _bytes(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _plain(value: Any) -> Any:
    """A definition as JSON, in an order that does not depend on the process. Paths are left to `_source`."""
    if isinstance(value, Task) or dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {name: _plain(each) for name, each in fields.items() if name not in ("train", "test", "validation")}
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, frozenset | set):
        return sorted(map(str, value))
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


CONTENT: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "base": base_content,
        "task": task_content,
        "tasks": lambda names: [task_content(name) for name in names],
    }
)
