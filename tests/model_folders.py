"""Tiny model folders: plain arrays with the names of a BERT body, and real models made from transformers configs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from skillgraft.files import tensors as tensor_file
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.folders.given import Named
from skillgraft.values.numbers import BFLOAT16, Array, same_bits

FORMATS: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": BFLOAT16,
    "float16": np.dtype(np.float16),
}
EMBEDDING = "embeddings.word_embeddings.weight"
QUERY = "encoder.layer.0.attention.self.query.weight"
BIAS = "encoder.layer.0.attention.self.query.bias"
DENSE = "encoder.layer.1.output.dense.weight"
BODY = {EMBEDDING: (11, 4), "embeddings.LayerNorm.weight": (4,), QUERY: (4, 4), BIAS: (4,), DENSE: (4, 6)}
CONFIG = {"architectures": ["BertModel"], "model_type": "bert"}

# What makes a model of each family tiny.
SIZES: dict[str, dict[str, Any]] = {
    "bert": {
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 12,
        "max_position_embeddings": 16,
    },
    "distilbert": {"dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 12, "max_position_embeddings": 16},
    "gpt2": {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 16, "bos_token_id": 1, "eos_token_id": 2},
    "t5": {"d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0},
}
SIZES["albert"] = {**SIZES["bert"], "embedding_size": 4}
SIZES["llama"] = {**SIZES["bert"], "num_key_value_heads": 1}
SIZES["vit"] = {**SIZES["bert"], "image_size": 8, "patch_size": 4}


def numbers(shape: tuple[int, ...], *, seed: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def body(seed: int = 0, *, dtype: Any = np.float32, prefix: str = "", **heads: tuple[int, ...]) -> dict[str, Array]:
    """A body under `prefix`, and heads outside it (`classifier__weight=(2, 4)` is classifier.weight)."""
    shapes = {**{prefix + n: s for n, s in BODY.items()}, **{n.replace("__", "."): s for n, s in heads.items()}}
    return {
        name: numbers(shape, seed=100 * seed + place, dtype=dtype) for place, (name, shape) in enumerate(shapes.items())
    }


def moved(tensors: Mapping[str, Array], *names: str, seed: int = 1, share: float = 0.5) -> dict[str, Array]:
    """A copy in which about that share of the entries differs; of these tensors only, if any are named."""
    result = {name: array.copy() for name, array in tensors.items()}
    random = np.random.default_rng(seed)
    for name in names or result:
        chosen = random.random(result[name].shape) < share
        chosen.reshape(-1)[0] = True
        change = random.normal(size=int(chosen.sum()))
        result[name][chosen] = (result[name][chosen].astype(np.float64) + 2 + np.abs(change)).astype(result[name].dtype)
    return result


def write_folder(
    path: Path, tensors: Mapping[str, Array], *, config: Mapping[str, Any] | None = None, shards: int = 1
) -> Path:
    """A model folder, in one file or several with an index."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({**CONFIG, **(config or {})}, indent=2) + "\n")
    if shards == 1:
        tensor_file.write(path / "model.safetensors", tensors, {"format": "pt"})
        return path
    weight_map = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {key: tensors[key] for key in sorted(tensors)[shard::shards]}
        tensor_file.write(path / name, part, {"format": "pt"})
        weight_map |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": sum(a.nbytes for a in tensors.values())}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


def write_pair(root: Path, base: Mapping[str, Array], tuned: Mapping[str, Array], **settings: Any) -> tuple[Path, Path]:
    """base and tuned below `root`; `settings` are tuned's."""
    return write_folder(root / "base", base), write_folder(root / "tuned", tuned, **settings)


def file_names(path: Path) -> set[str]:
    return {item.name for item in path.iterdir()}


def tensors_of(path: Path) -> dict[str, Array]:
    """Full name → tensor, as the files have them."""
    checkpoint = Checkpoint.open(path)
    return {place.raw: checkpoint.read(name) for name, place in checkpoint.places.items()}


def same_weights(a: Path, b: Path) -> bool:
    """Whether two folders hold the same names with the same bits."""
    ours, theirs = tensors_of(a), tensors_of(b)
    return ours.keys() == theirs.keys() and all(same_bits(ours[name], theirs[name]) for name in ours)


def content(path: Path) -> dict[str, str]:
    """Every file below a folder with its SHA-256."""
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def named(graft: Any, file: str = "g.safetensors") -> list[Named]:
    return [Named(graft, file)]


def real_model(class_name: str, path: Path, *, base: Path | None = None, seed: int = 0, **settings: Any) -> Path:
    """Save a tiny transformers model: fresh, or `base` loaded into this class and moved a little in every parameter."""
    import torch
    import transformers

    torch.manual_seed(seed)
    cls = getattr(transformers, class_name)
    shard, dtype = settings.pop("max_shard_size", "1GB"), settings.pop("dtype", torch.float32)
    if base is None:
        family = cls.config_class.model_type
        words = {} if family == "vit" else {"vocab_size": 40, "pad_token_id": 0}
        model = cls(cls.config_class(**{**words, **SIZES[family], **settings}))
    else:
        model = cls.from_pretrained(base, ignore_mismatched_sizes=True, **settings)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    model.to(dtype).save_pretrained(path, max_shard_size=shard)
    return path


def outputs(auto_class: str, path: Path) -> Any:
    """The model's first output for fixed inputs, loaded as a user would."""
    import torch
    import transformers

    model = getattr(transformers, auto_class).from_pretrained(path).eval()
    torch.manual_seed(0)
    if model.config.model_type == "vit":
        inputs = {"pixel_values": torch.randn(2, 3, 8, 8, dtype=model.dtype)}
    else:
        inputs = {"input_ids": torch.randint(3, 40, (2, 7))}
        if model.config.is_encoder_decoder and "Sequence" not in auto_class:
            inputs["decoder_input_ids"] = torch.randint(3, 40, (2, 5))
        elif model.config.is_encoder_decoder:
            inputs["input_ids"][:, -1] = model.config.eos_token_id
    with torch.no_grad():
        return model(**inputs)[0]
