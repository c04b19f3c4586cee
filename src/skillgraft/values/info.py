"""How an artefact came about: `Info`, a closed set of items that travel as text in a file's metadata.

The set is closed so that a misspelt item is an error and not a silent loss. `docs/format.md` lists what each means.
"""

from __future__ import annotations

import platform
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Any

from skillgraft.errors import InputError, did_you_mean
from skillgraft.values import strict_json

_PACKAGES = ("skillgraft", "numpy", "ml_dtypes", "torch", "transformers", "accelerate", "peft", "datasets")


@cache
def versions() -> dict[str, str]:
    """Package → version for what is installed here; nothing is imported to find out."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


# Kind of JSON artefact → the `format` it carries. A reader goes by it alone; another version is refused by name.
FORMATS: Mapping[str, str] = MappingProxyType(
    {kind: f"skillgraft {kind} 1" for kind in ("result", "evaluation", "localization", "scales", "map")}
)
# Item → the type its value has. A `str` is stored as it is, everything else as JSON.
ITEMS: Mapping[str, type] = MappingProxyType(
    {
        "base": str,  # the base's name
        "tuned": str,
        "method": str,  # how the region was chosen
        "task": str,
        "labels": list,
        "readout": dict,
        "prefix": str,  # what tuned's architecture puts in front of the body's names
        "body_heads": list,  # heads that sit under that prefix
        "removed": list,  # tensors of base that tuned does not have
        "architectures": list,
        "num_labels": int,
        "id2label": dict,
        "config": dict,  # other settings of tuned's config.json that the base's does not have so
        "chat": dict,  # chat template and stop tokens, where tuned's are not base's
        "recipe": dict,  # the arguments that made it
        "scores": dict,
        "outside_scope": dict,  # tensor → entries that changed but are not in the graft
        "command": str,
        "versions": dict,
    }
)
_OF_TEXTS = frozenset({"labels", "body_heads", "removed", "architectures", "id2label", "versions"})
# What describes a head and the architecture around it: it comes from the graft whose head is taken.
HEAD_ITEMS = ("prefix", "body_heads", "removed", "architectures", "num_labels", "id2label", "labels", "config", "chat")


class Info(Mapping[str, Any]):
    """An immutable mapping of provenance items; equal when the texts are equal."""

    __slots__ = ("_texts",)

    def __init__(self, **items: Any) -> None:
        self._texts = {key: _to_text(key, items[key]) for key in sorted(items) if items[key] is not None}

    @classmethod
    def from_texts(cls, texts: Mapping[str, str]) -> Info:
        """From a file's metadata; anything unknown or of a wrong type is refused."""
        return cls(**{key: _from_text(key, text) for key, text in texts.items()})

    @classmethod
    def agreed(cls, infos: Sequence[Info]) -> Info:
        """The items that all agree on: the provenance of a sum."""
        return cls(
            **{key: infos[0][key] for key in infos[0] if all(i._texts.get(key) == infos[0]._texts[key] for i in infos)}
        )

    def updated(self, **items: Any) -> Info:
        return Info(**{**self, **items})

    @property
    def texts(self) -> dict[str, str]:
        """Every item as the text that a file stores."""
        return dict(self._texts)

    def text(self, key: str) -> str:
        return self._texts.get(key, "")

    def __getitem__(self, key: str) -> Any:
        return _from_text(key, self._texts[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Info) and self._texts == other._texts

    def __hash__(self) -> int:
        return hash(tuple(self._texts.items()))

    def __repr__(self) -> str:
        return f"Info({dict(self)})"


def _wanted(key: str) -> type:
    if key not in ITEMS:
        raise InputError(f"unknown provenance item {key!r}; {did_you_mean(key, ITEMS)}")
    return ITEMS[key]


def _to_text(key: str, value: Any) -> str:
    wanted = _wanted(key)
    if wanted is list and isinstance(value, tuple):
        value = list(value)
    _check_type(key, value, wanted)
    try:
        text = strict_json.canonical(value)
    except ValueError as error:
        raise InputError(f"provenance item {key!r} cannot be written as JSON: {error}") from error
    return str(value) if wanted is str else text


def _from_text(key: str, text: str) -> Any:
    wanted = _wanted(key)
    if wanted is str:
        return text
    try:
        value = strict_json.parse(text)
    except ValueError as error:
        raise InputError(f"provenance item {key!r} is not JSON: {error}") from error
    _check_type(key, value, wanted)
    return value


def _check_type(key: str, value: Any, wanted: type) -> None:
    if not isinstance(value, wanted) or isinstance(value, bool):
        raise InputError(f"provenance item {key!r} must be {wanted.__name__}, found {type(value).__name__}")
    inner: list[Any] = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    if key in _OF_TEXTS and not all(isinstance(each, str) for each in inner):
        raise InputError(f"provenance item {key!r} must hold texts alone, found {reprlib.repr(value)}")
