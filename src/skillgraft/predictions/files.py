"""Predictions' files: an .npz of a few arrays of known types and `header`, JSON as bytes; nothing is ever pickled."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from skillgraft.errors import FormatError, InputError
from skillgraft.files import archives, atomic

T = TypeVar("T")


@dataclass(frozen=True)
class Spec:
    """One kind of predictions' file: its version, its arrays, and the keys of its header besides `format`."""

    version: str
    dtypes: Mapping[str, np.dtype[Any]]
    header: tuple[str, ...]


def write_arrays(
    path: str | os.PathLike[str], spec: Spec, arrays: Mapping[str, npt.NDArray[Any]], header: Mapping[str, Any]
) -> Path:
    """Write the file whole or not at all, and return its path as given (nothing is added to the name)."""
    target = Path(path)
    words = np.frombuffer(json.dumps({"format": spec.version, **header}, sort_keys=True).encode(), np.uint8)
    with atomic.new_file(target, overwrite=True) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, header=words, **{name: arrays[name] for name in spec.dtypes})
    return target


def read_arrays(path: str | os.PathLike[str], spec: Spec, made: Callable[..., T]) -> T:
    """`made(**arrays, **header)` of a file; everything is checked before any of it is used."""
    source = Path(path)
    if not source.is_file():
        raise InputError(f"{source}: expected a predictions file (.npz), found no such file; evaluate the model first")
    try:
        arrays = _arrays(source, spec)
        return made(**{name: arrays[name] for name in spec.dtypes}, **_header(arrays["header"], spec))
    except InputError as error:
        raise FormatError(f"{source}: {error}") from error


def arrays_of(path: Path) -> frozenset[str]:
    """The names of a file's arrays, none where it is no such file: what tells its kind."""
    try:
        return archives.names_in(path)
    except (OSError, InputError):
        return frozenset()


def _arrays(source: Path, spec: Spec) -> dict[str, npt.NDArray[Any]]:
    wanted = {**spec.dtypes, "header": np.dtype("u1")}
    try:
        arrays = archives.read_npz(source, list(wanted), others=False)
    except (OSError, InputError) as error:
        raise InputError(f"not a readable predictions file ({error}); evaluate the model again") from error
    for name, array in arrays.items():
        if array.dtype != wanted[name]:
            raise InputError(f"array {name} must have dtype {wanted[name]}, found {array.dtype}")
    return arrays


def _header(header: npt.NDArray[np.uint8], spec: Spec) -> dict[str, Any]:
    keys = ("format", *spec.header)
    try:
        words = json.loads(header.tobytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f"the header is not JSON: {error}") from error
    if not isinstance(words, dict) or set(words) != set(keys):
        raise InputError(f"the header must have the keys {', '.join(keys)}, found {str(words)[:200]}")
    if words.pop("format") != spec.version:
        raise InputError(f"the header's format must be {spec.version}")
    lists = [name for name in words if name not in ("task", "metric", "made_by")]
    if not all(isinstance(words[name], list) for name in lists) or not isinstance(words["made_by"], dict):
        raise InputError(f"the header's {', '.join(lists)} must be a list and its made_by a mapping")
    return words
