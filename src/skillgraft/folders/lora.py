"""A PEFT LoRA adapter folder seen as the tuned model that it makes of its base: W + scaling · B A, computed as it is read.

Refused, by name: DoRA, other PEFT methods, adapters that also changed the base's own weights (PiSSA and its like), adapted
embeddings and convolutions, tensors that fit nothing in the base.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from skillgraft.errors import FormatError, InputError, listed
from skillgraft.files.tensors import TensorFile
from skillgraft.folders.checkpoint import Checkpoint, OverBase
from skillgraft.folders.weight_files import read_json
from skillgraft.values.names import in_layers, is_head
from skillgraft.values.numbers import Array, widen
from skillgraft.values.region import Shape

_ROOT = "base_model.model."
_WEIGHTS = "adapter_model.safetensors"
_FACTOR_A, _FACTOR_B = ".lora_A.weight", ".lora_B.weight"
# Entries computed at once. The stretches begin at fixed rows, so that an entry has the same bits however it is asked for.
_TILE = 128 * 1024
_LARGEST_SCALE = 1e30
# A matcher's time grows with a power of the repeats: the names of modules are short enough for this many.
_LONGEST_PATTERN, _MOST_REPEATS, _MOST_PATTERNS = 200, 2, 10_000
# Settings that make an adapter more than W + scaling · B A.
_REFUSED = {"use_dora": "DoRA", "layer_replication": "layer-replicating", "trainable_token_indices": "token-training"}
_REWRITES_BASE = ("pissa", "olora", "corda", "loftq")
# What a task's classes are called by transformers, for adapters whose base was saved without a head.
_TASKS = {
    "SEQ_CLS": "ForSequenceClassification",
    "TOKEN_CLS": "ForTokenClassification",
    "QUESTION_ANS": "ForQuestionAnswering",
}


@dataclass(frozen=True)
class LowRank:
    """One adapted matrix: scaling · B A, transposed for layers that store their weight as (in, out)."""

    a: Array
    b: Array
    scaling: float
    transposed: bool

    @property
    def shape(self) -> Shape:
        """Of the matrix that it changes."""
        made = (self.b.shape[0], self.a.shape[1])
        return made[::-1] if self.transposed else made

    def rows(self, low: int, high: int) -> Array:
        """Rows [low, high) of the change, in float32."""
        change = (self.a[:, low:high].T @ self.b.T) if self.transposed else (self.b[low:high] @ self.a)
        return np.asarray(change * np.float32(self.scaling))


@dataclass(frozen=True)
class LoraCheckpoint(OverBase):
    """Base and adapter together, read as one model."""

    path: Path
    base: Checkpoint
    file: TensorFile
    low_rank: Mapping[str, LowRank]
    whole: Mapping[str, Array]
    under: frozenset[str]  # those of `whole` that sit under the body's prefix
    prefix: str
    config: Mapping[str, Any]

    @classmethod
    def open(cls, folder: Path, base: Checkpoint) -> LoraCheckpoint:
        """Read an adapter folder and match every tensor in it with the base."""
        settings = read_json(folder / "adapter_config.json")
        patterns = settings.get("alpha_pattern")
        if isinstance(patterns, dict) and len(patterns) > _MOST_PATTERNS:
            raise FormatError(
                f"{folder}: alpha_pattern has {len(patterns):,} patterns, at most {_MOST_PATTERNS:,} patterns are read"
            )
        _refuse_what_is_not_lora(folder, settings)
        if not (folder / _WEIGHTS).is_file():
            raise InputError(f"{folder} has no {_WEIGHTS}; save the adapter with safe_serialization=True")
        file = TensorFile.open(folder / _WEIGHTS)
        modules = {raw: _module(raw) for raw in sorted(file.entries)}
        for raw in modules:
            _refuse_lonely(file, raw)
        adapted = {raw: _match(base, f"{modules[raw]}.weight", folder) for raw in modules if _FACTOR_A in raw}
        low_rank = {n: _low_rank(file, raw, modules[raw], settings, base.shapes[n]) for raw, n in adapted.items()}
        prefix = _prefix(base, {f"{modules[raw]}.weight": name for raw, name in adapted.items()})
        whole, under = {}, set()
        for raw, name in modules.items():
            if ".lora_" not in raw:
                short = name.removeprefix(prefix)
                whole[_match(base, short, folder, optional=True)] = file.read(raw)
                under |= {short} - {name}
        if not whole:
            prefix = base.prefix  # nothing but the body changes, so the base's own architecture stays
        return cls(folder, base, file, low_rank, whole, frozenset(under), prefix, _config(base, settings, whole))

    def under_prefix(self, name: str) -> bool:
        """Whether a tensor's full name begins with the body's prefix."""
        return name in self.under if name in self.whole else self.base.under_prefix(name)

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def shapes(self) -> Mapping[str, Shape]:
        return {**self.base.shapes, **{name: array.shape for name, array in self.whole.items()}}

    @property
    def dtypes(self) -> Mapping[str, np.dtype[Any]]:
        return {**self.base.dtypes, **{name: array.dtype for name, array in self.whole.items()}}

    @property
    def twins(self) -> Mapping[str, str]:
        """The base's tied copies, but for those that the adapter changes on their own."""
        own = self.low_rank.keys() | self.whole.keys()
        return {twin: name for twin, name in self.base.twins.items() if twin not in own}

    def flat(self, name: str, low: int = 0, high: int | None = None) -> Array:
        """Entries [low, high): the adapter's own tensor or else the base's, plus the low-rank change, rounded to its format."""
        numbers = self.whole[name].reshape(-1)[low:high] if name in self.whole else self.base.flat(name, low, high)
        if name not in self.low_rank or not len(numbers):
            return numbers
        rows, columns = self.low_rank[name].shape
        step = max(1, _TILE // columns)
        result = np.empty_like(numbers)
        for first in range(low // columns // step * step, math.ceil((low + len(numbers)) / columns), step):
            change = self.low_rank[name].rows(first, min(first + step, rows)).reshape(-1)
            begin = first * columns
            start, stop = max(low, begin), min(low + len(numbers), begin + len(change))
            here = slice(start - low, stop - low)
            result[here] = (widen(numbers[here]) + change[start - begin : stop - begin]).astype(numbers.dtype)
        return result

    def read(self, name: str) -> Array:
        return self.flat(name).reshape(self.shapes[name])


def is_plain_lora(folder: Path) -> bool:
    """Whether the adapter is W + scaling · B A and nothing else; what is wrong with such a one is said when it is opened."""
    settings = read_json(folder / "adapter_config.json")
    if settings.get("peft_type") != "LORA" or any(settings.get(key) for key in _REFUSED):
        return _rewrites_base(settings)
    if not (folder / _WEIGHTS).is_file():
        return True
    names = TensorFile.open(folder / _WEIGHTS).entries
    return all(name.endswith((_FACTOR_A, _FACTOR_B)) for name in names if ".lora_" in name) or _rewrites_base(settings)


def _rewrites_base(settings: Mapping[str, Any]) -> bool:
    """Whether training began by changing the base's own weights: a saved adapter does not say how."""
    return str(settings.get("init_lora_weights", "")).lower().startswith(_REWRITES_BASE)


def _module(raw: str) -> str:
    """The name in the model of a low-rank factor's module, or of a whole tensor."""
    # Modules that peft has wrapped keep their own tensors under `base_layer`.
    return re.sub(r"\.lora_[AB]\.weight$", "", raw.removeprefix(_ROOT).replace(".base_layer.", "."))


def _refuse_lonely(file: TensorFile, raw: str) -> None:
    """Every A has its B and every B its A; nothing else may be called lora."""
    for mine, other in ((_FACTOR_A, _FACTOR_B), (_FACTOR_B, _FACTOR_A)):
        partner = raw.removesuffix(mine) + other
        if raw.endswith(mine) and partner not in file.entries:
            raise InputError(f"{file.path}: {raw} has no partner {partner}; save the adapter again")
    if ".lora_" in raw and not raw.endswith((_FACTOR_A, _FACTOR_B)):
        raise InputError(
            f"{file.path}: {raw} is an adapted embedding or a LoRA bias; merge it with peft first (merge_and_unload)"
        )


def _prefix(base: Checkpoint, names: Mapping[str, str]) -> str:
    """What the adapter's model puts in front of the body: its full names against the base's prefix-free ones."""
    found = {full.removesuffix(name) for full, name in names.items() if in_layers(name)}
    return found.pop() if len(found) == 1 else base.prefix


def _refuse_what_is_not_lora(folder: Path, settings: Mapping[str, Any]) -> None:
    method = settings.get("peft_type", "unknown")
    kind = next((kind for key, kind in _REFUSED.items() if settings.get(key)), None)
    if method != "LORA":
        raise InputError(
            f"{folder} is a {method} adapter; skillgraft reads LORA. Merge it with peft first (merge_and_unload)"
        )
    if kind:
        raise InputError(f"{folder} is a {kind} adapter; merge it with peft first (merge_and_unload)")
    if _rewrites_base(settings):
        start = str(settings.get("init_lora_weights")).lower()
        raise InputError(
            f"{folder} began with init_lora_weights={start!r}, which changes the base's own weights; "
            "merge it with peft first (merge_and_unload)"
        )


def _low_rank(file: TensorFile, raw: str, module: str, settings: Mapping[str, Any], shape: Shape) -> LowRank:
    a, b = widen(file.read(raw)), widen(file.read(raw.removesuffix(_FACTOR_A) + _FACTOR_B))
    if a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[1]:
        raise InputError(
            f"{file.path}: {module}: expected A [rank, in] and B [out, rank], found {list(a.shape)} and {list(b.shape)}"
        )
    try:
        alpha = _by_pattern(settings.get("alpha_pattern"), module, settings.get("lora_alpha", a.shape[0]))
        scaling = float(alpha / (math.sqrt(a.shape[0]) if settings.get("use_rslora") else a.shape[0]))
        if not abs(scaling) <= _LARGEST_SCALE:
            raise ValueError(f"{scaling:g} is too large")
    except (TypeError, AttributeError, ValueError, ZeroDivisionError, OverflowError) as error:
        raise FormatError(f"{file.path}: no scale for {module} in adapter_config.json ({error})") from None
    # One adapter may hold both orientations, and its setting is about the last module that peft met: shapes come first.
    flag = bool(settings.get("fan_in_fan_out"))
    for transposed in (flag, not flag):
        change = LowRank(a, b, scaling, transposed)
        if change.shape == shape:
            return change
    made = list(LowRank(a, b, scaling, flag).shape)
    raise InputError(f"{file.path}: {module} would change a {made} matrix, the base's is {list(shape)}")


def _by_pattern(patterns: Mapping[str, float] | None, module: str, default: float) -> float:
    """PEFT's own rule: the first pattern that matches the module's name or its end."""
    for pattern, value in (patterns or {}).items():
        if _pattern(pattern).match(module):
            return value
    return default


@lru_cache(maxsize=_MOST_PATTERNS)
def _pattern(pattern: str) -> re.Pattern[str]:
    """A pattern of the file's, as PEFT uses it. Refused: what could take the matcher more than a moment."""
    repeats = sum(pattern.count(mark) for mark in "*+{")
    nested = re.search(r"\)[*+?{]|\(\?[^:]|\\[1-9]", pattern)
    if len(pattern) > _LONGEST_PATTERN or repeats > _MOST_REPEATS or nested:
        raise ValueError(
            f"the pattern {pattern!r:.60} is not read: at most {_LONGEST_PATTERN} characters and {_MOST_REPEATS} repeats, none "
            "of a group; name the modules instead"
        )
    try:
        return re.compile(rf"(.*\.)?({pattern})$")
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"the pattern {pattern!r:.60} is no regular expression ({error})") from None


def _match(base: Checkpoint, name: str, folder: Path, *, optional: bool = False) -> str:
    """The base's name for an adapter's tensor: the longest ending of it that the base knows."""
    parts = name.split(".")
    for first in range(len(parts)):
        candidate = ".".join(parts[first:])
        if candidate in base.places:
            return candidate
    if optional and not in_layers(name):
        return name
    raise InputError(f"{folder}: {name} fits nothing in {base.path}, which has {listed(list(base.places))}")


def _config(base: Checkpoint, settings: Mapping[str, Any], whole: Mapping[str, Array]) -> Mapping[str, Any]:
    """The base's config, with the classes that an adapter for a task brings along."""
    ending = _TASKS.get(str(settings.get("task_type") or ""), "")
    classes = min((array.shape[0] for name, array in whole.items() if is_head(name) and array.ndim == 2), default=0)
    if not ending or not classes:
        return base.config
    named = base.config.get("architectures")
    family = re.sub(r"(For[A-Z]\w*|LMHeadModel|Model)$", "", str(named[0]) if isinstance(named, list) and named else "")
    labels = base.config.get("id2label")
    if not isinstance(labels, dict) or len(labels) != classes:
        labels = {str(number): f"LABEL_{number}" for number in range(classes)}
    return {**base.config, "architectures": [family + ending], "id2label": labels}
