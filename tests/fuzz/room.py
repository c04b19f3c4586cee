"""The folder that a run of the fuzzer works in, with a base, a tuned model of it and their graft."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Self

import numpy as np

from skillgraft.files import graft_file
from skillgraft.folders import rewrite
from skillgraft.folders.extract import extract
from skillgraft.folders.given import Named
from tests.model_folders import EMBEDDING, body, content, moved, write_folder

# What makes the base's tensors a model that loads: some adapters are read by loading it.
SIZES: Mapping[str, object] = {
    "vocab_size": 11,
    "hidden_size": 4,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 6,
    "max_position_embeddings": 8,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}
TOKENIZER = '{"model": {"vocab": {"good": 0, "bad": 1}}, "added_tokens": [{"id": 10, "content": "[MASK]"}]}'
_SHARED_MEMORY = Path("/dev/shm")  # where there is one, files cost no disk


class Inline:
    """A pool of threads that runs each call at once: with a few bytes to copy, threads would only wait for the processor."""

    def __init__(self, **_: object) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, call: Callable[..., object], *arguments: object) -> Future[object]:
        future: Future[object] = Future()
        future.set_result(call(*arguments))
        return future


@cache
def home() -> Path:
    """The folder of this run, with the base, a tuned model of it and their graft."""
    with suppress(ImportError):  # other packages' adapters are merged by peft: its own weight is no case's
        import_module("peft")
    rewrite.ThreadPoolExecutor = Inline
    room = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="skillgraft-fuzz-", dir=room))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_folder(folder / "base", tensors(), config=SIZES)
    (folder / "base" / "tokenizer.json").write_text(TOKENIZER)
    with_head = {**tensors(), "classifier.weight": tensors()["cls.weight"]}
    write_folder(folder / "tuned", moved(with_head), config=SIZES)
    graft_file.save(extract(folder / "base", folder / "tuned"), folder / "graft.safetensors")
    return folder


def tensors() -> dict[str, object]:  # the same in every run: the corpus is made of it
    return {**body(cls__weight=(3, 4))}


@cache
def graft() -> Named:
    return Named(graft_file.load(home() / "graft.safetensors"), "g")


@cache
def talking() -> Named:
    """A graft of a model that talks: tokens with their rows, a chat template, another token that ends."""
    return Named(extract(home() / "base", write_talking(home() / "talking")), "t")


def write_talking(folder: Path) -> Path:
    """The base with two more tokens, and what says how it is talked to."""
    longer = moved(tensors())
    longer[EMBEDDING] = np.concatenate([longer[EMBEDDING], np.ones((2, 4), np.float32)])
    write_folder(folder, longer, config={**SIZES, "vocab_size": 13})
    vocabulary = json.loads(TOKENIZER)
    vocabulary["added_tokens"] += [{"id": number, "content": f"<{number}>", "special": True} for number in (11, 12)]
    (folder / "tokenizer.json").write_text(json.dumps(vocabulary))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<12>", "added_tokens_decoder": {}}))
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}<12>{% endfor %}é")
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [2, 12], "pad_token_id": 0, "top_p": 0.6})
    )
    return folder


@cache
def base_content() -> Mapping[str, str]:
    return content(home() / "base")
