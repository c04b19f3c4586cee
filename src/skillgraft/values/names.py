"""What a parameter's name tells: its layer, its kind, whether it is a head, and the prefix its model put in front.

Everything here reads names alone, so it works for a folder, a live model and a graft file alike.

    >>> layer_of("encoder.layer.3.attention.self.query.weight")
    'encoder.layer.3'
    >>> kind_of("encoder.layer.3.attention.self.query.weight")
    'query'
    >>> body_prefix(["bert.embeddings.word_embeddings.weight", "bert.encoder.layer.0.output.dense.bias", "score.bias"])
    'bert.'
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

FUSED, FUSED_PAIR = "query, key and value", "key and value"
# In the order of every table. The two fused kinds hold matrices that stand in one tensor; `kinds.parts_of` takes them apart
# where names and shapes suffice, and only what they cannot take apart is counted here.
KINDS: tuple[str, ...] = (
    "LayerNorm", "bias", "query", "key", "value", FUSED, FUSED_PAIR, "attention output", "MLP in", "MLP out", "other",
)  # fmt: skip
# Kinds partition a scope: the first pattern that fits decides, so LayerNorm comes before bias and bias before the
# matrices. Patterns see the lower-case name with a dot on both sides, so that `.q.` is a whole component.
_PATTERNS: tuple[tuple[str, str], ...] = (
    ("LayerNorm", r"\.(?!norm_attn_norm\.)[^.]*norm[^.]*\.|\.(pre_)?ln(\d|_[^.]*)?\."),
    ("bias", r"bias\.$"),
    # Names that would fit a row below and mean something else: state spaces and convolutions, gates, an indexer, bottlenecks.
    ("other", r"\.(mamba|mixer|conv)\.(in|out)_proj\.|attn\.gate_proj\.|\.indexer\.|\.bottleneck\.[a-z]+\.dense\."),
    ("MLP in", r"\.feed_forward\.key\."),
    ("MLP out", r"\.feed_forward\.value\.|\.mlp\.out_proj\."),
    (
        "query",
        r"\.(query|q_proj|q_lin|query_proj|q|q_[ab]_proj|q_attn|attention\.q_head|query_global|(w2e|e2w|e2e|projection)_query"
        r"|linear_q|project_q|wq|self_attention\.experts\.input_linear)\.",
    ),
    ("key", r"\.(key|k_proj|k_lin|key_proj|k|attention\.k_head|key_global|projection_key|linear_k|project_k|wk)\."),
    (
        "value",
        r"\.(value|v_proj|v_lin|value_proj|v|attention\.v_head|value_global|projection_value|linear_v|project_v|wv)\.",
    ),
    (FUSED_PAIR, r"\.(kv|wkv|kv_proj|kv_b_proj|kv_a_proj_with_mqa|keys_values|crossattention\.c_attn)\."),
    (
        FUSED,
        r"\.(qkv|wqkv|w_pack|qkv_proj|att_proj|c_attn|in_proj_weight|in_proj_qkv|query_key_value|queries_keys_values"
        r"|attention\.self\.in_proj)\.",
    ),
    (
        "attention output",
        r"\.(o_proj|out_proj|out_lin|post_attention\.conv1d|self_attention\.experts\.output_linear)\."
        r"|att(n|ention)?\.(output\.(dense|weight)|dense|o|wo|c_proj|proj|projection|projection_layer|output_proj|linear_out"
        r"|post|post_proj|attention_out)\.",
    ),
    (
        "MLP in",
        r"\.(intermediate\.(dense|conv1d)|intermediate_(dense|query\.dense)|(lang|visn)_inter\.dense|c_fc|fc1|fc_in"
        r"|lin1|linear1|linear_fc1|wi|wi_\d|gate_proj|up_proj|gate_up_proj|proj_up|proj_up_gate|weights_in|ffn\.weight"
        r"|dense_h_to_4h|layer_1|ffw_layer_1|(ffn?|mlp)\.0\.weight)\."
        r"|(mlp|moe|ffn|feed_forward)\.(in_proj|proj_in|dense1|linear_1|input_linear|intermediate|w_in|conv_?1|dense\.dense)\."
        r"|\.(feed_forward|experts|experts\.\d+|experts\.mlp)\.(w1|w3|v1)\.",
    ),
    (
        "MLP out",
        r"\.(output\.(dense|conv1d)|output_(dense|query\.dense)|(lang|visn)_output\.dense|mlp\.c_proj|fc2|fc_out"
        r"|lin2|linear2|linear_fc2|wo|down_proj|proj_down|weights_out|ffn_output"
        r"|dense_4h_to_h|layer_2|ffw_layer_2|(ffn?|mlp)\.[23]\.weight)\."
        r"|(mlp|moe|ffn|feed_forward)\.(proj_out|dense2|linear_2|output_linear|output|w_out|conv_?2)\."
        r"|\.(feed_forward|experts|experts\.\d+|experts\.mlp)\.w2\.",
    ),
)
_KIND_PATTERNS = tuple((kind, re.compile(pattern)) for kind, pattern in _PATTERNS)

# Tensors that hold a task's classes: they travel whole. The LM head is not among them: base and tuned share it.
_HEAD = re.compile(
    r"(^|\.)(pooler|sequence_summary|[a-z_]*classifier|score|qa_outputs|classification_head|seq_classif|regressor|logits_proj)\."
)
_LM_HEAD = re.compile(
    r"^(lm_head|lm_loss|cls|predictions|generator[a-z_]*|vocab_[a-z]+|embed_out|output_projection|final_logits_bias|head)(\.|$)"
    r"|^decoder\.(weight|bias)$"
)
_EMBEDDING = re.compile(
    r"(^|\.)([^.]*emb[^.]*|wte|wpe|shared|cls_token|mask_token|class_embedding)(\.|$)", re.IGNORECASE
)
_LAYER = re.compile(r"^(.*?\.)?\d+(?=\.)")


def is_head(name: str) -> bool:
    """Whether the tensor holds a task's classes (pooler, classifier, score …) and so travels whole."""
    return _HEAD.search(name) is not None


