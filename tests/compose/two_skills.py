"""Two tiny skills of one base, the base opened for both tasks, and full evaluations to compare its predictions with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from skillgraft import Graft, extract, save
from skillgraft.measure.evaluate import evaluate
from skillgraft.measure.metrics import METRICS
from skillgraft.predictions.predictions import Predictions
from skillgraft.task_model import TaskModel
from skillgraft.tasks.data import Data
from skillgraft.training.finetune import finetune
from tests.bits import bits_of
from tests.compose.toy_tasks import QUICK, _one_thread, place, run, tasks  # noqa: F401

# pytest passes fixtures by their names, which are imported here
# ruff: noqa: F811

FEW = 24  # validation rows of a search: few enough that the sample matters
SHOTS = Data(shots=20)
SAMPLED = Data(shots=20, validation_rows=FEW)


@pytest.fixture(scope="module")
def pair(place: Path, tasks: list[Path]) -> dict[str, Graft]:
    """A graft of each of two skills."""
    found = {}
    for file in tasks[:2]:
        out = place / f"tuned-{file.stem}"
        finetune(place / "encoder", [file], out=out, plan=QUICK.with_changes(steps=60), data=SHOTS)
        found[file.stem] = extract(place / "encoder", out)
        save(found[file.stem], place / f"{file.stem}.safetensors")
    return found


@pytest.fixture(scope="module")
def opened(place: Path, tasks: list[Path]) -> TaskModel:
    return TaskModel.open(place / "encoder", tasks[:2], data=SAMPLED)


def bits(opened: TaskModel) -> dict[str, bytes]:
    return bits_of(opened.model)


def brute(place: Path, tasks: list[Path], graft: Graft) -> dict[str, Predictions]:
    """A full evaluation on all validation rows."""
    found = evaluate(place / "encoder", tasks[:2], grafts={"g": graft}, split="validation", data=SHOTS)
    return {task: found[task]["g"] for task in found}


def sampled(opened: TaskModel, found: Predictions, task: str) -> Predictions:
    """The rows of a full evaluation that the opened base is asked about."""
    rows = np.sort(np.random.default_rng(0).permutation(len(found))[:FEW])
    assert [row.label for row in opened.rows.encoded(task)] == found.labels[rows].tolist()
    return Predictions(found.scores[rows], found.labels[rows], task=found.task, label_names=found.label_names)


def accuracies(opened: TaskModel, found: dict[str, Predictions]) -> dict[str, float]:
    return {task: METRICS["accuracy"](sampled(opened, one, task)) for task, one in found.items()}
