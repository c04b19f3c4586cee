"""Logits at positions: the same as the full computation, for every kind of masked and causal model."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.func import functional_call, jvp

from skillgraft.readouts.words import logits_at
from tests.readouts.making import SMALL, made

MASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "BertForMaskedLM": ("BertConfig", SMALL),
    "RobertaForMaskedLM": ("RobertaConfig", SMALL),
    "AlbertForMaskedLM": ("AlbertConfig", {**SMALL, "embedding_size": 8}),
    "DistilBertForMaskedLM": ("DistilBertConfig", {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32}),
    "DebertaV2ForMaskedLM": ("DebertaV2Config", {**SMALL, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    "ElectraForMaskedLM": ("ElectraConfig", {**SMALL, "embedding_size": 8}),
    "ModernBertForMaskedLM": ("ModernBertConfig", SMALL),
}
CAUSAL: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT2LMHeadModel": ("GPT2Config", {"n_embd": 16, "n_layer": 2, "n_head": 2}),
    "LlamaForCausalLM": ("LlamaConfig", SMALL),
    "OPTForCausalLM": (
        "OPTConfig",
        {**{k: v for k, v in SMALL.items() if k != "intermediate_size"}, "ffn_dim": 32, "word_embed_proj_dim": 16},
    ),
    "GPTNeoXForCausalLM": ("GPTNeoXConfig", SMALL),
}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}


def model_of(kind: str) -> Any:
    config, sizes = {**MASKED, **CAUSAL}[kind]
    built = getattr(transformers, config)(vocab_size=40, max_position_embeddings=32, **sizes, **TOKENS)
    built._attn_implementation = "eager"
    return made(kind, built)


def batch() -> dict[str, Tensor]:
    ids = torch.arange(3, 30).view(3, 9)
    mask = torch.ones_like(ids)
    ids[1, 5:], mask[1, 5:] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("kind", [*MASKED, *CAUSAL])
def test_equals_the_full_computation_and_its_gradient(kind: str) -> None:
    model, inputs, positions = model_of(kind), batch(), torch.tensor([[2, 7], [4, 0], [8, 8]])
    full = model(**inputs).logits[torch.arange(3)[:, None], positions]
    few = logits_at(model, inputs, positions)
    torch.testing.assert_close(few, full, atol=1e-5, rtol=1e-5)
    weights = list(model.parameters())
    gradients = [torch.autograd.grad(out.square().sum(), weights, allow_unused=True) for out in (full, few)]
    for one, other in zip(*gradients, strict=True):
        if one is not None:
            torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)
    assert not model.base_model._forward_hooks


class Reading(nn.Module):
    """What `functional_call` needs: a module whose forward pass reads the logits."""

    def __init__(self, model: nn.Module, positions: Tensor) -> None:
        super().__init__()
        self.model = model
        self.positions = positions

    def forward(self, **inputs: Tensor) -> Tensor:
        return logits_at(self.model, inputs, self.positions)


@pytest.mark.parametrize("kind", ["BertForMaskedLM", "GPT2LMHeadModel"])
def test_works_under_functional_call_and_forward_derivatives(kind: str) -> None:
    reading = Reading(model_of(kind), torch.tensor([[2], [4], [8]]))
    weights = {name: parameter.detach().double() for name, parameter in reading.named_parameters()}
    reading.double()
    steps = {name: torch.full_like(weight, 1e-3) for name, weight in weights.items()}

    def output(values: dict[str, Tensor]) -> Tensor:
        return functional_call(reading, values, kwargs=batch())

    _, derivative = jvp(output, (weights,), (steps,))
    near = [{name: weight + h * steps[name] for name, weight in weights.items()} for h in (1e-2, -1e-2)]
    estimate = (output(near[0]) - output(near[1])) / 2e-2
    torch.testing.assert_close(derivative, estimate, atol=1e-5, rtol=1e-3)


def test_the_hook_goes_when_the_model_fails() -> None:
    model = model_of("BertForMaskedLM")
    with pytest.raises(IndexError):
        logits_at(model, {"input_ids": torch.tensor([[999]])}, torch.tensor([[0]]))
    assert not model.base_model._forward_hooks


def test_finds_the_model_inside_a_wrapper() -> None:
    inner = model_of("BertForMaskedLM")

    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = inner

        def forward(self, **inputs: Tensor) -> Any:
            return self.module(**inputs)

    positions = torch.tensor([[2], [4], [8]])
    assert torch.equal(logits_at(Wrapper(), batch(), positions), logits_at(inner, batch(), positions))


def test_finds_the_model_inside_an_adapter() -> None:
    from peft import LoraConfig, get_peft_model

    inner, positions = model_of("BertForMaskedLM"), torch.tensor([[2], [4], [8]])
    plain = logits_at(inner, batch(), positions)
    adapted = get_peft_model(inner, LoraConfig(r=2, target_modules=["query"]))
    assert torch.equal(logits_at(adapted, batch(), positions), plain)  # a new adapter changes nothing yet
