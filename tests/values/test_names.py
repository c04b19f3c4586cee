"""What names tell: kinds, layers, heads, prefixes, on the names of real architectures."""

from __future__ import annotations

import pytest

from skillgraft.values.names import (
    FUSED,
    FUSED_PAIR,
    KINDS,
    body_prefix,
    in_layers,
    is_body,
    is_embedding,
    is_head,
    kind_of,
    layer_of,
    natural_key,
    upper_layers,
)

# (name, layer, kind)
PARAMETERS = [
    ("encoder.layer.3.attention.self.query.weight", "encoder.layer.3", "query"),
    ("encoder.layer.3.attention.self.query.bias", "encoder.layer.3", "bias"),
    ("encoder.layer.11.attention.self.key.weight", "encoder.layer.11", "key"),
    ("encoder.layer.0.attention.self.value.weight", "encoder.layer.0", "value"),
    ("encoder.layer.0.attention.output.dense.weight", "encoder.layer.0", "attention output"),
    ("encoder.layer.0.attention.output.LayerNorm.weight", "encoder.layer.0", "LayerNorm"),
    ("encoder.layer.0.attention.output.LayerNorm.bias", "encoder.layer.0", "LayerNorm"),
    ("encoder.layer.0.intermediate.dense.weight", "encoder.layer.0", "MLP in"),
    ("encoder.layer.0.output.dense.weight", "encoder.layer.0", "MLP out"),
    ("layers.7.self_attn.q_proj.weight", "layers.7", "query"),
    ("layers.7.self_attn.o_proj.weight", "layers.7", "attention output"),
    ("layers.7.mlp.gate_proj.weight", "layers.7", "MLP in"),
    ("layers.7.mlp.down_proj.weight", "layers.7", "MLP out"),
    ("layers.7.input_layernorm.weight", "layers.7", "LayerNorm"),
    ("h.5.attn.c_attn.weight", "h.5", FUSED),
    ("h.5.attn.c_attn.bias", "h.5", "bias"),
    ("h.5.crossattention.c_attn.weight", "h.5", FUSED_PAIR),
    ("h.5.crossattention.c_proj.weight", "h.5", "attention output"),
    ("h.5.attn.c_proj.weight", "h.5", "attention output"),
    ("h.5.mlp.c_fc.weight", "h.5", "MLP in"),
    ("h.5.mlp.c_proj.weight", "h.5", "MLP out"),
    ("h.5.ln_1.weight", "h.5", "LayerNorm"),
    ("encoder.block.2.layer.0.SelfAttention.q.weight", "encoder.block.2", "query"),
    ("encoder.block.2.layer.0.SelfAttention.o.weight", "encoder.block.2", "attention output"),
    ("encoder.block.2.layer.1.DenseReluDense.wi_0.weight", "encoder.block.2", "MLP in"),
    ("encoder.block.2.layer.1.DenseReluDense.wo.weight", "encoder.block.2", "MLP out"),
    ("transformer.layer.4.attention.out_lin.weight", "transformer.layer.4", "attention output"),
    ("transformer.layer.4.ffn.lin2.weight", "transformer.layer.4", "MLP out"),
    ("visual_model.encoder.layers.0.self_attn.v_proj.weight", "visual_model.encoder.layers.0", "value"),
    ("layers.0.attention.dense.weight", "layers.0", "attention output"),
    ("h.0.self_attention.dense.weight", "h.0", "attention output"),
    ("layers.0.self_attn.dense.weight", "layers.0", "attention output"),
    ("encoder.layer.0.attention.attn.o.weight", "encoder.layer.0", "attention output"),
    ("encoder.layer.0.crossattention.output.dense.weight", "encoder.layer.0", "attention output"),
    ("blocks.0.attn.proj.weight", "blocks.0", "attention output"),
    ("layers.0.attn.Wo.weight", "layers.0", "attention output"),
    ("layers.0.mlp.Wo.weight", "layers.0", "MLP out"),
    ("layers.0.feed_forward.intermediate_dense.weight", "layers.0", "MLP in"),
    ("layers.0.feed_forward.output_dense.weight", "layers.0", "MLP out"),
    ("layers.0.feed_forward.w2.weight", "layers.0", "MLP out"),
    ("layers.0.mlp.out_proj.weight", "layers.0", "MLP out"),
    ("encoder.layer.0.mlp.weights_in.weight", "encoder.layer.0", "MLP in"),
    ("layer.0.rel_attn.o", "layer.0", "attention output"),
    ("layer.0.rel_attn.r", "layer.0", "other"),
    # The same last component, another meaning: state spaces, gates, RWKV's channel mixing, a bottleneck's own input.
    ("layers.0.mixer.out_proj.weight", "layers.0", "other"),
    ("layers.0.mamba.in_proj.weight", "layers.0", "other"),
    ("layers.0.conv.out_proj.weight", "layers.0", "other"),
    ("layers.0.self_attn.gate_proj.weight", "layers.0", "other"),
    ("blocks.0.feed_forward.key.weight", "blocks.0", "MLP in"),
    ("blocks.0.feed_forward.value.weight", "blocks.0", "MLP out"),
    ("encoder.layer.0.bottleneck.attention.dense.weight", "encoder.layer.0", "other"),
    ("blocks.0.norm_attn_norm.attn.out_proj.weight", "blocks.0", "attention output"),
    ("embeddings.word_embeddings.weight", "", "other"),
    ("embeddings.LayerNorm.weight", "", "LayerNorm"),
]


