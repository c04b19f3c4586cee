"""A graft as a PEFT LoRA adapter whose B · A is float32(after − before), bit for bit.

Alpha equals the rank in every module, so that the scaling is 1. Merged by PEFT, before + delta rounds back to `after` at most
sites; how many differ is counted. A second adapter, the remainder, holds what is missing there: merged after the first, it gives
`after` everywhere. Heads travel whole, as `modules_to_save`. vLLM takes the folder as it is, where no heads are in it and the
rank is at most 512.

    export_lora("skill.safetensors", "BASE", "adapter")                       # refused if the rank exceeds max_rank
    export_lora("skill.safetensors", "BASE", "adapter", drop=True, max_rank=64)
    export_lora("skill.safetensors", "BASE", "adapter", remainder=True)       # and adapter/remainder, if a merge needs it
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from skillgraft.files import atomic
from skillgraft.files import tensors as tensor_file
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.interop.low_rank import Adapter, AdapterDeltas, LowRankForm
from skillgraft.interop.modules import Modules
from skillgraft.values.graft import Graft, GraftLike, graft_of
from skillgraft.values.info import versions
from skillgraft.values.names import in_layers
from skillgraft.values.numbers import Array
from skillgraft.values.region import Region, Scope

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
REMAINDER = "remainder"  # an adapter of that name, in the folder where PEFT itself keeps a second one
ROOT = "base_model.model."  # what PEFT puts in front of the names of the model that it wraps


def export_lora(
    graft: GraftLike, base: str | Path, out: str | Path, *, drop: bool = False, max_rank: int | None = None,
    remainder: bool = False,
) -> Adapter:  # fmt: skip
    """Write the graft as a PEFT adapter folder of its base.

    `drop` leaves out what has no LoRA form, and what a rank above `max_rank` would need: there the lines that hold the most of
    ‖delta‖² stay. `remainder` writes the second adapter that makes a merge exact, into the folder `remainder` of `out`.
    """
    atomic.check_target(Path(out))
    form = LowRankForm.of(graft_of(graft), base, drop=drop, max_rank=max_rank)
    rest = form.remainder if remainder else None
    with atomic.new_folder(Path(out)) as temporary:
        _write(temporary, form)
        if rest:
            _write(temporary / REMAINDER, rest)
    made = Adapter.written(Path(out), form.parts, form)
    if not rest:
        return made
    mended = sum(int((~delta.misses).sum()) for delta in rest.parts.deltas)
    return replace(made, rounded=made.rounded - mended, remainder_rank=max(rest.ranks.values()))


def _write(folder: Path, form: LowRankForm) -> None:
    tensors: dict[str, Array] = {}
    for module, a, b in form.factors():
        tensors |= {f"{ROOT}{module.path}.lora_A.weight": a, f"{ROOT}{module.path}.lora_B.weight": b}
    linear = form.parts.modules.linear
    turned = any(linear[delta.name].transposed for delta in form.parts.deltas)
    write_adapter(folder, form.parts, tensors, _settings(form.ranks, transposed=turned))


def export_nothing(base: str | Path, out: str | Path) -> None:
    """An adapter that adds 0 in one linear layer: what stands for the base where a server mixes rows with and without adapters.

    vLLM 0.32 on a CPU gives rows without one the adapter in its last place.
    """
    source = Checkpoint.open(base)
    nothing = Graft(Region(Scope.select("all", source.shapes), {}), {}, {}, base_fingerprint=source.fingerprint)
    modules = Modules.of(source, nothing)
    name = next(name for name in modules.linear if modules.has_form(name) and in_layers(name))
    module, shape = modules.linear[name], source.shapes[name]
    rows, columns = shape[::-1] if module.transposed else shape
    stem = f"{ROOT}{module.path}.lora_"
    tensors = {
        f"{stem}A.weight": np.zeros((1, columns), np.float32),
        f"{stem}B.weight": np.zeros((rows, 1), np.float32),
    }
    settings = _settings({module.path: 1}, transposed=module.transposed)
    with atomic.new_folder(Path(out)) as temporary:
        write_adapter(temporary, AdapterDeltas(nothing, modules, (), {}), tensors, settings)


def write_adapter(
    folder: Path, parts: AdapterDeltas, tensors: Mapping[str, Array], settings: Mapping[str, Any]
) -> None:
    """The files of an adapter folder: its tensors with the graft's heads, and adapter_config.json."""
    every = {**tensors, **{ROOT + name: head for name, head in parts.heads.items()}}
    whole = {"peft_version": versions().get("peft"), **parts.modules.settings(parts.graft.heads), **settings}
    made = {"format": "pt", "graft": parts.graft.digest, "base_fingerprint": parts.graft.base_fingerprint}
    folder.mkdir(exist_ok=True)
    tensor_file.write(folder / WEIGHTS, every, made)
    (folder / CONFIG).write_text(json.dumps(whole, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _settings(ranks: Mapping[str, int], *, transposed: bool) -> dict[str, Any]:
    """What makes the scaling 1 in every module: alpha is the rank. `r` is the largest, which is what engines plan room for."""
    largest = max(ranks.values())
    patterns = {path: rank for path, rank in ranks.items() if rank != largest}
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
