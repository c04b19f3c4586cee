"""What a graft may change in a model besides the numbers at its sites: closed lists, and nothing beside them.

Metadata is text that anybody can write, so it has no power that a table here does not give it: which tensors travel whole
(heads), which may be added or taken away, which keys of config.json may be set and to what, what a prefix looks like.

    >>> whole_problem("classifier.weight", held=True)
    ''
    >>> whole_problem("encoder.layer.0.output.dense.weight", held=True)
    'lies in a layer'
    >>> key_problem("auto_map", {})
    'is not among the keys that a graft may set'
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from skillgraft.values.names import is_embedding, is_head, is_lm_head, layer_of

_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}(\.[A-Za-z0-9_-]{1,128}){0,31}", re.ASCII)
_PREFIX = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,63}\.){0,8}", re.ASCII)
_CLASS = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
_DIGITS = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)
_PROBLEM_TYPES = (None, "regression", "single_label_classification", "multi_label_classification")
_MOST_CLASSES = 1_000_000
# Whole numbers that some versions store beside the weights; they count batches or positions and hold no skill.
_BUFFERS = re.compile(r"(^|\.)(num_batches_tracked|position_ids|token_type_ids|relative_position_index)$")
# Heads of pre-training that `names` counts as body: a base's fingerprint goes by them.
_PRETRAINING = frozenset(
    {
        *(
            "vocab_layer_norm",
            "lm_predictions",
            "mask_predictions",
            "discriminator_predictions",
            "generator_predictions",
        ),
        *("quantizer", "project_hid", "project_q", "sop_classifier", "itm_head", "mim_head", "mlm_head", "logit_scale"),
    }
)


def _is_head_word(part: str) -> bool:
    return is_head(f"{part}.") or is_lm_head(f"{part}.") or part in _PRETRAINING


def _depth_problem(name: str) -> str:
    """Why a name may belong to the body: what stands before a head's own word decides."""
    parts = name.split(".")
    head = next((place for place, part in enumerate(parts) if _is_head_word(part)), len(parts))
    outer = ".".join(parts[:head])
    if layer_of(f"{outer}.x" if outer else ""):
        return "lies in a layer"
    if is_embedding(outer if head < len(parts) else name):
        return "is an embedding"
    return ""


def whole_problem(name: str, *, held: bool, whole_numbers: bool = False) -> str:
    """Why a graft may not bring this tensor whole, or "". `held`: the model has one of that name, which it would replace."""
    if not _NAME.fullmatch(name):
        return "is no name of a tensor"
    if whole_numbers and not held and _BUFFERS.search(name):
        return ""
    if problem := _depth_problem(name):
        return problem
    return "is no head" if held and not is_head(name) else ""


def tail_problem(tensor: str) -> str:
    """Why a graft may not append rows to this tensor, or ""."""
    if not _NAME.fullmatch(tensor):
        return "is no name of a tensor"
    if layer_of(tensor):
        return "lies in a layer"
    return "" if is_embedding(tensor) or is_lm_head(tensor) else "is neither an embedding nor the LM head"


def removal_problem(name: str) -> str:
    """Why a graft may not take this tensor of the model away, or ""."""
    known = any(map(_is_head_word, name.split("."))) or is_lm_head(name)
    return _depth_problem(name) or ("" if known else "is no head")


def prefix_problem(prefix: str) -> str:
    """Why a body's names may not begin with this, or "": a prefix is a dotted path of plain words, each with its dot."""
    if not _PREFIX.fullmatch(prefix):
        return "is no dotted path such as 'bert.'"
    if is_head(prefix) or is_lm_head(prefix) or is_embedding(prefix):
        return "is the name of a head or an embedding"
    return ""


@dataclass(frozen=True)
class Key:
    """A key of config.json: what its value must be, in words and as a test."""

    expected: str
    fits: Callable[[Any], bool]


def _is_class_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) and _CLASS.fullmatch(name) for name in value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _is_token(value: Any) -> bool:
    several = isinstance(value, list) and len(value) <= 1000 and all(map(_is_count, value))
    return value is None or _is_count(value) or several


def _is_labels(value: Any) -> bool:
    """Class number, as JSON's text, → label."""
    return (
        isinstance(value, dict)
        and len(value) <= _MOST_CLASSES
        and all(isinstance(k, str) and _DIGITS.fullmatch(k) and isinstance(v, str) for k, v in value.items())
    )


def _is_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(k, str) and _is_count(v) for k, v in value.items())


_TOKEN = Key("a token's number", _is_token)
CONFIG_KEYS: Mapping[str, Key] = MappingProxyType(
    {
        "architectures": Key("a list of class names", _is_class_list),
        "num_labels": Key("a whole number", _is_count),
        "id2label": Key("class numbers with their labels", _is_labels),
        "label2id": Key("labels with their class numbers", _is_numbers),
        "problem_type": Key(f"one of {', '.join(map(str, _PROBLEM_TYPES))}", lambda value: value in _PROBLEM_TYPES),
        "pad_token_id": _TOKEN,
        "bos_token_id": _TOKEN,
        "eos_token_id": _TOKEN,
        "tie_word_embeddings": Key("true or false", lambda value: isinstance(value, bool)),
        "vocab_size": Key("a whole number", _is_count),  # with rows that make it true; `folders.reach` proves that
    }
)


def key_problem(key: str, value: Any) -> str:
    """Why a graft may not set this key of config.json to this value, or ""."""
    if key not in CONFIG_KEYS:
        return "is not among the keys that a graft may set"
    known = CONFIG_KEYS[key]
    return "" if known.fits(value) else f"must be {known.expected}, found {reprlib.repr(value)}"