def is_lm_head(name: str) -> bool:
    """Whether the tensor belongs to the language-model head."""
    return _LM_HEAD.search(name) is not None


def is_body(name: str) -> bool:
    """Whether the tensor belongs to the pre-trained body: neither a task's head nor the language-model head."""
    return not is_head(name) and not is_lm_head(name)


def is_embedding(name: str) -> bool:
    """Whether the tensor is an embedding table (or what surrounds one)."""
    return _EMBEDDING.search(name) is not None


def in_layers(name: str) -> bool:
    """Whether the tensor sits inside a numbered transformer layer: the default scope."""
    return layer_of(name) != "" and is_body(name) and not is_embedding(name)


@lru_cache(maxsize=65536)
def layer_of(name: str) -> str:
    """The name up to its first number: `encoder.layer.3`; "" outside the layers."""
    found = _LAYER.match(name)
    return found.group(0) if found else ""


@lru_cache(maxsize=65536)
def kind_of(name: str) -> str:
    """One of `KINDS`: what the tensor does inside its layer. Of a fused matrix the name says only that it is one."""
    dotted = f".{name.lower()}."
    # `weight` and `bias` end the name; for matrices the component before them decides.
    for kind, pattern in _KIND_PATTERNS:
        if pattern.search(dotted):
            return kind
    return "other"


def upper_layers(names: Iterable[str]) -> frozenset[str]:
    """The later half of every stack of layers, with the middle one of an odd number: `encoder.layer.3` … of six."""
    stacks: dict[str, list[str]] = {}
    for layer in sorted({layer_of(name) for name in names if in_layers(name)}, key=natural_key):
        stacks.setdefault(layer.rpartition(".")[0], []).append(layer)
    return frozenset(layer for stack in stacks.values() for layer in stack[len(stack) // 2 :])


def body_prefix(names: Iterable[str]) -> str:
    """The leading components that every layer and every embedding share: `bert.` in BertForMaskedLM, "" in BertModel.

    Heads sit outside the prefix, which is how one body is recognised under different heads.
    """
    anchors = [name for name in names if is_body(name) and (layer_of(name) or is_embedding(name))]
    if not any(is_embedding(name) for name in anchors) or not any(layer_of(name) for name in anchors):
        return ""
    # What the first and the last name in order share, all share.
    first, last = min(anchors).split("."), max(anchors).split(".")
    shared = next(
        (place for place, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last))
    )
    shared = min(shared, len(first) - 1, len(last) - 1)  # the anchors must still have something left after it
    # A number is a layer, never a prefix.
    shared = next((place for place, part in enumerate(first[:shared]) if part.isdecimal()), shared)
    return "".join(f"{part}." for part in first[:shared])


def counting_order(name: str) -> tuple[bool, int, str]:
    """Of the names of one tied tensor the first in this order counts: the body's own, the shortest."""
    return not is_body(name), len(name), name


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sorts `layer.2` before `layer.10`: a longer number is a larger one, so no number is too long to compare."""

    def key(part: str) -> tuple[int, int, str]:
        digits = part.lstrip("0")
        return (0, len(digits), digits) if part.isdecimal() else (1, 0, part)

    return tuple(map(key, name.split(".")))
