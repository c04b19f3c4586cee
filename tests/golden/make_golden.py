"""The golden files: one of every form. `python -m tests.golden.make_golden` writes them again, beside this file.

They change only with the format's version: a file that somebody has must be readable, and writable, for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from skillgraft.files.graft_file import save, save_region
from skillgraft.values.graft import Graft
from skillgraft.values.info import Info
from skillgraft.values.numbers import BFLOAT16
from skillgraft.values.region import Region, Scope

HERE = Path(__file__).parent
FINGERPRINT = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
SCOPE = Scope.of("layers", {"encoder.layer.0.query.weight": (4, 16), "encoder.layer.0.query.bias": (4,)})
REGION = Region(SCOPE, {"encoder.layer.0.query.weight": [0, 17], "encoder.layer.0.query.bias": [3]})
DENSE = Region(SCOPE, {"encoder.layer.0.query.weight": [0, 1, 2, 9, 63]})
HUGE = Region(Scope.of("all", {"shared.weight": (65536, 32769)}), {"shared.weight": [0, 2**31 - 1, 2**31 + 65535]})
HEADS = {
    "classifier.weight": np.array([[1, -1], [0.5, -0.0]], np.float32),
    "classifier.steps": np.array(7, np.int64),
}
INFO = Info(
    base="bert-base-uncased",
    tuned="bert-base-sst2",
    method="movement",
    task="sst2",
    labels=["negative", "positive"],
    readout={"kind": "head"},
    prefix="bert.",
    body_heads=["pooler.dense.weight"],
    removed=["cls.predictions.bias"],
    architectures=["BertForSequenceClassification"],
    num_labels=2,
    id2label={"0": "negative", "1": "positive"},
    config={"problem_type": "single_label_classification"},
    recipe={"budget": 0.0001, "note": "größer"},
    scores={"accuracy": 0.9125},
    outside_scope={"embeddings.word_embeddings.weight": 12},
    command="skillgraft extract base tuned -o g.safetensors",
    versions={"skillgraft": "0.1.0"},
)
CHAT = {"template": "{{ messages[0].content }}<|im_end|>", "generation": {"eos_token_id": [2, 7], "pad_token_id": 0}}

TAILS = {
    "embed_tokens.weight[16:]": np.array([[1, -1], [0.5, -0.0]], np.float32),
    "lm_head.weight[16:]": np.array([[2, 0], [0.25, 3]], np.float32),
}
TOKENS = {
    "tokens": [
        {"id": 16, "content": "<|im_start|>", "special": True, "normalized": False},
        {"id": 17, "content": "<|im_end|>"},
    ],
    "roles": {"eos_token": "<|im_end|>"},
}


def graft_of(region: Region, dtype: Any = np.float32, **rest: Any) -> Graft:
    """before 1.5, -0.0, 1.5, …; after 2, 3, 4, … at the region's sites."""
    before = {name: np.resize(np.array([1.5, -0.0], dtype), len(at)) for name, at in region.sites.items()}
    after = {name: np.arange(2, 2 + len(at)).astype(dtype) for name, at in region.sites.items()}
    return Graft(region, before, after, **{"base_fingerprint": FINGERPRINT, **rest})


def grafts() -> Iterator[tuple[str, Graft]]:
    """File name → graft."""
    tiny = Region(Scope.of("all", {"w": (8, 8)}), {"w": [1, 10]})
    yield "tiny", graft_of(tiny, base_fingerprint="")
    yield "exact", graft_of(REGION, info=INFO)
    yield "exact-bfloat16", graft_of(REGION, BFLOAT16)
    yield "exact-float16", graft_of(REGION, np.float16)
    yield "exact-float64", graft_of(REGION, np.float64)
    yield "scaled", graft_of(REGION, scale=-0.3)
    yield "arithmetic", graft_of(REGION) + 0.1 * graft_of(DENSE)
    yield "arithmetic-bfloat16", graft_of(REGION, BFLOAT16) - graft_of(REGION, BFLOAT16)
    yield "bitmap", graft_of(DENSE, BFLOAT16)
    yield "int64", graft_of(HUGE, np.float16)
    yield "heads", graft_of(REGION, heads=HEADS)
    yield "chat", graft_of(REGION, info=Info(chat=CHAT))
    yield "tails", graft_of(REGION, heads=TAILS, info=Info(chat={**CHAT, **TOKENS}, config={"vocab_size": 18}))
    yield "empty", graft_of(Region(SCOPE, {}))


def regions() -> Iterator[tuple[str, Region]]:
    yield "region", REGION
    yield "region-bitmap", DENSE


def write_all(folder: Path) -> None:
    for name, graft in grafts():
        save(graft, folder / f"{name}.safetensors", overwrite=True)
    for name, region in regions():
        (folder / f"{name}.safetensors").unlink(missing_ok=True)
        save_region(region, folder / f"{name}.safetensors", base_fingerprint=FINGERPRINT, info=Info(method="learned"))


if __name__ == "__main__":
    write_all(HERE)
