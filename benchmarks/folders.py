"""Synthetic model folders of any size: the names and shapes of a decoder, random numbers (float32 or bfloat16), four shards.

The same layout gives the same base numbers every time. A tuned folder is the base plus noise everywhere, embeddings included. The
noise grows with depth, as movement does in real fine-tuning, so that a search for the largest is not flattered.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from skillgraft.files.tensors import Entry, header_bytes
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.values.graft import Graft
from skillgraft.values.numbers import DTYPES, bits
from skillgraft.values.region import Region, Scope, Shape

_SHARDS = 4
_BLOCK = 1 << 22
_BASE_SPREAD, _MOVEMENT = 0.02, 1e-3
_ITEM_BYTES = 4


@dataclass(frozen=True)
class Layout:
    """Tensor names and shapes of a model, in the order in which its files hold them."""

    shapes: Mapping[str, Shape]

    @property
    def nbytes(self) -> int:
        return _ITEM_BYTES * sum(map(math.prod, self.shapes.values()))


def decoder(total_bytes: int, *, hidden: int, vocabulary: int, experts: int = 0) -> Layout:
    """As many layers as `total_bytes` needs; with `experts`, the first layer also holds one tensor of experts × hidden²."""
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": (vocabulary, hidden)}
    if experts:
        shapes["model.layers.0.mlp.experts.gate_up_proj"] = (experts, hidden, hidden)
    layer = 0
    while layer == 0 or Layout(shapes).nbytes < total_bytes:
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in _layer(hidden).items()}
        layer += 1
    return Layout({**shapes, "model.norm.weight": (hidden,)})


def _layer(hidden: int) -> dict[str, Shape]:
    wide = hidden * 11 // 4
    return {
        "input_layernorm.weight": (hidden,),
        **{f"self_attn.{name}_proj.weight": (hidden, hidden) for name in "qkvo"},
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (wide, hidden),
        "mlp.up_proj.weight": (wide, hidden),
        "mlp.down_proj.weight": (hidden, wide),
    }


def write_folder(
    folder: Path, layout: Layout, *, tuned: bool = False, dtype: str = "F32", movement: float = _MOVEMENT, seed: int = 1
) -> Path:
    """Write the layout as a folder of shards with index, config and tokenizer; `seed` draws the movement."""
    width = DTYPES[dtype].itemsize
    folder.mkdir()
    numbers = {name: number for number, name in enumerate(layout.shapes)}
    weight_map: dict[str, str] = {}
    for place, names in enumerate(_shards(layout)):
        file = f"model-{place + 1:05d}-of-{_SHARDS:05d}.safetensors"
        weight_map |= dict.fromkeys(names, file)
        entries, offset = [], 0
        for name in names:
            nbytes = width * math.prod(layout.shapes[name])
            entries.append(Entry(name, dtype, layout.shapes[name], offset, nbytes))
            offset += nbytes
        with (folder / file).open("wb") as target:
            target.write(header_bytes(entries, {"format": "pt"}))
            for entry in entries:
                noise = movement * (1 + numbers[entry.name] / len(numbers)) if tuned else 0.0
                for block in _blocks(numbers[entry.name], entry.size, noise, seed):
                    target.write(bits(block.astype(DTYPES[dtype], copy=False)).data)
    index = {"metadata": {"total_size": layout.nbytes * width // _ITEM_BYTES}, "weight_map": weight_map}
    _write_json(folder / "model.safetensors.index.json", index)
    _write_json(folder / "config.json", {"architectures": ["LlamaForCausalLM"], "model_type": "llama"})
    vocabulary = {f"token{number}": number for number in range(layout.shapes["model.embed_tokens.weight"][0])}
    _write_json(folder / "tokenizer.json", {"model": {"type": "BPE", "vocab": vocabulary, "merges": []}})
    os.sync()  # nobody is to be timed while these pages are still on their way to the disk
    return folder


def _shards(layout: Layout) -> list[list[str]]:
    """The names in runs of about equal bytes; a tensor belongs to the shard in which it begins."""
    shards: list[list[str]] = [[] for _ in range(_SHARDS)]
    begin = 0
    for name, shape in layout.shapes.items():
        shards[begin * _SHARDS // layout.nbytes].append(name)
        begin += _ITEM_BYTES * math.prod(shape)
    return [shard for shard in shards if shard]


def _blocks(number: int, size: int, movement: float, seed: int) -> Iterator[npt.NDArray[np.float32]]:
    """The numbers of tensor `number`, a block at a time: base, or base plus noise where `movement` is not 0."""
    base, noise = np.random.default_rng([0, number]), np.random.default_rng([seed, number])
    for low in range(0, size, _BLOCK):
        count = min(_BLOCK, size - low)
        block = base.standard_normal(count, np.float32) * np.float32(_BASE_SPREAD)
        if movement:
            block += noise.standard_normal(count, np.float32) * np.float32(movement)
        yield block


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def random_graft(folder: Path, *, density: float) -> Graft:
    """A graft of this density of the layers, its sites spread over all of them."""
    source = Checkpoint.open(folder)
    scope = Scope.select("layers", source.shapes)
    region = Region(scope, random_sites(scope, round(density * scope.size), seed=2))
    before = {name: source.flat(name)[at] for name, at in region.sites.items()}
    after = {name: numbers + np.float32(_MOVEMENT) for name, numbers in before.items()}
    return Graft(region, before, after, base_fingerprint=source.fingerprint)


def random_sites(scope: Scope, count: int, *, seed: int) -> dict[str, npt.NDArray[np.int64]]:
    """Exactly `count` entries in proportion to size, at least one in each tensor, so that every tensor has to be touched."""
    rng = np.random.default_rng(seed)
    sizes = {name: math.prod(shape) for name, shape in scope.shapes.items()}
    counts = {name: max(1, count * size // scope.size) for name, size in sizes.items()}
    largest = max(sizes, key=lambda name: sizes[name])
    counts[largest] += count - sum(counts.values())
    return {name: _distinct(rng, sizes[name], counts[name]) for name in sizes}


def _distinct(rng: np.random.Generator, size: int, count: int) -> npt.NDArray[np.int64]:
    """`count` sorted distinct positions below `size`."""
    chosen = rng.choice(size, count, replace=False, shuffle=False)
    return np.sort(chosen).astype(np.int64)
