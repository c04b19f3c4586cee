"""A tiny classifier and a readout over token lists: enough to train, small enough to check by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from skillgraft.readouts.readout import Batch, Encoded
from skillgraft.tasks import Examples, Origin, Task


@dataclass(frozen=True)
class ToyReadout:
    """Scores = the first hidden numbers of the first token."""

    task: Task = Task(name="toy", kind="text", inputs=("text",), data=Origin(), labels=("no", "yes"))  # noqa: RUF009
    settings: Mapping[str, Any] = None  # type: ignore[assignment]

    def encode(self, _examples: Examples) -> list[Encoded]:
        raise AssertionError("toy rows are encoded already")

    def collate(self, rows: Sequence[Encoded]) -> Batch:
        width = max(row.length for row in rows)
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        mask = torch.zeros(len(rows), width, dtype=torch.long)
        for place, row in enumerate(rows):
            ids[place, : row.length] = torch.tensor(row.inputs["input_ids"])
            mask[place, : row.length] = 1
        return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([row.label for row in rows])}

    def scores(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs = {key: tensor for key, tensor in batch.items() if key != "labels"}
        hidden: Tensor = model(**inputs).last_hidden_state
        return 3 * hidden[:, 0, :2]


def tiny_bert(seed: int = 0, *, dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=16, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
        attn_implementation="eager",
    )  # fmt: skip
    return transformers.BertModel(config, add_pooling_layer=False).eval()


def toy_rows(count: int = 40, *, seed: int = 0) -> list[Encoded]:
    """Label 1 where most tokens are 7."""
    draw = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        ids = draw.integers(10, 50, size=draw.integers(3, 9)).tolist()
        if number % 2:
            ids = [7 if draw.random() < 0.7 else token for token in ids]
        rows.append(Encoded({"input_ids": [1, *ids]}, number % 2, len(ids) + 1))
    return rows
