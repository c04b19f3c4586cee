"""A tiny classifier and a readout over token lists: enough to train, small enough to check by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from skillgraft.opening.processes import Processes
from skillgraft.opening.runtime import Progress as OnStep
from skillgraft.opening.runtime import Runtime, silent
from skillgraft.readouts.readout import Batch, Encoded
from skillgraft.readouts.readouts import Loader
from skillgraft.task_model import TaskModel, TaskRows
from skillgraft.tasks import Examples, Origin, Task
from skillgraft.tasks.data import Data
from skillgraft.training.loop import Course, Training, TrainingProgress, train
from skillgraft.training.methods import prepare
from skillgraft.training.plan import TrainingPlan
from skillgraft.training.snapshot import Snapshot


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
        for index, row in enumerate(rows):
            ids[index, : row.length] = torch.tensor(row.inputs["input_ids"])
            mask[index, : row.length] = 1
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


def opened_toy(model: nn.Module, rows: Sequence[Encoded]) -> TaskModel:
    """The model as it is, asked about these rows as validation rows."""
    loader = Loader(None, torch.float32, next(model.parameters()).device)  # type: ignore[arg-type]
    asked = TaskRows({"toy": ToyReadout()}, Data(), "toy", loader, Processes.here(), {}, {("toy", "validation"): rows})
    return TaskModel(model, asked, None)  # type: ignore[arg-type]


def a_course(rows: Sequence[Encoded] | None = None) -> Course:
    return Course(ToyReadout(), toy_rows(40) if rows is None else rows, toy_rows(40, seed=9))


def train_toy(
    model: nn.Module,
    plan: TrainingPlan,
    *,
    course: Course | None = None,
    snapshot: Snapshot | None = None,
    snapshot_seconds: float = 0.0,
    on_step: OnStep = silent,
    settings: Mapping[str, Any] | None = None,
    **regions: Any,
) -> tuple[TrainingProgress, Training]:
    """The plan prepared and run on toy rows; `regions` are inside= or outside=, `settings` those of `Training`."""
    prepared = prepare(model, plan, **regions)
    courses = [a_course() if course is None else course]
    training = Training(model, courses, plan, prepared, Processes.here(), **(settings or {}))
    runtime = Runtime(progress=on_step, snapshot_seconds=snapshot_seconds)
    return train(training, snapshot=snapshot, runtime=runtime), training
