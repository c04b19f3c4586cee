"""config.json of base and tuned beside each other: what travels with a graft, what says nothing, what cannot be lifted out.

    {"id2label": …, "transformers_version": …, "rms_norm_eps": …}
      travels        changes no output            refused: no number of the model says it

Different versions of transformers spell the same setting differently; a key that only one side has is no difference where its
value is what the other side means by leaving it out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from skillgraft.errors import InputError
from skillgraft.values.permitted import CONFIG_KEYS

# Settings that no output of the finished model depends on: training, bookkeeping, what a call returns.
_NEUTRAL = re.compile(
    r"^_|^(transformers_version|torch_dtype|dtype|use_cache|auto_map|finetuning_task|task_specific_params|name_or_path)$"
    r"|dropout|layer_?drop|drop_(path|rate)|drop(_path|_rate)?$|initializer|init_std|gradient_checkpointing"
    r"|^(output_(attentions|hidden_states|scores)|return_dict(_in_generate)?|torchscript|use_bfloat16|summary_\w+)$"
    r"|^(tf_legacy_loss|remove_invalid_values|tokenizer_class|sentence_transformers|use_return_dict|is_training)$"
)
# What a model does where its config says nothing about a key.
_UNSAID: Mapping[str, Any] = {
    "position_embedding_type": "absolute",
    "pretraining_tp": 1,
    "scale_attn_weights": True,
    "is_encoder_decoder": False,
    "rope_type": "default",
    "rope_theta": 10000.0,
}
_ROPE = ("rope_theta", "rope_scaling", "rope_parameters")


def travelling_settings(base: Mapping[str, Any], tuned: Mapping[str, Any]) -> dict[str, Any]:
    """What tuned's config says otherwise than base's and a graft may carry, but for the labels, which it has as its own."""
    apart = ("architectures", "id2label", "label2id", "num_labels")
    return {
        key: value
        for key, value in tuned.items()
        if key in CONFIG_KEYS and key not in apart and (key not in base or base[key] != value)
    }


def refuse_other_settings(base: Mapping[str, Any], tuned: Mapping[str, Any], *, named: str) -> None:
    """Refuses a tuned model whose output depends on more than its numbers: the graft would promise what it cannot give."""
    differ = _differences(_plain(base), _plain(tuned))
    if differ:
        key, (ours, theirs) = next(iter(sorted(differ.items())))
        more = (
            f" (and {len(differ) - 1} more: {', '.join(sorted(differ.keys() - {key})[:4])})" if len(differ) > 1 else ""
        )
        raise InputError(
            f"the config of {named} says {key} = {theirs!r:.60}, the base's {ours!r:.60}{more}: its outputs depend on this and a "
            "graft cannot carry it; if both mean the same, save base and tuned with one version of transformers"
        )


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Without what says nothing, and with the rotary positions under one name."""
    found = {key: value for key, value in config.items() if not _NEUTRAL.search(key) and key not in CONFIG_KEYS}
    rope = {key: found.pop(key) for key in _ROPE if key in found}
    old = {"rope_theta": rope.get("rope_theta"), **(rope.get("rope_scaling") or {})} if rope else {}
    new = rope.get("rope_parameters")
    merged = {
        **{key: value for key, value in old.items() if value is not None},
        **(new if isinstance(new, dict) else {}),
    }
    if "type" in merged:
        merged.setdefault("rope_type", merged.pop("type"))
    if merged:
        found["rope"] = {key: value for key, value in merged.items() if value != _UNSAID.get(key)}
    return found


def _nested(config: Mapping[str, Any]) -> dict[str, Any]:
    """A part's config: only at the top can a graft set the vocabulary's size."""
    return {**_plain(config), **({"vocab_size": config["vocab_size"]} if "vocab_size" in config else {})}


def _differences(base: Mapping[str, Any], tuned: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Key → both values. What only base says is left to tuned's own version to know."""
    result: dict[str, tuple[Any, Any]] = {}
    for key, value in tuned.items():
        ours = base.get(key)
        if isinstance(value, dict) and isinstance(ours, dict) and key != "rope":  # that is in one spelling already
            inner = _differences(_nested(ours), _nested(value))
            result |= {f"{key}.{name}": both for name, both in inner.items()}
        elif not _same(ours, value, key, tuned):
            result[key] = (ours, value)
    return result


def _same(ours: Any, theirs: Any, key: str, config: Mapping[str, Any]) -> bool:
    """Equal, or left out (or null) on one side where the other says nothing more than that."""
    if ours is None:
        return not theirs or theirs == _unsaid(key, config)
    return bool(ours == theirs) or (theirs is None and not ours)


def _unsaid(key: str, config: Mapping[str, Any]) -> Any:
    """What leaving the key out means, where other keys or a convention say so."""
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    if key == "num_key_value_heads":
        return heads
    if key == "head_dim" and isinstance(heads, int) and isinstance(hidden, int) and heads:
        return hidden // heads
    if key == "layer_types" and isinstance(config.get(key), list):
        return ["full_attention"] * len(config[key])
    return _UNSAID.get(key)
