"""Model folders of safetensors, read lazily: any size, no model code, no torch.

A `Checkpoint` maps prefix-free names to tensors, so that one body is the same under every head: `bert.encoder.layer.0…`
in a BertForMaskedLM folder and `encoder.layer.0…` in a BertModel folder have one name here. Tied weights that a file
stores twice count once.

Refused: quantised weights, names that collide once their prefix is gone, and what `weight_files` refuses.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from skillgraft.errors import InputError
from skillgraft.files.tensors import TensorFile
from skillgraft.folders.gguf import refuse_gguf
from skillgraft.folders.hub import cached_name, folder_at
from skillgraft.folders.weight_files import SINGLE, open_weights
from skillgraft.folders.weight_files import read_json as read_json
from skillgraft.values.names import body_prefix, counting_order, in_layers, is_body
from skillgraft.values.numbers import Array, bits, is_float, round_once, same_bits
from skillgraft.values.region import Indices, Shape

_LONGEST_NAME = 200
CHUNK_BYTES = 4 * 1024 * 1024  # read at once: small enough to stay in memory that is warm


class Tensors(Protocol):
    """What surgery reads: named tensors with shapes and formats, and any stretch of their entries."""

    @property
    def shapes(self) -> Mapping[str, Shape]: ...
    @property
    def dtypes(self) -> Mapping[str, np.dtype[Any]]: ...
    def flat(self, name: str, low: int = 0, high: int | None = None) -> Array: ...


@dataclass(frozen=True)
class MemoryTensors:
    """Tensors that are in memory already, under prefix-free names."""

    arrays: Mapping[str, Array]

    @property
    def shapes(self) -> Mapping[str, Shape]:
        return {name: array.shape for name, array in self.arrays.items()}

    @property
    def dtypes(self) -> Mapping[str, np.dtype[Any]]:
        return {name: array.dtype for name, array in self.arrays.items()}

    def flat(self, name: str, low: int = 0, high: int | None = None) -> Array:
        return self.arrays[name].reshape(-1)[low:high]


@dataclass(frozen=True)
class RoundedTensors:
    """Tensors in other number formats, each number rounded once as it is read. Overflow gives infinities."""

    tensors: Tensors
    dtypes: Mapping[str, np.dtype[Any]]

    @property
    def shapes(self) -> Mapping[str, Shape]:
        return self.tensors.shapes

    def flat(self, name: str, low: int = 0, high: int | None = None) -> Array:
        numbers, wanted = self.tensors.flat(name, low, high), self.dtypes[name]
        if numbers.dtype == wanted:
            return numbers
        if numbers.dtype == np.float64:
            return round_once(numbers, wanted)
        with np.errstate(over="ignore"):  # what overflows is refused with the graft
            return numbers.astype(wanted)


@dataclass(frozen=True)
class ShortenedTensors:
    """Tensors without the last rows of some: `shapes` says how many each has. What is left lies first, so places stay."""

    tensors: Tensors
    shapes: Mapping[str, Shape]

    @property
    def dtypes(self) -> Mapping[str, np.dtype[Any]]:
        return self.tensors.dtypes

    def flat(self, name: str, low: int = 0, high: int | None = None) -> Array:
        end = math.prod(self.shapes[name])
        return self.tensors.flat(name, low, end if high is None else min(high, end))


@dataclass(frozen=True)
class Place:
    """Where a checkpoint keeps a tensor: the file and the name it has there."""

    file: TensorFile
    raw: str


@dataclass(frozen=True)
class Checkpoint:
    """A model folder: prefix-free names → places in its files, and the model's configuration."""

    path: Path
    files: tuple[TensorFile, ...]
    places: Mapping[str, Place]
    prefix: str
    config: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def open(cls, path: str | Path) -> Checkpoint:
        """Read the headers of a folder's weights and its config; no numbers yet."""
        refuse_gguf(Path(path))
        folder = folder_at(path)
        config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
        quantised = config.get("quantization_config")
        if quantised is not None:
            method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
            raise InputError(
                f"{folder} is quantised ({method}); skillgraft needs the original F32, F16 or BF16 weights"
            )
        files = open_weights(folder, config)
        raw = {name: file for file in files for name in file.entries}
        prefix = body_prefix(raw)
        return cls(folder, files, _prefix_free(raw, prefix, folder), prefix, config)

    @property
    def name(self) -> str:
        """What to call this model: its hub name if the config tells, else the folder's name."""
        if cached := cached_name(self.path):
            return cached
        named = self.config.get("_name_or_path")
        if isinstance(named, str) and 0 < len(named) <= _LONGEST_NAME and named.isprintable():
            return self.path.resolve().name if Path(named).is_absolute() else named
        return self.path.resolve().name

    @property
    def sharded(self) -> bool:
        """Whether an index says which file holds what."""
        return self.files[0].path.name != SINGLE

    def under_prefix(self, name: str) -> bool:
        """Whether a tensor's full name begins with the body's prefix."""
        return self.places[name].raw != name

    @cached_property
    def shapes(self) -> Mapping[str, Shape]:
        return {name: place.file.entries[place.raw].shape for name, place in self.places.items()}

    @cached_property
    def dtypes(self) -> Mapping[str, np.dtype[Any]]:
        return {name: place.file.entries[place.raw].dtype for name, place in self.places.items()}

    def flat(self, name: str, low: int = 0, high: int | None = None) -> Array:
        """Entries [low, high) of a tensor."""
        place = self.places[name]
        return place.file.flat(place.raw, low, high)

    def at(self, name: str, sites: Indices) -> Array:
        """The numbers at sorted sites of a tensor."""
        place = self.places[name]
        return place.file.at(place.raw, sites)

    def mapped(self, name: str) -> Array:
        """A whole tensor, flat: a view of its file, for who holds it for as long as a model."""
        return self.places[name].file.mapped(self.places[name].raw)

    def read(self, name: str) -> Array:
        """A whole tensor."""
        return self.flat(name).reshape(self.shapes[name])

    @cached_property
    def format(self) -> np.dtype[Any]:
        """The number format that most entries have."""
        sizes: Counter[np.dtype[Any]] = Counter()
        for name, dtype in self.dtypes.items():
            if is_float(dtype):
                sizes[dtype] += math.prod(self.shapes[name])
        return max(sizes, key=lambda dtype: sizes[dtype], default=np.dtype(np.float32))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all content; see `content_digest`."""
        return content_digest(self)

    @cached_property
    def twins(self) -> Mapping[str, str]:
        """Tied weights that the files store twice: second name → the name that counts."""
        groups: dict[tuple[Any, ...], list[str]] = defaultdict(list)
        for name, shape in self.shapes.items():
            if not in_layers(name) and len(shape) == 2:
                groups[self.dtypes[name], shape].append(name)
        return {twin: name for group in groups.values() for twin, name in _same_tensors(self, group)}

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 that identifies the base's body; see `fingerprint`."""
        return fingerprint(self, without=self.twins)

    def check_unchanged(self) -> None:
        for file in self.files:
            file.check_unchanged()

    @contextmanager
    def steady(self) -> Iterator[None]:
        """For the time of a pass over everything: stretches are mapped where that is safe; see `TensorFile.steady`."""
        with ExitStack() as files:
            for file in self.files:
                files.enter_context(file.steady())
            yield


