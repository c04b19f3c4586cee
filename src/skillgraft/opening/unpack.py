"""A GGUF file as a folder of safetensors with its tokenizer and chat template: a base that tuned models are compared with.

    unpack("SmolLM2.gguf", out="SmolLM2")

The numbers are those that the quantised ones stand for, rounded once to the number format. Refused: a file that is no GGUF, an
architecture that transformers does not read, a tokenizer of unknown kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from skillgraft.errors import InputError
from skillgraft.files import atomic
from skillgraft.folders.gguf import GGUF, complete_tokenizer, tokenizer_settings
from skillgraft.opening.device import torch_dtype
from skillgraft.opening.source import Source, silence


@dataclass(frozen=True)
class Unpacked:
    """What was written: entries in how many tensors, their number format, and whether there is a chat template."""

    path: Path
    entries: int
    tensors: int
    dtype: str
    has_chat_template: bool


def unpack(model: str | Path, *, out: str | Path, dtype: str = "bfloat16") -> Unpacked:
    """Write the folder of a GGUF file (or of a folder that holds one), whole or not at all."""
    target = Path(out)
    atomic.check_target(target)
    with atomic.new_folder(target) as folder:
        return unpack_into(folder, model, dtype=dtype, path=target)


def unpack_into(folder: Path, model: str | Path, *, dtype: str = "bfloat16", path: Path | None = None) -> Unpacked:
    """The same into a folder that is there, and may hold other files already."""
    source = Source.of(model)
    if source.gguf is None:
        raise InputError(f"{model}: expected a {GGUF} file, or a folder with one and no config.json")
    file = Path(source.name) / source.gguf
    with file.open("rb") as opened:
        if opened.read(4) != b"GGUF":
            raise InputError(f"{file} does not begin as a GGUF file does; is the download complete?")
    numbers = torch_dtype(dtype)
    tokenizer = source.tokenizer
    complete_tokenizer(tokenizer, tokenizer_settings(file))
    loaded, _ = source.load("AutoModelForCausalLM", dtype=numbers)
    with silence():
        loaded.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    sizes = [parameter.numel() for parameter in loaded.parameters()]
    return Unpacked(path or folder, sum(sizes), len(sizes), dtype, bool(tokenizer.chat_template))
