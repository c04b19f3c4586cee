"""A graft as a PEFT Supertuning adapter: PEFT's sparse layout, flat indices and float32 values that are added to a matrix.

PEFT gives every module the same share of trainable entries. It is chosen so that the densest matrix has room for its entries; the
others repeat their first index with the value 0, which adds nothing. Only `nn.Linear` has this form.

    export_supertuning("skill.safetensors", "BASE", "adapter")
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from skillgraft.errors import InputError
from skillgraft.files import atomic
from skillgraft.interop.lora import ROOT, write_adapter
from skillgraft.interop.low_rank import Adapter, AdapterDeltas
from skillgraft.values.graft import GraftLike, graft_of
from skillgraft.values.numbers import Array


def export_supertuning(graft: GraftLike, base: str | Path, out: str | Path, *, drop: bool = False) -> Adapter:
    """Write the graft as a PEFT adapter folder of its base; `drop` leaves out what no linear layer holds."""
    atomic.check_target(Path(out))
    parts = AdapterDeltas.of(graft_of(graft), base, drop=drop, form="sparse adapter")
    transposed = [delta.name for delta in parts.deltas if parts.modules.linear[delta.name].transposed]
    if transposed:
        raise InputError(f"{transposed[0]} is a Conv1D, which PEFT's Supertuning does not take; use --to lora")
    sizes = [(math.prod(delta.shape), len(delta.at)) for delta in parts.deltas]
    sparsity = _sparsity(sizes)
    tensors: dict[str, Array] = {}
    for delta, (size, _) in zip(parts.deltas, sizes, strict=True):
        room = _room(size, sparsity) - len(delta.at)
        stem = f"{ROOT}{parts.modules.linear[delta.name].path}.supertuning_"
        tensors[f"{stem}indices"] = np.append(delta.at, np.full(room, delta.at[0])).astype(np.int32)
        tensors[f"{stem}values"] = np.append(delta.numbers, np.zeros(room, np.float32))
    modules = sorted(parts.modules.linear[delta.name].path for delta in parts.deltas)
    settings = {"sparsity": sparsity, "save_precomputed_indices": True, "target_modules": modules}
    with atomic.new_folder(Path(out)) as temporary:
        write_adapter(temporary, parts, tensors, {"peft_type": "SUPERTUNING", **settings})
    return Adapter.written(Path(out), parts)


def _room(size: int, sparsity: float) -> int:
    """How many entries PEFT makes room for in a matrix of this size; its own arithmetic, rounding included."""
    return int(size * (1 - sparsity))


def _sparsity(sizes: list[tuple[int, int]]) -> float:
    """The largest share to leave out with which every matrix has room for its entries."""
    sparsity = 1 - max(count / size for size, count in sizes)
    while any(_room(size, sparsity) < count for size, count in sizes):
        sparsity = math.nextafter(sparsity, 0)
    return sparsity