class OverBase:
    """A base and the file that changes it (an adapter, a patch): both must stay as they are while they are read."""

    base: Checkpoint
    file: TensorFile

    def steady(self) -> AbstractContextManager[None]:
        return self.base.steady()

    def check_unchanged(self) -> None:
        self.base.check_unchanged()
        self.file.check_unchanged()


def fingerprint(tensors: Tensors, *, without: Iterable[str] = ()) -> str:
    """SHA-256 over each body tensor's prefix-free name, format, shape and 64 blocks of 64 bytes at fixed positions.

    Heads, LM heads, whole-number buffers and tied twins do not count, so that one pre-trained body has one fingerprint under
    every architecture that it is saved with. The cost depends on the number of tensors, not on their size.
    """
    sha = hashlib.sha256()
    left_out = set(without)
    for name in sorted(tensors.shapes):
        dtype = tensors.dtypes[name]
        if is_body(name) and is_float(dtype) and name not in left_out:
            sha.update(f"{name} {dtype} {list(tensors.shapes[name])}\n".encode())
            for block in _blocks(tensors, name):
                sha.update(block)
    return sha.hexdigest()


def content_digest(tensors: Tensors) -> str:
    """SHA-256 of every tensor's name, format, shape and bytes: it decides whether earlier work may be taken up again.

    Unlike the fingerprint, which samples, it tells any two contents apart. About a second for each gigabyte.
    """
    sha = hashlib.sha256()
    for name in sorted(tensors.shapes):
        dtype, shape = tensors.dtypes[name], tensors.shapes[name]
        sha.update(f"{name!r} {dtype} {list(shape)}\n".encode())
        for low, high in chunks(math.prod(shape), dtype.itemsize):
            sha.update(bits(tensors.flat(name, low, high)).data)
    return sha.hexdigest()


