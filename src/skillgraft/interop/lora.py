"""A graft as a PEFT LoRA adapter whose B · A is float32(after − before), bit for bit.

In each matrix the entries lie on a few rows and columns (`values.cover`); each of these lines is one rank, and every product is
by 1. Alpha equals the rank, so that the scaling is 1. Merged by PEFT, before + delta rounds back to `after` at nearly every
site; how many differ is counted. Heads travel whole, as `modules_to_save`.

    export_lora("skill.safetensors", "BASE", "adapter")                       # refused if the rank exceeds max_rank
    export_lora("skill.safetensors", "BASE", "adapter", drop=True, max_rank=64)

Refused: entries that no linear layer holds (biases, LayerNorms, embeddings) unless `drop`, a rank above `max_rank` unless `drop`,
another base.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from skillgraft.errors import InputError
from skillgraft.files import atomic
from skillgraft.files import tensors as tensor_file
from skillgraft.interop.modules import Modules, opened, refuse_without_form
from skillgraft.values.cover import Lines, entries_of, heaviest_cover, minimum_cover
from skillgraft.values.graft import Graft, GraftLike, graft_of
from skillgraft.values.info import versions
from skillgraft.values.numbers import Array, all_finite, bits, round_once, widen
from skillgraft.values.region import Indices

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
ROOT = "base_model.model."  # what PEFT puts in front of the names of the model that it wraps


@dataclass(frozen=True)
class Adapter:
    """What was written: entries in the adapter, what was dropped and why, and at how many sites a merge differs from `after`.

    `ranks` are by module; `dropped` counts entries without a form by kind; `beyond_rank` counts those that `max_rank` left out,
    and `kept_share` is the share of ‖delta‖² that the adapter holds.
    """

    path: Path
    entries: int
    ranks: Mapping[str, int]
    dropped: Mapping[str, int]
    beyond_rank: int
    kept_share: float
    rounded: int
    heads: tuple[str, ...]

    @property
    def rank(self) -> int:
        """The largest of any module."""
        return max(self.ranks.values(), default=0)


@dataclass(frozen=True)
class MatrixDelta:
    """A graft's change of one matrix: float32(after − before) at its entries, and whether adding it gives `after` again."""

    name: str
    at: Indices
    numbers: Array
    differs: Array

    @classmethod
    def of(cls, graft: Graft, name: str) -> MatrixDelta:
        """The entries whose number changes (0.0 and -0.0 are one number here)."""
        at, before, after = graft.region.sites[name], graft.before[name], graft.written(name)
        wide = np.float64 if before.dtype == np.float64 else np.float32
        old, new = (before, after) if wide is np.float64 else (widen(before), widen(after))
        with np.errstate(over="ignore"):
            numbers = (new - old).astype(np.float32)
        if not all_finite(numbers):
            raise InputError(f"{name}: the change overflows float32, so no adapter can hold it")
        merged = round_once((old + numbers).astype(np.float64), before.dtype)
        moved = numbers != 0
        return cls(name, at[moved], numbers[moved], (bits(merged) != bits(after))[moved])

    @property
    def weight(self) -> float:
        """‖delta‖²."""
        return float(np.square(self.numbers.astype(np.float64)).sum())

    def kept(self, mask: Array) -> MatrixDelta:
        return MatrixDelta(self.name, self.at[mask], self.numbers[mask], self.differs[mask])


