"""Model folders of safetensors, read lazily: any size, no model code, no torch.

A `Checkpoint` maps prefix-free names to tensors, so that one body is the same under every head: `bert.encoder.layer.0…`
in a BertForMaskedLM folder and `encoder.layer.0…` in a BertModel folder have one name here. Tied weights that a file
stores twice count once.

Refused: pickled weights (with the command that converts them), quantised weights, an index that disagrees with its files,
names that collide once their prefix is gone.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from skillgraft.dtypes import Array, is_float, same_bits
from skillgraft.errors import FormatError, InputError, listed
from skillgraft.names import body_prefix, in_layers, is_body
from skillgraft.region import Shape
from skillgraft.tensor_file import TensorFile

CHUNK_BYTES = 64 * 1024 * 1024
_INDEX = "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_OTHER_WEIGHTS = (*_PICKLES, "*.h5", "*.msgpack", "*.onnx", "*.gguf", "*.tflite", "*.ot")


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
        folder = Path(path)
        config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
        if "quantization_config" in config:
            method = config["quantization_config"].get("quant_method", "unknown method")
            raise InputError(
                f"{folder} is quantised ({method}); skillgraft needs the original F32, F16 or BF16 weights"
            )
        files = tuple(TensorFile.open(file) for file in _weight_files(folder, config))
        raw = {name: file for file in files for name in file.entries}
        prefix = body_prefix(raw)
        return cls(folder, files, _prefix_free(raw, prefix, folder), prefix, config)

    @property
    def name(self) -> str:
        """What to call this model: its hub name if the config tells, else the folder's name."""
        named = self.config.get("_name_or_path", "")
        return named if named and not Path(named).is_absolute() else self.path.resolve().name

    @property
    def sharded(self) -> bool:
        return (self.path / _INDEX).is_file()

    @cached_property
    def shapes(self) -> Mapping[str, Shape]:
        return {name: place.file.entries[place.raw].shape for name, place in self.places.items()}

    @cached_property
    def dtypes(self) -> Mapping[str, np.dtype[Any]]:
        return {name: place.file.entries[place.raw].dtype for name, place in self.places.items()}

    def flat(self, name: str, low: int = 0, high: int | None = None) -> Array:
        """Entries [low, high) of a tensor: a read-only view of the mapped file."""
        place = self.places[name]
        return place.file.flat(place.raw, low, high)

    def read(self, name: str) -> Array:
        """A whole tensor, still a view."""
        return self.flat(name).reshape(self.shapes[name])

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


def _blocks(tensors: Tensors, name: str) -> Iterator[bytes]:
    """64 blocks of 64 bytes, evenly spread from the first to the last byte; a small tensor whole."""
    size = int(np.prod(tensors.shapes[name], dtype=np.int64))
    per_block = 64 // tensors.dtypes[name].itemsize
    if size <= 64 * per_block:
        yield tensors.flat(name).tobytes()
        return
    for block in range(64):
        low = block * (size - per_block) // 63
        yield tensors.flat(name, low, low + per_block).tobytes()


def chunks(size: int, itemsize: int) -> Iterator[tuple[int, int]]:
    """[low, high) stretches of at most 64 MB that cover `size` entries."""
    step = CHUNK_BYTES // itemsize
    for low in range(0, size, step):
        yield low, min(low + step, size)


def same_tensor(a: Tensors, b: Tensors, name: str, other: str | None = None) -> bool:
    """Whether two tensors have the same format, shape and bits; read chunk by chunk, stops at the first difference."""
    other = other or name
    if a.shapes[name] != b.shapes[other] or a.dtypes[name] != b.dtypes[other]:
        return False
    size = int(np.prod(a.shapes[name], dtype=np.int64))
    stretches = chunks(size, a.dtypes[name].itemsize)
    return all(same_bits(a.flat(name, low, high), b.flat(other, low, high)) for low, high in stretches)


def other_weights(folder: Path) -> list[Path]:
    """Weights in other formats that lie in the folder: they would not match patched ones and are never copied."""
    return sorted(file for pattern in _OTHER_WEIGHTS for file in folder.glob(pattern))


def _weight_files(folder: Path, config: Mapping[str, Any]) -> list[Path]:
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise InputError(f"{folder} {what}; expected a model folder with config.json and model.safetensors")
    index = folder / _INDEX
    if index.is_file():
        return _indexed_files(folder, index)
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    if (folder / "adapter_config.json").is_file():
        raise InputError(
            f"{folder} is a PEFT adapter; it can be TUNED, beside the BASE it was trained on, but not a base"
        )
    pickles = [file for pattern in _PICKLES for file in folder.glob(pattern)]
    if pickles:
        raise InputError(_convert_hint(folder, pickles[0], config))
    found = listed(sorted(file.name for file in folder.iterdir())) or "nothing"
    raise InputError(f"{folder} has no model.safetensors and no {_INDEX}; found {found}")


def _convert_hint(folder: Path, pickle: Path, config: Mapping[str, Any]) -> str:
    kind = (config.get("architectures") or ["AutoModel"])[0]
    return (
        f"{folder} holds its weights in {pickle.name}, a pickle: loading one can run any code, so skillgraft never does. "
        f"If you trust it, convert it: python -c \"import transformers as t; t.{kind}.from_pretrained('{folder}')"
        f".save_pretrained('{folder}-safetensors')\""
    )


def _indexed_files(folder: Path, index: Path) -> list[Path]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise FormatError(f"{index}: expected a weight_map from tensor to file")
    names = sorted(set(map(str, weight_map.values())))
    odd = [name for name in names if Path(name).name != name]
    if odd:
        raise FormatError(f"{index}: {listed(odd)} are not plain file names beside it")
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise InputError(f"{folder}: the index names {listed(missing)}, which are not there; is the download complete?")
    held = {tensor: name for name in names for tensor in TensorFile.open(folder / name).entries}
    wrong = sorted(tensor for tensor in held.keys() | weight_map.keys() if held.get(tensor) != weight_map.get(tensor))
    if wrong:
        raise FormatError(f"{index}: disagrees with its files about {listed(wrong)}")
    return [folder / name for name in names]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or an error that names the file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is not valid JSON: {error}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    if not isinstance(content, dict):
        raise FormatError(f"{path}: expected a JSON object")
    return content


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
    """(twin, name) pairs among tensors of one shape; the body's own name is the one that counts."""
    ordered = sorted(group, key=lambda name: (not is_body(name), len(name), name))
    for place, twin in enumerate(ordered):
        for name in ordered[:place]:
            if same_tensor(tensors, tensors, name, twin):
                yield twin, name
                break