def _blocks(tensors: Tensors, name: str) -> Iterator[bytes]:
    """64 blocks of 64 bytes, evenly spread from the first to the last byte; a small tensor whole."""
    size, per_block = math.prod(tensors.shapes[name]), 64 // tensors.dtypes[name].itemsize
    if size <= 64 * per_block:
        yield tensors.flat(name).tobytes()
        return
    for block in range(64):
        low = block * (size - per_block) // 63
        yield tensors.flat(name, low, low + per_block).tobytes()


def chunks(size: int, itemsize: int) -> Iterator[tuple[int, int]]:
    """[low, high) stretches of at most 4 MB that cover `size` entries."""
    step = CHUNK_BYTES // itemsize
    for low in range(0, size, step):
        yield low, min(low + step, size)


def same_tensor(a: Tensors, b: Tensors, name: str, other: str | None = None) -> bool:
    """Whether two tensors have the same format, shape and bits; read chunk by chunk, stops at the first difference."""
    other = other or name
    if a.shapes[name] != b.shapes[other] or a.dtypes[name] != b.dtypes[other]:
        return False
    stretches = chunks(math.prod(a.shapes[name]), a.dtypes[name].itemsize)
    return all(same_bits(a.flat(name, low, high), b.flat(other, low, high)) for low, high in stretches)


def take(tensors: Tensors, name: str, at: Indices) -> Array:
    """The numbers at sorted sites of a tensor, read chunk by chunk: a tuned model may compute them as it is read."""
    parts = [np.empty(0, tensors.dtypes[name])]
    for low, high in chunks(math.prod(tensors.shapes[name]), tensors.dtypes[name].itemsize):
        first, last = np.searchsorted(at, (low, high))
        if first < last:
            parts.append(tensors.flat(name, low, high)[at[first:last] - low])
    return np.concatenate(parts)


def renamed(raw: str, old_prefix: str, new_prefix: str) -> str:
    """A tensor's full name when the body's prefix changes; heads outside the body keep theirs.

    Where there is no prefix yet, the name has to tell: of all heads only the pooler is part of the body.
    """
    inside = raw.startswith(old_prefix) if old_prefix else is_body(raw) or raw.startswith("pooler.")
    return new_prefix + raw.removeprefix(old_prefix) if inside else raw


def _prefix_free(raw: Mapping[str, TensorFile], prefix: str, folder: Path) -> dict[str, Place]:
    places: dict[str, Place] = {}
    for name in sorted(raw):
        short = name.removeprefix(prefix)
        if short in places:
            raise InputError(
                f"{folder}: {places[short].raw} and {name} are both {short!r} without the prefix {prefix!r}"
            )
        places[short] = Place(raw[name], name)
    return places


def _same_tensors(tensors: Tensors, group: list[str]) -> Iterator[tuple[str, str]]:
    """(twin, name) pairs among tensors of one shape; the body's own name is the one that counts.

    A sample of each tells most apart; where several look alike whole digests decide, so that the time follows the size.
    """
    alike: dict[bytes, list[str]] = defaultdict(list)
    for name in group:
        alike[hashlib.sha256(b"".join(_blocks(tensors, name))).digest()].append(name)
    for names in alike.values():
        counted: dict[bytes, str] = {}
        for name in sorted(names, key=counting_order) if len(names) > 1 else ():
            first = counted.setdefault(_digest(tensors, name), name)
            if first != name:
                yield name, first


def _digest(tensors: Tensors, name: str) -> bytes:
    sha = hashlib.sha256()
    for low, high in chunks(math.prod(tensors.shapes[name]), tensors.dtypes[name].itemsize):
        sha.update(bits(tensors.flat(name, low, high)).data)
    return sha.digest()
