"""Kinds go by parts: every entry of every layout labelled by hand, counted one by one, and compared."""

from __future__ import annotations

import doctest
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillgraft.measure.matrices import structure
from skillgraft.report.value_sheets import region_sheet
from skillgraft.values import kinds
from skillgraft.values.kinds import parts_of
from skillgraft.values.names import FUSED, FUSED_PAIR, KINDS, layer_of
from skillgraft.values.region import Region, Scope
from tests.strategies import examples

Q, K, V, O = "query", "key", "value", "attention output"  # noqa: E741
Shapes = dict[str, tuple[int, ...]]


def rows(*spans: tuple[str, int], columns: int) -> list[str]:
    """A label for each entry of a matrix, row by row: so many rows of each kind."""
    return [kind for kind, count in spans for _ in range(count * columns)]


def columns(*spans: tuple[str, int], rows: int) -> list[str]:
    """The same where each kind has so many columns."""
    return [kind for _ in range(rows) for kind, count in spans for _ in range(count)]


# Tensors of one layer, and the label of each entry of each tensor.
LAYOUTS: dict[str, tuple[Shapes, dict[str, list[str]]]] = {
    "Phi-3, as many keys as queries": (
        {"layers.1.self_attn.qkv_proj.weight": (12, 4), "layers.1.self_attn.o_proj.weight": (4, 4)},
        {"layers.1.self_attn.qkv_proj.weight": rows((Q, 4), (K, 4), (V, 4), columns=4)},
    ),
    "Phi-3, grouped queries": (
        {"layers.1.self_attn.qkv_proj.weight": (8, 4), "layers.1.self_attn.o_proj.weight": (4, 4)},
        {"layers.1.self_attn.qkv_proj.weight": rows((Q, 4), (K, 2), (V, 2), columns=4)},
    ),
    "Phi-3, heads wider than the model": (
        {"layers.1.self_attn.qkv_proj.weight": (10, 4), "layers.1.self_attn.o_proj.weight": (4, 6)},
        {"layers.1.self_attn.qkv_proj.weight": rows((Q, 6), (K, 2), (V, 2), columns=4)},
    ),
    "Phi-3, its output outside the scope": (
        {"layers.1.self_attn.qkv_proj.weight": (12, 4)},
        {"layers.1.self_attn.qkv_proj.weight": [FUSED] * 48},
    ),
    "Phi-3, another layer's output": (
        {"layers.1.self_attn.qkv_proj.weight": (8, 4), "layers.2.self_attn.o_proj.weight": (4, 4)},
        {"layers.1.self_attn.qkv_proj.weight": [FUSED] * 32},
    ),
    "CodeGen": (
        {"h.0.attn.qkv_proj.weight": (12, 4), "h.0.attn.out_proj.weight": (4, 4)},
        {"h.0.attn.qkv_proj.weight": [FUSED] * 48},
    ),
    "ModernBERT": (
        {"layers.0.attn.Wqkv.weight": (6, 2), "layers.0.attn.Wo.weight": (2, 2), "layers.0.mlp.Wi.weight": (8, 2)},
        {
            "layers.0.attn.Wqkv.weight": rows((Q, 2), (K, 2), (V, 2), columns=2),
            "layers.0.mlp.Wi.weight": ["MLP in"] * 16,
        },
    ),
    "DBRX": (
        {
            "blocks.0.norm_attn_norm.attn.Wqkv.weight": (6, 4),
            "blocks.0.norm_attn_norm.attn.out_proj.weight": (4, 4),
            "blocks.0.norm_attn_norm.norm_1.weight": (4,),
            "blocks.0.ffn.experts.mlp.v1": (6, 4),
            "blocks.0.ffn.experts.mlp.w2": (6, 4),
            "blocks.0.ffn.router.layer.weight": (2, 4),
        },
        {
            "blocks.0.norm_attn_norm.attn.Wqkv.weight": rows((Q, 4), (K, 1), (V, 1), columns=4),
            "blocks.0.norm_attn_norm.norm_1.weight": ["LayerNorm"] * 4,
            "blocks.0.ffn.experts.mlp.v1": ["MLP in"] * 24,
            "blocks.0.ffn.experts.mlp.w2": ["MLP out"] * 24,
            "blocks.0.ffn.router.layer.weight": ["other"] * 8,
        },
    ),
    "InternLM2, interleaved": (
        {"layers.0.attention.wqkv.weight": (6, 2), "layers.0.attention.wo.weight": (2, 2)},
        {"layers.0.attention.wqkv.weight": [FUSED] * 12},
    ),
    "Baichuan": (
        {"layers.0.self_attn.W_pack.weight": (6, 2), "layers.0.self_attn.o_proj.weight": (2, 2)},
        {"layers.0.self_attn.W_pack.weight": rows((Q, 2), (K, 2), (V, 2), columns=2)},
    ),
    "GPT-2": (
        {"h.3.attn.c_attn.weight": (2, 6), "h.3.attn.c_attn.bias": (6,), "h.3.attn.c_proj.weight": (2, 2)},
        {
            "h.3.attn.c_attn.weight": columns((Q, 2), (K, 2), (V, 2), rows=2),
            "h.3.attn.c_attn.bias": ["bias"] * 6,
        },
    ),
    "GPT-2, c_attn alone": (
        {"h.3.attn.c_attn.weight": (2, 6)},
        {"h.3.attn.c_attn.weight": columns((Q, 2), (K, 2), (V, 2), rows=2)},
    ),
    "GPT-2, cross-attention": (
        {
            "h.0.crossattention.c_attn.weight": (2, 4),
            "h.0.crossattention.q_attn.weight": (2, 2),
            "h.0.crossattention.c_proj.weight": (2, 2),
        },
        {
            "h.0.crossattention.c_attn.weight": columns((K, 2), (V, 2), rows=2),
            "h.0.crossattention.q_attn.weight": [Q] * 4,
        },
    ),
    "GPTBigCode, one key and value": (
        {"h.0.attn.c_attn.weight": (6, 4), "h.0.attn.c_proj.weight": (4, 4)},
        {"h.0.attn.c_attn.weight": rows((Q, 4), (K, 1), (V, 1), columns=4)},
    ),
    "GPTBigCode, interleaved": (
        {"h.0.attn.c_attn.weight": (12, 4), "h.0.attn.c_proj.weight": (4, 4)},
        {"h.0.attn.c_attn.weight": [FUSED] * 48},
    ),
    "nn.MultiheadAttention": (
        {
            "layers.0.self_attn.in_proj_weight": (6, 2),
            "layers.0.self_attn.in_proj_bias": (6,),
            "layers.0.self_attn.out_proj.weight": (2, 2),
        },
        {
            "layers.0.self_attn.in_proj_weight": rows((Q, 2), (K, 2), (V, 2), columns=2),
            "layers.0.self_attn.in_proj_bias": ["bias"] * 6,
        },
    ),
    "vision, wider after a stage": (
        {"stages.0.blocks.1.attn.qkv.weight": (12, 2), "stages.0.blocks.1.attn.proj.weight": (4, 4)},
        {"stages.0.blocks.1.attn.qkv.weight": rows((Q, 4), (K, 4), (V, 4), columns=2)},
    ),
    "BLIP": (
        {"layers.0.self_attn.qkv.weight": (6, 2), "layers.0.self_attn.projection.weight": (2, 2)},
        {"layers.0.self_attn.qkv.weight": rows((Q, 2), (K, 2), (V, 2), columns=2)},
    ),
    "Qwen3.5, linear attention": (
        {"layers.0.linear_attn.in_proj_qkv.weight": (8, 3), "layers.0.linear_attn.out_proj.weight": (3, 4)},
        {"layers.0.linear_attn.in_proj_qkv.weight": rows((Q, 2), (K, 2), (V, 4), columns=3)},
    ),
    "GPT-NeoX, interleaved": (
        {"layers.0.attention.query_key_value.weight": (6, 2), "layers.0.attention.dense.weight": (2, 2)},
        {"layers.0.attention.query_key_value.weight": [FUSED] * 12},
    ),
    "Bloom, interleaved": (
        {"h.0.self_attention.query_key_value.weight": (6, 2), "h.0.self_attention.dense.weight": (2, 2)},
        {"h.0.self_attention.query_key_value.weight": [FUSED] * 12, "h.0.self_attention.dense.weight": [O] * 4},
    ),
    "DeBERTa, interleaved": (
        {"encoder.layer.0.attention.self.in_proj.weight": (6, 2), "encoder.layer.0.attention.output.dense.weight": (2, 2)},
        {"encoder.layer.0.attention.self.in_proj.weight": [FUSED] * 12},
    ),
    "DeepSeek, latent attention": (
        {
            "layers.0.self_attn.q_a_proj.weight": (2, 4),
            "layers.0.self_attn.q_b_proj.weight": (4, 2),
            "layers.0.self_attn.kv_a_proj_with_mqa.weight": (3, 4),
            "layers.0.self_attn.kv_b_proj.weight": (6, 2),
            "layers.0.self_attn.indexer.wq_b.weight": (2, 2),
        },
        {
            "layers.0.self_attn.q_a_proj.weight": [Q] * 8,
            "layers.0.self_attn.q_b_proj.weight": [Q] * 8,
            "layers.0.self_attn.kv_a_proj_with_mqa.weight": [FUSED_PAIR] * 12,
            "layers.0.self_attn.kv_b_proj.weight": [FUSED_PAIR] * 12,
            "layers.0.self_attn.indexer.wq_b.weight": ["other"] * 4,
        },
    ),
    "gate and up in one": (
        {"layers.0.mlp.gate_up_proj.weight": (8, 2), "layers.0.mlp.down_proj.weight": (2, 4)},
        {
            "layers.0.mlp.gate_up_proj.weight": ["MLP in"] * 16,
            "layers.0.mlp.down_proj.weight": ["MLP out"] * 8,
        },
    ),
    "experts in one tensor": (
        {
            "layers.0.mlp.experts.gate_up_proj": (3, 4, 2),
            "layers.0.mlp.experts.gate_up_proj_bias": (3, 4),
            "layers.0.mlp.experts.down_proj": (3, 2, 2),
            "layers.0.mlp.gate.weight": (3, 2),
        },
        {
            "layers.0.mlp.experts.gate_up_proj": ["MLP in"] * 24,
            "layers.0.mlp.experts.gate_up_proj_bias": ["bias"] * 12,
            "layers.0.mlp.experts.down_proj": ["MLP out"] * 12,
            "layers.0.mlp.gate.weight": ["other"] * 6,
        },
    ),
    "Mixtral's experts, one by one": (
        {f"layers.0.block_sparse_moe.experts.7.w{number}.weight": (2, 3) for number in (1, 2, 3)}
        | {"layers.0.block_sparse_moe.gate.weight": (8, 3)},
        {
            "layers.0.block_sparse_moe.experts.7.w1.weight": ["MLP in"] * 6,
            "layers.0.block_sparse_moe.experts.7.w2.weight": ["MLP out"] * 6,
            "layers.0.block_sparse_moe.experts.7.w3.weight": ["MLP in"] * 6,
            "layers.0.block_sparse_moe.gate.weight": ["other"] * 24,
        },
    ),
    "shapes that fit no layout": (
        {
            "a.0.attn.qkv.weight": (7, 2),
            "b.0.attn.qkv.weight": (6,),
            "c.0.attn.qkv.weight": (6, 2),
            "c.0.attn.proj.weight": (6,),
            "d.0.attn.c_attn.weight": (2, 4),
            "d.0.attn.c_proj.weight": (4, 2),
            "e.0.attn.qkv.weight": (5, 2),
            "e.0.attn.proj.weight": (2, 2),
        },
        {
            "a.0.attn.qkv.weight": [FUSED] * 14,
            "b.0.attn.qkv.weight": [FUSED] * 6,
            "c.0.attn.qkv.weight": [FUSED] * 12,
            "d.0.attn.c_attn.weight": [FUSED] * 8,
            "e.0.attn.qkv.weight": [FUSED] * 10,
        },
    ),
}  # fmt: skip


