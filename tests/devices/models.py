"""Tiny transformers of every shape, with a batch for each; the same numbers whenever they are built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

Batch = dict[str, Tensor]
_SMALL = {
    "vocab_size": 61, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
}  # fmt: skip


def bert(**settings: Any) -> nn.Module:
    return transformers.BertForMaskedLM(transformers.BertConfig(**_SMALL, max_position_embeddings=16, **settings))


def gpt2(**settings: Any) -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=61, n_embd=16, n_layer=2, n_head=2, n_positions=32, bos_token_id=1, eos_token_id=2, **settings
    )
    return transformers.GPT2LMHeadModel(config)


def llama(**settings: Any) -> nn.Module:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**_SMALL, num_key_value_heads=1, **settings))


def t5(**settings: Any) -> nn.Module:
    config = transformers.T5Config(
        vocab_size=61, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, decoder_start_token_id=0, **settings
    )
    return transformers.T5ForConditionalGeneration(config)


def vit(**settings: Any) -> nn.Module:
    rest = {name: value for name, value in _SMALL.items() if name != "vocab_size"}
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(**rest, image_size=8, patch_size=4, num_labels=3, **settings)
    )


MODELS: dict[str, Callable[..., nn.Module]] = {"bert": bert, "gpt2": gpt2, "llama": llama, "t5": t5, "vit": vit}


def built(name: str, **settings: Any) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name](**settings).eval()


def batch_for(name: str) -> Batch:
    draw = torch.Generator().manual_seed(1)
    if name == "vit":
        return {"pixel_values": torch.rand(2, 3, 8, 8, generator=draw), "labels": torch.tensor([2, 0])}
    ids = torch.randint(3, 61, (2, 6), generator=draw)
    mask = torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])  # padded on the left, as generation wants it
    return {"input_ids": ids, "attention_mask": mask, "labels": ids}


def moved(batch: Batch, device: torch.device) -> Batch:
    return {name: tensor.to(device) for name, tensor in batch.items()}
