"""skillgraft unpack"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skillgraft.cli import output
from skillgraft.cli.arguments import Json, Out


def run(
    model: Annotated[Path, typer.Argument(metavar="MODEL.gguf", help="A GGUF file of a language model.")],
    out: Out,
    dtype: Annotated[str, typer.Option("--dtype", help="float32, bfloat16 or float16.")] = "bfloat16",
    json: Json = False,
) -> None:
    """Make a model folder of a GGUF file: a BASE for the other verbs.

    The numbers are written out as what the quantised ones stand for, with the tokenizer and the chat template.

    \b
    Example
      skillgraft unpack SmolLM2.gguf -o SmolLM2
    """
    from skillgraft.files import atomic

    atomic.check_target(out)  # before torch is imported, which takes seconds
    from skillgraft.opening.unpack import unpack

    found = unpack(model, out=out, dtype=dtype)
    facts = {
        "out": str(out), "entries": found.entries, "tensors": found.tensors, "dtype": found.dtype,
        "chat_template": found.has_chat_template,
    }  # fmt: skip
    chat = "with" if found.has_chat_template else "without"
    line = f"{out}: {found.entries:,} numbers in {found.tensors} tensors as {found.dtype}, {chat} a chat template"
    output.show(facts, as_json=json, lines=[line])