def some(scope: Scope, share: float, seed: int) -> Region:
    draw = np.random.default_rng(seed)
    return Region.from_masks(scope, {name: draw.random(shape) < share for name, shape in scope.shapes.items()})


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("shapes", "labels"), LAYOUTS.values(), ids=LAYOUTS)
def test_counts_are_those_of_labels_written_by_hand(shapes, labels, share):
    region = some(Scope.of("layers", shapes), share, seed=len(shapes))
    assert {name: len(labels[name]) for name in labels} == {name: math.prod(shapes[name]) for name in labels}
    # Tensors without labels of their own are output matrices, whose kind test_names knows.
    expected = Counter[tuple[str, str]]()
    for name, shape in shapes.items():
        label = labels.get(name, [O] * math.prod(shape))
        expected.update((layer_of(name), label[index]) for index in region.sites.get(name, np.empty(0, int)).tolist())
    assert {cell: count for cell, count in region.by_layer_and_kind().items() if count} == expected
    assert list(region.by_kind()) == [kind for kind in KINDS if kind in region.by_kind()]
    for kind, count in region.by_kind().items():
        assert count == sum(number for (_, known), number in expected.items() if known == kind)


@pytest.mark.parametrize(("shapes", "labels"), LAYOUTS.values(), ids=LAYOUTS)
def test_the_parts_cover_what_the_labels_name(shapes, labels):
    for name, label in labels.items():
        found = np.full(shapes[name], "", dtype=object)
        for part in parts_of(name, shapes):
            found[part.within] = part.kind
        assert found.reshape(-1).tolist() == label


