"""The folder that a run of the fuzzer works in, with a base, a tuned model of it and their graft."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Self

from skillgraft.files import graft_file
from skillgraft.folders import rewrite
from skillgraft.folders.apply import Named
from skillgraft.folders.extract import extract
from tests.model_folders import body, content, moved, write_folder

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
    write_folder(folder / "base", tensors(), config=SIZES)
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
    """The same graft, with a chat template and stop tokens."""
    chat = {"template": "{{ x }}", "generation": {"eos_token_id": [1, 2]}}
    return Named(graft().graft.with_info(chat=chat), "t")


@cache
def base_content() -> Mapping[str, str]:
    return content(home() / "base")
