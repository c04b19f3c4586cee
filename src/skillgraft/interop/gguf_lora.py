"""A graft's exact low-rank form as a GGUF adapter, which llama.cpp (`--lora`) and Ollama (`ADAPTER`) put on a GGUF base.

Factors are float32 and named as llama.cpp names the base's tensors. alpha is 0, which llama.cpp reads as a scaling of 1 for every
rank. Where its converter reorders the rows of queries and keys (Llama and its kin), the same rows of B are reordered. On a
quantised base the adapter adds the exact change to numbers that are rounded.

    export_gguf_lora("skill.safetensors", "BASE", "skill.gguf")

Refused: architectures whose order of numbers in GGUF is not known here, heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from skillgraft.errors import InputError, RunError, did_you_mean, listed
from skillgraft.files import atomic
from skillgraft.interop.low_rank import Adapter, LowRankForm
from skillgraft.interop.modules import Modules
from skillgraft.values.graft import GraftLike, graft_of
from skillgraft.values.numbers import Array


@dataclass(frozen=True)
class GgufFamily:
    """llama.cpp's name of an architecture, and whether its converter interleaves the halves of each query and key head."""

    architecture: str
    interleaved: bool = False


# transformers' model_type → what llama.cpp makes of it. Only families whose conversion keeps or permutes whole rows.
FAMILIES: Mapping[str, GgufFamily] = {
    "llama": GgufFamily("LLAMA", interleaved=True),
    "mistral": GgufFamily("LLAMA", interleaved=True),
    "qwen2": GgufFamily("QWEN2"),
    "qwen3": GgufFamily("QWEN3"),
    "gemma": GgufFamily("GEMMA"),
    "gemma2": GgufFamily("GEMMA2"),
    "gemma3_text": GgufFamily("GEMMA3"),
    "phi3": GgufFamily("PHI3"),
    "gpt2": GgufFamily("GPT2"),
}


def export_gguf_lora(
    graft: GraftLike, base: str | Path, out: str | Path, *, drop: bool = False, max_rank: int | None = None
) -> Adapter:
    """Write the graft as a GGUF adapter; `drop` and `max_rank` as in `export_lora`."""
    try:
        import gguf
    except ImportError:
        raise RunError("a GGUF adapter needs the package gguf: pip install 'skillgraft[gguf]'") from None
    atomic.check_target(Path(out))
    g = graft_of(graft)
    if g.heads:
        raise InputError(f"a GGUF adapter cannot carry heads: {listed(g.heads)}; leave them out with without_heads()")
    form = LowRankForm.of(g, base, drop=drop, max_rank=max_rank)
    family, names = _family(form.parts.modules, gguf)
    config = form.parts.modules.source.config
    tensors: dict[str, Array] = {}
    for module, a, b in form.factors():
        name = names.get_name(f"{module.path}.weight", try_suffixes=(".weight",))
        if name is None:
            raise InputError(
                f"llama.cpp's {family.architecture} has no tensor for {module.path}; leave its entries out"
            )
        tensors[f"{name}.lora_a"] = a
        tensors[f"{name}.lora_b"] = b[_order(name, len(b), config)] if family.interleaved else b
    with atomic.new_file(Path(out)) as temporary:
        writer = gguf.GGUFWriter(temporary, gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH[family.architecture]])
        writer.add_type(gguf.GGUFType.ADAPTER)
        writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
        writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, 0.0)
        writer.add_string("skillgraft.graft", g.digest)
        for name, tensor in sorted(tensors.items()):
            writer.add_tensor(name, tensor)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return Adapter.written(Path(out), form.parts, form)


def _family(modules: Modules, gguf: Any) -> tuple[GgufFamily, Any]:
    """The base's family, and the table of its tensors' names."""
    kind = str(modules.source.config.get("model_type", ""))
    if kind not in FAMILIES:
        raise InputError(
            f"a {kind or 'nameless'} model's numbers have an order in GGUF that is not known here; {did_you_mean(kind, FAMILIES)}"
        )
    family = FAMILIES[kind]
    blocks = next(
        (modules.source.config[key] for key in ("num_hidden_layers", "n_layer") if key in modules.source.config), 0
    )
    return family, gguf.get_tensor_name_map(gguf.MODEL_ARCH[family.architecture], int(blocks))


def _order(name: str, rows: int, config: Mapping[str, Any]) -> Array:
    """Which row of the folder's matrix each row of the GGUF matrix is: the two halves of a head's rows take turns."""
    order = np.arange(rows)
    if not name.endswith(("attn_q.weight", "attn_k.weight")):
        return order
    heads = int(config["num_attention_heads"])
    if name.endswith("attn_k.weight"):
        heads = int(config.get("num_key_value_heads") or heads)
    return order.reshape(heads, 2, rows // heads // 2).swapaxes(1, 2).reshape(rows)