# Every pattern of `kinds`, with the outputs that they look for, in layers of their own and in none.
_NAMES = [
    f"{layer}{name}"
    for layer in ("h.0.", "h.10.", "")
    for name in (
        "attn.qkv.weight", "attn.proj.weight", "attn.Wqkv.weight", "attn.Wo.weight", "attn.qkv_proj.weight", "attn.o_proj.weight",
        "attn.in_proj_qkv.weight", "attn.out_proj.weight", "attn.in_proj_weight", "attn.c_attn.weight", "attn.c_proj.weight",
        "crossattention.c_attn.weight", "crossattention.c_proj.weight", "attn.qkv.bias", "ln_1.weight", "mlp.gate_up_proj.weight",
        "attn.query_key_value.weight", "router.weight",
    )
]  # fmt: skip


@st.composite
def fused_regions(draw: st.DrawFn) -> Region:
    """Matrices whose widths often fit each other, and shapes that fit nothing."""
    width = st.sampled_from([0, 1, 2, 3, 4, 6, 8, 12])
    shape = st.one_of(st.tuples(width, width), st.lists(width, max_size=3).map(tuple))
    names = draw(st.lists(st.sampled_from(_NAMES), min_size=1, max_size=8, unique=True))
    scope = Scope.of("all", {name: draw(shape) for name in names})
    return some(scope, draw(st.sampled_from([0.0, 0.2, 1.0])), seed=draw(st.integers(0, 99)))


