"""Embeddings of texts and images: a sentence encoder's pooled state, or CLIP's projected towers; always of length 1."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from skillgraft.errors import InputError
from skillgraft.opening.source import Source
from skillgraft.readouts.readout import Batch
from skillgraft.readouts.rows import model_inputs, pixel_values
from skillgraft.readouts.words import pretrained

Embed = Callable[[nn.Module, Batch], Tensor]
_KNOWN_MODULES = ("Transformer", "Pooling", "Normalize")


def _mean(states: Tensor, mask: Tensor) -> Tensor:
    weights = mask.unsqueeze(-1).to(states.dtype)
    return (states * weights).sum(1) / weights.sum(1)


def _first(states: Tensor, _mask: Tensor) -> Tensor:
    return states[:, 0]


def _max(states: Tensor, mask: Tensor) -> Tensor:
    return states.masked_fill(mask.unsqueeze(-1) == 0, torch.finfo(states.dtype).min).amax(1)


POOLING: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {"mean": _mean, "cls": _first, "max": _max}
# The keys of sentence-transformers' 1_Pooling/config.json. Dividing by √length instead of length changes no direction.
_POOLING_KEYS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
}


def sentences(model: nn.Module, batch: Batch, *, pooling: str) -> Tensor:
    """The pooled last hidden state of an encoder."""
    states = wide(model(**model_inputs(batch)).last_hidden_state)
    return nn.functional.normalize(POOLING[pooling](states, batch["attention_mask"]), dim=-1)


def clip_texts(model: nn.Module, batch: Batch) -> Tensor:
    """The text tower of CLIP or SigLIP with its projection."""
    return _projected(pretrained(model).get_text_features(**model_inputs(batch)))


def clip_images(model: nn.Module, batch: Batch) -> Tensor:
    """The vision tower of CLIP or SigLIP with its projection."""
    return _projected(pretrained(model).get_image_features(pixel_values=pixel_values(model, batch)))


def first_token(model: nn.Module, batch: Batch) -> Tensor:
    """The state that a vision transformer collects in its first token."""
    states: Tensor = model(pixel_values=pixel_values(model, batch)).last_hidden_state
    if states.ndim != 3:
        shape = list(states.shape)
        raise InputError(f"expected a vision transformer's states (images, tokens, width), found {shape}; use linear")
    return nn.functional.normalize(wide(states[:, 0]), dim=-1)


def clip_scale(model: nn.Module) -> float:
    """By how much CLIP multiplies its cosines. SigLIP also adds a number, the same for every label, which changes nothing."""
    return float(pretrained(model).logit_scale.detach().exp())


def _projected(output: Any) -> Tensor:
    # Some versions of transformers give the tensor itself, others an output that holds it.
    features: Tensor = getattr(output, "pooler_output", output)
    return nn.functional.normalize(wide(features), dim=-1)


def wide(states: Tensor) -> Tensor:
    """In float32 at least: a cosine in bfloat16 has eight bits, too few to tell classes apart."""
    return states.to(torch.promote_types(states.dtype, torch.float32))


def pooling_of(source: Source) -> str:
    """How the sentence encoder pools, from the files of sentence-transformers; the mean where there are none."""
    _check_modules(source)
    path = source.file("1_Pooling/config.json")
    if path is None:
        return "mean"
    stated = source.json("1_Pooling/config.json")
    modes = {value for key, value in stated.items() if key == "pooling_mode"}
    modes |= {
        _POOLING_KEYS.get(key, key)
        for key, value in stated.items()
        if key.startswith("pooling_mode_") and value is True
    }
    if len(modes) != 1 or not modes <= POOLING.keys():
        found = ", ".join(map(str, sorted(modes, key=str))) or "none"
        raise InputError(f"{path}: the text-head readout pools by one of {', '.join(POOLING)}; found {found}")
    return str(modes.pop())


def _check_modules(source: Source) -> None:
    """Refuses an encoder that does more after pooling (a dense layer), which transformers does not load."""
    modules = source.json("modules.json", default=[])
    more = [one["path"] for one in modules if str(one["type"]).rpartition(".")[2] not in _KNOWN_MODULES]
    if more:
        raise InputError(f"{source.name}: its sentence embedding has modules that are not supported: {', '.join(more)}")
