"""Kinds on the models of transformers: what is left over in each family, and proof that parts do what their kind says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from skillgraft.values.kinds import parts_of
from skillgraft.values.names import FUSED, FUSED_PAIR, layer_of
from skillgraft.values.region import Region, Scope

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

BERT = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12, "vocab_size": 40}
WORDS = {**BERT, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = {**WORDS, "num_key_value_heads": 1}
GPT2 = {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16, "vocab_size": 40}
HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
BART = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 40, "pad_token_id": 0, **HEADS}
IMAGE = {"image_size": 8, "patch_size": 4}
PICTURE = {key: value for key, value in BERT.items() if key != "vocab_size"} | IMAGE
TINY_MOE = {**LLAMA, "num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 4}
LINEAR = {
    "linear_key_head_dim": 4, "linear_value_head_dim": 6, "linear_num_key_heads": 1, "linear_num_value_heads": 2,
    "linear_conv_kernel_dim": 1, "layer_types": ["linear_attention"], "use_cache": False,
}  # fmt: skip
MAMBA = ("A_log", "D", "conv1d.weight", "dt_proj.weight", "in_proj.weight", "out_proj.weight", "x_proj.weight")
LATENT = {"q_lora_rank": 4, "kv_lora_rank": 4, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 4}

# class → settings, and what has no kind of its own in it: by the tensor's name below its layer
LEFT_OVER: dict[str, tuple[dict[str, Any], dict[str, set[str]]]] = {
    "BertModel": (BERT, {}),
    "MPNetModel": (BERT, {}),
    "AlbertModel": ({**BERT, "embedding_size": 4}, {}),
    "DebertaV2Model": (BERT, {}),
    "DebertaModel": (BERT, {FUSED: {"attention.self.in_proj.weight"}}),
    "LongformerModel": ({**BERT, "attention_window": 4}, {}),
    "ModernBertModel": (WORDS, {}),
    "XLNetModel": ({"d_model": 8, "n_layer": 1, "n_head": 2, "d_inner": 12, "vocab_size": 40}, {"other": {"rel_attn.r"}}),
    "GPT2Model": (GPT2, {}),
    "GPTBigCodeModel": ({**GPT2, "multi_query": True}, {}),
    "GPTNeoXModel": (WORDS, {FUSED: {"attention.query_key_value.weight"}}),
    "BloomModel": (
        {"hidden_size": 8, "n_layer": 1, "n_head": 2, "vocab_size": 40},
        {FUSED: {"self_attention.query_key_value.weight"}},
    ),
    "FalconModel": (WORDS, {FUSED: {"self_attention.query_key_value.weight"}}),
    "CodeGenModel": ({**GPT2, "n_embd": 16, "n_head": 4, "rotary_dim": 2}, {FUSED: {"attn.qkv_proj.weight"}}),
    "MptModel": ({"d_model": 8, "n_layers": 1, "n_heads": 2, "vocab_size": 40}, {}),
    "OPTModel": ({**WORDS, "ffn_dim": 12, "word_embed_proj_dim": 8}, {}),
    "GemmaModel": ({**LLAMA, "head_dim": 4}, {}),
    "Gemma2Model": ({**LLAMA, "head_dim": 4}, {}),
    "PhiModel": (LLAMA, {}),
    "Phi3Model": (LLAMA, {}),
    "Qwen3Model": (LLAMA, {}),
    "MixtralModel": (TINY_MOE, {"other": {"mlp.gate.weight"}}),
    "GptOssModel": (TINY_MOE, {"other": {"mlp.router.weight", "self_attn.sinks"}}),
    "JetMoeModel": (
        {**LLAMA, "kv_channels": 4, "num_local_experts": 2, "num_experts_per_tok": 1},
        {
            FUSED_PAIR: {"self_attention.kv_proj.weight"},
            "other": {"mlp.router.layer.weight", "self_attention.experts.router.layer.weight"},
        },
    ),
    "DeepseekV3Model": (
        {**LLAMA, **LATENT, "num_key_value_heads": 2, "n_routed_experts": 2, "first_k_dense_replace": 1},
        {FUSED_PAIR: {"self_attn.kv_a_proj_with_mqa.weight", "self_attn.kv_b_proj.weight"}},
    ),
    "T5Model": (
        {"d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 1, "num_heads": 2, "vocab_size": 40},
        {"other": {"layer.0.SelfAttention.relative_attention_bias.weight"}},
    ),
    "BartModel": (BART, {}),
    "WhisperModel": (BART, {}),
    "ViTModel": (PICTURE, {}),
    "Dinov2Model": (
        {**PICTURE, "use_swiglu_ffn": True}, {"other": {"layer_scale1.lambda1", "layer_scale2.lambda1"}},
    ),
    "SwinModel": (
        {**IMAGE, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 2, "patch_size": 1},
        {
            "other": {
                "blocks.0.attention.relative_position_bias.relative_position_bias_table", "downsample.reduction.weight"
            }
        },
    ),
    "BlipVisionModel": (PICTURE, {}),
    "RwkvModel": (
        {"hidden_size": 8, "num_hidden_layers": 1, "vocab_size": 40},
        {
            "other": {
                "attention.receptance.weight", "attention.time_decay", "attention.time_first", "attention.time_mix_key",
                "attention.time_mix_receptance", "attention.time_mix_value", "feed_forward.receptance.weight",
                "feed_forward.time_mix_key", "feed_forward.time_mix_receptance",
            }
        },
    ),
    "MambaModel": (
        {"hidden_size": 8, "num_hidden_layers": 1, "vocab_size": 40}, {"other": {f"mixer.{name}" for name in MAMBA}}
    ),
}  # fmt: skip


def tiny(class_name: str, settings: dict[str, Any]) -> Any:
    cls = getattr(transformers, class_name)
    return cls(cls.config_class(**settings))


def layers_of(model: Any) -> Scope:
    """The scope of a model's layers, under the names that it has."""
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    return Scope.select("layers", shapes)


