"""GGUF files, as far as a model folder is to be had from one: what they say of their tokenizer, and where they lie.

A GGUF file holds quantised numbers, which no graft can be made of: the verbs about folders refuse it with the command that
unpacks it. transformers reads only a part of what the file says about its tokenizer; the rest is taken from the file here. A
kind of splitting that is not in the table is refused, not guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from skillgraft.errors import InputError, did_you_mean

GGUF = ".gguf"


def _digit_by_digit() -> Any:
    """Digits first: spaces before a number then stay together, as they were when the model was trained."""
    from tokenizers import pre_tokenizers

    parts = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    return pre_tokenizers.Sequence(parts)


# By the file's tokenizer.ggml.pre; None: what transformers makes of the file is right.
SPLITTING: Mapping[str, Callable[[], Any] | None] = {"default": None, "smollm": _digit_by_digit}


def tokenizer_settings(file: Path) -> dict[str, Any]:
    """The two settings that transformers leaves out: how text is split, and whether it begins with the BOS token."""
    from gguf import GGUFReader

    fields = GGUFReader(file).fields
    found = {key: fields.get(f"tokenizer.ggml.{key}") for key in ("pre", "add_bos_token")}
    return {key: field.contents() for key, field in found.items() if field is not None}


def complete_tokenizer(tokenizer: Any, settings: Mapping[str, Any]) -> None:
    """A tokenizer as transformers makes it of a GGUF file, set right in place."""
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


def refuse_gguf(path: Path) -> None:
    """Refuse a GGUF file, or a folder that has nothing else, with the command that makes a folder of safetensors of it."""
    files = [path] if path.suffix == GGUF and path.is_file() else sorted(path.glob(f"*{GGUF}")) if path.is_dir() else []
    if files and not (path.is_dir() and any(path.glob("*.safetensors"))):
        out = files[0].with_suffix("").name
        raise InputError(
            f"{files[0]} is a GGUF file, whose quantised numbers cannot be compared; unpack it: "
            f"skillgraft unpack {files[0]} -o {out}"
        )