@examples(300)
@given(region=fused_regions())
def test_kinds_partition_scope_and_region(region: Region) -> None:
    cells, room = region.by_layer_and_kind(), region.scope.by_layer_and_kind()
    assert cells.keys() == room.keys()
    assert sum(cells.values()) == sum(region.by_kind().values()) == len(region)
    assert sum(room.values()) == region.scope.size
    assert Region.full(region.scope).by_layer_and_kind() == room
    for layer, count in region.by_layer().items():
        assert count == sum(number for (where, _), number in cells.items() if where == layer)
    for name, shape in region.scope.shapes.items():
        covered = np.zeros(shape, int)
        for part in parts_of(name, region.scope.shapes):
            covered[part.within if shape else ()] += 1
        assert (covered == 1).all(), "each entry is in one part"


@examples(100)
@given(region=fused_regions())
def test_structure_and_report_count_as_the_region_does(region: Region) -> None:
    found, sheet = structure(region), region_sheet(region, title="where")
    cells, room = region.by_layer_and_kind(), region.scope.by_layer_and_kind()
    for row, layer in enumerate(found.layers):
        for column, kind in enumerate(found.kinds):
            assert found.counts[row, column] == cells.get((layer, kind), 0)
            assert found.sizes[row, column] == room.get((layer, kind), 0)
            cell = sheet.cells[sheet.rows[row], kind]
            assert (cell.value or 0) == cells.get((layer, kind), 0)
    for name, shape in region.scope.shapes.items():
        if len(shape) > 1:
            here = [matrix for matrix in found.matrices if matrix.name == name]
            assert sum(matrix.selected for matrix in here) == len(region.sites.get(name, ()))
            assert [matrix.kind for matrix in here] == [part.kind for part in parts_of(name, region.scope.shapes)]


def test_bare_rows_and_columns_of_a_fused_matrix_are_those_of_its_parts() -> None:
    shapes = {"h.0.attn.c_attn.weight": (2, 6), "h.0.attn.c_proj.weight": (2, 2)}
    region = Region(Scope.of("layers", shapes), {"h.0.attn.c_attn.weight": [0, 1, 8]})
    query, key, value = structure(region).matrices[:3]
    assert (query.kind, query.rows, query.columns, query.empty_rows, query.empty_columns) == (Q, 2, 2, 1, 0)
    assert (key.kind, key.selected, key.empty_rows, key.empty_columns) == (K, 1, 1, 1)
    assert (value.kind, value.selected, value.empty_rows, value.empty_columns) == (V, 0, 2, 2)


def test_the_examples_in_the_docstring_hold() -> None:
    tried = doctest.testmod(kinds)
    assert tried.attempted
    assert not tried.failed