def export_lora(
    graft: GraftLike, base: str | Path, out: str | Path, *, drop: bool = False, max_rank: int | None = None
) -> Adapter:
    """Write the graft as a PEFT adapter folder of its base.

    `drop` leaves out what has no LoRA form, and what a rank above `max_rank` would need: there the lines that hold the most of
    ‖delta‖² stay.
    """
    g, target = graft_of(graft), Path(out)
    atomic.check_target(target)
    if max_rank is not None and max_rank < 1:
        raise InputError(f"max_rank is 1 or more, found {max_rank}")
    modules = opened(g, base)
    dropped = refuse_without_form(g, modules, drop=drop, form="LoRA")
    whole = [delta for name in g.region if modules.has_form(name) and len((delta := MatrixDelta.of(g, name)).at)]
    if not whole:
        raise InputError(
            f"none of the graft's {len(g):,} entries changes the matrix of a linear layer: nothing to adapt"
        )
    covers = [_cover(delta, modules, most=max_rank) for delta in whole]
    deltas = [delta.kept(lines.cover(*_entries(delta, modules))) for delta, lines in zip(whole, covers, strict=True)]
    beyond = sum(len(delta.at) for delta in whole) - sum(len(delta.at) for delta in deltas)
    weight = sum(delta.weight for delta in whole)
    share = sum(delta.weight for delta in deltas) / weight if weight else 1.0
    if beyond and not drop:
        raise InputError(_why_too_wide(whole, modules, max_rank, beyond, share))
    tensors: dict[str, Array] = {}
    for delta, lines in zip(deltas, covers, strict=True):
        tensors |= _factors(delta, lines, modules)
    heads = {modules.head_name(name, g): head for name, head in g.heads.items()}
    tensors |= {ROOT + name: head for name, head in heads.items()}
    ranks = {modules.linear[delta.name].path: lines.rank for delta, lines in zip(deltas, covers, strict=True)}
    with atomic.new_folder(target) as folder:
        made = {"format": "pt", "graft": g.digest, "base_fingerprint": g.base_fingerprint}
        tensor_file.write(folder / WEIGHTS, tensors, made)
        write_config(folder, {**modules.settings(g.heads), **_settings(ranks, modules)})
    differ = sum(int(delta.differs.sum()) for delta in deltas)
    return Adapter(target, sum(len(d.at) for d in deltas), ranks, dropped, beyond, share, differ, tuple(g.heads))


def write_config(folder: Path, settings: Mapping[str, Any]) -> None:
    """adapter_config.json."""
    text = json.dumps({"peft_version": versions().get("peft"), **settings}, indent=2, ensure_ascii=False)
    (folder / CONFIG).write_text(text + "\n", encoding="utf-8")


def _entries(delta: MatrixDelta, modules: Modules) -> tuple[Indices, Indices]:
    return entries_of(delta.at, modules.source.shapes[delta.name])


def _cover(delta: MatrixDelta, modules: Modules, *, most: int | None) -> Lines:
    rows, columns = _entries(delta, modules)
    if most is None:
        return minimum_cover(rows, columns)
    return heaviest_cover(rows, columns, np.square(delta.numbers.astype(np.float64)), most=most)


def _why_too_wide(deltas: list[MatrixDelta], modules: Modules, most: int | None, beyond: int, share: float) -> str:
    needed = {delta.name: minimum_cover(*_entries(delta, modules)).rank for delta in deltas}
    widest = max(needed, key=lambda name: needed[name])
    wide = sum(rank > (most or 0) for rank in needed.values())
    return (
        f"{wide} of {len(needed)} matrices need a rank above {most}, {widest} the largest: {needed[widest]}. Allow that "
        f"rank, leave out {beyond:,} entries with drop=True (--drop; {share:.1%} of ‖delta‖² stay), or search within it: "
        f"localize --scope matrices --max-rank {most}"
    )


def _factors(delta: MatrixDelta, lines: Lines, modules: Modules) -> dict[str, Array]:
    """PEFT's A [rank, in] and B [out, rank]. A layer that keeps its matrix as (in, out) has them the other way round."""
    module = modules.linear[delta.name]
    left, right = lines.factors(*_entries(delta, modules), delta.numbers, modules.source.shapes[delta.name])
    b, a = (right.T, left.T) if module.transposed else (left, right)
    return {
        f"{ROOT}{module.path}.lora_A.weight": np.ascontiguousarray(a),
        f"{ROOT}{module.path}.lora_B.weight": np.ascontiguousarray(b),
    }


def _settings(ranks: Mapping[str, int], modules: Modules) -> dict[str, Any]:
    """What makes the scaling 1 in every module: alpha is the rank. `r` is the largest, which is what engines plan room for."""
    largest = max(ranks.values(), default=1)
    patterns = {path: rank for path, rank in ranks.items() if rank != largest}
    transposed = any(module.transposed for module in modules.linear.values() if module.path in ranks)
    return {
        "peft_type": "LORA",
        "r": largest,
        "lora_alpha": largest,
        "rank_pattern": patterns,
        "alpha_pattern": patterns,
        "target_modules": sorted(ranks),
        "fan_in_fan_out": transposed,
        "bias": "none",
        "lora_dropout": 0.0,
        "init_lora_weights": True,
        "use_rslora": False,
        "use_dora": False,
    }
