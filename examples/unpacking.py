"""A GGUF file as a folder of safetensors with its tokenizer: a base that tuned models are compared with entry by entry.

transformers gives the weights back in floating point, but reads only a part of what the file says about its tokenizer. The
rest is taken from the file here; a kind of splitting that is not in the table is refused, not guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from tokenizers import pre_tokenizers

from skillgraft.errors import InputError, did_you_mean
from skillgraft.opening.source import Source, silence


def digit_by_digit() -> pre_tokenizers.PreTokenizer:
    """Digits first: spaces before a number then stay together, as they were when the model was trained."""
    parts = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    return pre_tokenizers.Sequence(parts)


# By the file's tokenizer.ggml.pre; None: what transformers makes of the file is right.
SPLITTING: Mapping[str, Callable[[], pre_tokenizers.PreTokenizer] | None] = {"default": None, "smollm": digit_by_digit}


def unpack(file: Path, folder: Path, *, dtype: torch.dtype) -> None:
    """The model in that number format, its tokenizer and its chat template, into an existing folder."""
    source = Source.of(file)
    tokenizer = source.tokenizer
    complete_tokenizer(tokenizer, tokenizer_settings(file))
    model, _ = source.load("AutoModelForCausalLM", dtype=dtype)
    with silence():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def tokenizer_settings(file: Path) -> dict[str, Any]:
    """The two settings that transformers leaves out: how text is split, and whether it begins with the BOS token."""
    fields = GGUFReader(file).fields
    found = {key: fields.get(f"tokenizer.ggml.{key}") for key in ("pre", "add_bos_token")}
    return {key: field.contents() for key, field in found.items() if field is not None}


def complete_tokenizer(tokenizer: Any, settings: Mapping[str, Any]) -> None:
    split = settings.get("pre", "default")
    if split not in SPLITTING:
        raise InputError(
            f"the file's tokenizer.ggml.pre is {split!r}, which is not known; {did_you_mean(split, SPLITTING)}"
        )
    make = SPLITTING[split]
    if make is not None:
        tokenizer.backend_tokenizer.pre_tokenizer = make()
    if settings.get("add_bos_token"):
        tokenizer.add_bos_token = True
