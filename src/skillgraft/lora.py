"""A PEFT LoRA adapter folder seen as the tuned model that it makes of its base: W + scaling · B A, computed as it is read.

Refused, by name: DoRA, other PEFT methods, adapted embeddings, tensors that fit nothing in the base.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from skillgraft.checkpoint import Checkpoint, read_json
from skillgraft.dtypes import Array, widen
from skillgraft.errors import InputError, listed
from skillgraft.region import Shape
from skillgraft.tensor_file import TensorFile

_ROOT = "base_model.model."


@dataclass(frozen=True)
class LowRank:
    """One adapted matrix: scaling · B A, transposed for layers that store their weight as (in, out)."""

    a: Array
    b: Array
    scaling: float
    transposed: bool

    def rows(self, low: int, high: int) -> Array:
        """Rows [low, high) of the change, in float32."""
        a, b = widen(self.a), widen(self.b)
        change = (a[:, low:high].T @ b.T) if self.transposed else (b[low:high] @ a)
        return np.asarray(change * np.float32(self.scaling))


@dataclass(frozen=True)
class LoraCheckpoint:
    """Base and adapter together, read as one model."""

    path: Path
    base: Checkpoint
    low_rank: Mapping[str, LowRank]
    whole: Mapping[str, Array]
    prefix: str
    config: Mapping[str, Any]
    twins: Mapping[str, str]

    @classmethod
    def open(cls, folder: Path, base: Checkpoint) -> LoraCheckpoint:
        """Read an adapter folder and match every tensor in it with the base."""
        settings = read_json(folder / "adapter_config.json")
        _refuse_what_is_not_lora(folder, settings)
        weights = folder / "adapter_model.safetensors"
        if not weights.is_file():
            raise InputError(
                f"{folder} has no adapter_model.safetensors; save the adapter with safe_serialization=True"
            )
        file = TensorFile.open(weights)
        low_rank, whole = {}, {}
        for raw in sorted(file.entries):
            name = raw.removeprefix(_ROOT)
            if name.endswith(".lora_A.weight"):
                module = name.removesuffix(".lora_A.weight")
                target = _match(base, f"{module}.weight", folder)
                low_rank[target] = _low_rank(file, raw, module, settings)
                _check_fits(base, target, low_rank[target], folder)
            elif not name.endswith(".lora_B.weight"):
                if ".lora_" in name:
                    raise InputError(
                        f"{folder}: {raw} is an adapted embedding or a LoRA bias, which skillgraft does not merge"
                    )
                whole[_match(base, name, folder, optional=True)] = file.read(raw)
        return cls(folder, base, low_rank, whole, base.prefix, base.config, base.twins)

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def shapes(self) -> Mapping[str, Shape]:
        return {**self.base.shapes, **{name: array.shape for name, array in self.whole.items()}}

    @property
    def dtypes(self) -> Mapping[str, np.dtype[Any]]:
        return {**self.base.dtypes, **{name: array.dtype for name, array in self.whole.items()}}

    def flat(self, name: str, low: int = 0, high: int | None = None) -> Array:
        """Entries [low, high): the adapter's own tensor, or the base's plus the low-rank change, rounded to its format."""
        if name in self.whole:
            return self.whole[name].reshape(-1)[low:high]
        numbers = self.base.flat(name, low, high)
        if name not in self.low_rank:
            return numbers
        columns = self.base.shapes[name][1]
        first, last = low // columns, math.ceil((low + len(numbers)) / columns)
        change = self.low_rank[name].rows(first, last).reshape(-1)[low - first * columns :][: len(numbers)]
        return (widen(numbers) + change).astype(numbers.dtype)

    def read(self, name: str) -> Array:
        return self.flat(name).reshape(self.shapes[name])

    def check_unchanged(self) -> None:
        self.base.check_unchanged()


def _refuse_what_is_not_lora(folder: Path, settings: Mapping[str, Any]) -> None:
    method = settings.get("peft_type", "unknown")
    if method != "LORA":
        raise InputError(
            f"{folder} is a {method} adapter; skillgraft reads LORA. Merge it with peft first (merge_and_unload)"
        )
    if settings.get("use_dora"):
        raise InputError(f"{folder} is a DoRA adapter; merge it with peft first (merge_and_unload)")


def _low_rank(file: TensorFile, raw_a: str, module: str, settings: Mapping[str, Any]) -> LowRank:
    raw_b = raw_a.replace(".lora_A.", ".lora_B.")
    if raw_b not in file.entries:
        raise InputError(f"{file.path}: {raw_a} has no partner {raw_b}")
    a, b = file.read(raw_a), file.read(raw_b)
    rank = a.shape[0]
    alpha = _by_pattern(settings.get("alpha_pattern"), module, settings.get("lora_alpha", rank))
    scaling = alpha / math.sqrt(rank) if settings.get("use_rslora") else alpha / rank
    return LowRank(a, b, scaling, bool(settings.get("fan_in_fan_out")))


def _by_pattern(patterns: Mapping[str, float] | None, module: str, default: float) -> float:
    """PEFT's own rule: the first pattern that matches the module's name or its end."""
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default


def _match(base: Checkpoint, name: str, folder: Path, *, optional: bool = False) -> str:
    """The base's name for an adapter's tensor: the longest ending of it that the base knows."""
    parts = name.removesuffix(".weight").split(".")
    ending = ".weight" if name.endswith(".weight") else ""
    for first in range(len(parts)):
        candidate = ".".join(parts[first:]) + ending
        if candidate in base.places:
            return candidate
    if optional:
        return name
    raise InputError(f"{folder}: {name} fits nothing in {base.path}, which has {listed(list(base.places))}")


def _check_fits(base: Checkpoint, name: str, change: LowRank, folder: Path) -> None:
    rows, columns = change.b.shape[0], change.a.shape[1]
    made = (columns, rows) if change.transposed else (rows, columns)
    if base.shapes[name] != made:
        raise InputError(
            f"{folder}: {name} would change a {list(made)} matrix, the base's is {list(base.shapes[name])}"
        )