@pytest.mark.parametrize(("class_name", "settings", "left"), [(k, *v) for k, v in LEFT_OVER.items()], ids=LEFT_OVER)
def test_what_a_family_has_besides_the_known_kinds(class_name, settings, left):
    with torch.device("meta"):
        scope = layers_of(tiny(class_name, settings))
    found: dict[str, set[str]] = {}
    for name in scope.shapes:
        for part in parts_of(name, scope.shapes):
            if part.kind in (FUSED, FUSED_PAIR, "other"):
                found.setdefault(part.kind, set()).add(name.removeprefix(f"{layer_of(name)}."))
    assert found == left
    full = Region.full(scope)
    assert sum(full.by_kind().values()) == len(full) == scope.size
    assert full.by_layer_and_kind() == scope.by_layer_and_kind()


class Torch(torch.nn.Module):  # type: ignore[misc,name-defined]
    """nn.MultiheadAttention in a layer of torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(40, 8)
        layer = torch.nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.stack = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, input_ids: Any) -> tuple[Any]:
        return (self.stack(self.embed(input_ids)),)


# A model of one layer whose query, key and value are fused and can be taken apart.
SPLIT: dict[str, Callable[[], Any]] = {
    "Phi-3": lambda: tiny("Phi3Model", {**LLAMA, "num_attention_heads": 4, "num_key_value_heads": 2}),
    "GPT-2": lambda: tiny("GPT2Model", GPT2),
    "OpenAI GPT": lambda: tiny("OpenAIGPTModel", GPT2),
    "GPTBigCode": lambda: tiny("GPTBigCodeModel", {**GPT2, "multi_query": True}),
    "ModernBERT": lambda: tiny("ModernBertModel", WORDS),
    "MPT": lambda: tiny("MptModel", {"d_model": 8, "n_layers": 1, "n_heads": 2, "vocab_size": 40}),
    "BLIP": lambda: tiny("BlipVisionModel", PICTURE),
    # Its convolution over time is one token wide, so that a query comes from one token as in the others.
    "Qwen3.5": lambda: tiny("Qwen3_5TextModel", {**LLAMA, **LINEAR, "head_dim": 4}),
    "nn.MultiheadAttention": Torch,
}


@pytest.fixture(params=SPLIT)
def model(request: pytest.FixtureRequest) -> Any:
    """In float64, with numbers of one size everywhere and biases of 0, so that a part of 0 gives zeros."""
    torch.manual_seed(0)
    model = SPLIT[request.param]().double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(std=0.5) if parameter.ndim > 1 else parameter.fill_(0.0 if "bias" in name else 1.0)
    return model


def last_token(model: Any) -> Any:
    """What the model gives for the last token of fixed inputs."""
    draw = torch.Generator().manual_seed(1)
    if isinstance(getattr(model, "config", None), transformers.BlipVisionConfig):
        return model(pixel_values=torch.randn(1, 3, 8, 8, generator=draw, dtype=torch.float64))[0][0, -1]
    return model(input_ids=torch.randperm(37, generator=draw)[None, :6] + 3)[0][0, -1]


def fused(model: Any) -> dict[str, Any]:
    """Kind → (parameter, index) of its part in the only fused matrix of the layers."""
    shapes = layers_of(model).shapes
    found = {name: parts for name in shapes if len(parts := parts_of(name, shapes)) > 1}
    assert len(found) == 1, found
    [(name, parts)] = found.items()
    return {part.kind: (model.get_parameter(name), part.within) for part in parts}


def clear(part: tuple[Any, Any]) -> None:
    parameter, within = part
    parameter[within] = 0.0


def redraw(part: tuple[Any, Any]) -> None:
    parameter, within = part
    parameter[within] = torch.randn_like(parameter[within])


def differs(a: Any, b: Any) -> bool:
    return float((a - b).abs().max()) > 1e-9


@torch.no_grad()
def test_nothing_but_values_counts_where_values_are_zero(model):
    parts = fused(model)
    assert list(parts) == ["query", "key", "value"]
    clear(parts["value"])
    before = last_token(model)
    redraw(parts["query"])
    redraw(parts["key"])
    assert not differs(before, last_token(model))
    redraw(parts["value"])
    assert differs(before, last_token(model))


@torch.no_grad()
def test_keys_do_not_count_where_queries_are_zero(model):
    parts = fused(model)
    clear(parts["query"])
    before = last_token(model)
    redraw(parts["key"])
    assert not differs(before, last_token(model))
    redraw(parts["query"])
    assert differs(before, last_token(model))


def test_only_the_query_of_a_token_counts_for_it_but_all_keys_and_values_do(model):
    """The gradient of one token's output: in queries from that token alone (rank 1), in keys and values from several."""
    last_token(model).square().sum().backward()
    ranks = {}
    for kind, (parameter, within) in fused(model).items():
        ranks[kind] = int(torch.linalg.matrix_rank(parameter.grad[within], rtol=1e-9))
    assert ranks["query"] == 1
    assert ranks["key"] > 1
    assert ranks["value"] > 1