@pytest.mark.parametrize(("name", "layer", "kind"), PARAMETERS, ids=[name for name, _, _ in PARAMETERS])
def test_layer_and_kind(name, layer, kind):
    assert layer_of(name) == layer
    assert kind_of(name) == kind
    assert kind in KINDS
    assert in_layers(name) == bool(layer)


@pytest.mark.parametrize(
    "name",
    [
        "classifier.weight",
        "bert.pooler.dense.bias",
        "score.weight",
        "qa_outputs.bias",
        "pre_classifier.weight",
        "classifier.dense.weight",
        "roberta.encoder_classifier.weight",
        "classification_head.out_proj.weight",
    ],
)
def test_heads(name):
    assert is_head(name)
    assert not is_body(name)
    assert not in_layers(name)


@pytest.mark.parametrize(
    "name", ["lm_head.weight", "cls.predictions.bias", "lm_head", "vocab_projector.bias", "embed_out.weight"]
)
def test_a_language_model_head_is_neither_head_nor_body(name):
    assert not is_head(name)
    assert not is_body(name)


@pytest.mark.parametrize(
    "name",
    ["wte.weight", "shared.weight", "embed_tokens.weight", "bert.embeddings.position_embeddings.weight", "cls_token"],
)
def test_embeddings(name):
    assert is_embedding(name)
    assert is_body(name)
    assert not in_layers(name)


@pytest.mark.parametrize("name", ["scores.weight", "encoder.layer.0.scoreboard.weight", "headway.3.weight"])
def test_names_that_only_look_like_heads(name):
    assert is_body(name)


@pytest.mark.parametrize("prefix", ["", "bert.", "model.", "base_model.model.bert."])
def test_body_prefix(prefix):
    body = ["embeddings.word_embeddings.weight", "encoder.layer.0.query.weight", "encoder.layer.1.query.weight"]
    assert body_prefix([prefix + name for name in body] + ["classifier.weight", "cls.predictions.bias"]) == prefix


@pytest.mark.parametrize(
    "names",
    [
        [],
        ["bert.encoder.layer.0.query.weight"],
        ["bert.embeddings.word_embeddings.weight"],
        ["a.embed.weight", "b.layer.0.weight"],
        ["0.embed.weight", "0.layer.1.weight"],
    ],
)
def test_no_prefix_without_proof(names):
    assert body_prefix(names) == ""


def test_natural_order():
    names = [
        "layer.10.b",
        "layer.2.b",
        "",
        "layer.2.a",
        "layer",
        "layer.010.a",
        "layer.x",
        "layer.²",
        f"layer.{'9' * 5000}",
    ]
    expected = ["layer.2.a", "layer.2.b", "layer.010.a", "layer.10.b", f"layer.{'9' * 5000}"]
    assert [name for name in sorted(names, key=natural_key) if name in expected] == expected


def test_upper_layers_are_the_later_half_of_every_stack():
    def stack(prefix, count):
        return [f"{prefix}.{number}.mlp.fc1.weight" for number in range(count)]

    assert upper_layers(stack("h", 12)) == {f"h.{number}" for number in range(6, 12)}
    assert upper_layers(stack("h", 3)) == {"h.1", "h.2"}
    towers = upper_layers([*stack("text_model.layers", 4), *stack("vision_model.layers", 2), "score.weight"])
    assert towers == {"text_model.layers.2", "text_model.layers.3", "vision_model.layers.1"}
    assert upper_layers(["embeddings.word_embeddings.weight"]) == frozenset()
