"""Two tiny skills of one base, a bench for both, and full evaluations to compare a bench with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from skillgraft import Graft, extract, save
from skillgraft.compose.bench import Workbench
from skillgraft.live import tensors_of
from skillgraft.measure.evaluate import evaluate
from skillgraft.measure.metrics import METRICS
from skillgraft.measure.predictions import Predictions
from skillgraft.training.finetune import finetune
from tests.compose.toy_tasks import QUICK, _one_thread, place, run, tasks  # noqa: F401

# pytest passes fixtures by their names, which are imported here
# ruff: noqa: F811

SHOTS = {"shots": 20}
FEW = 24  # rows that judge: few enough that the sample matters


@pytest.fixture(scope="module")
def pair(place: Path, tasks: list[Path]) -> dict[str, Graft]:
    """A graft of each of two skills."""
    found = {}
    for file in tasks[:2]:
        out = place / f"tuned-{file.stem}"
        finetune(place / "encoder", [file], out, plan=QUICK.with_changes(steps=60), **SHOTS)
        found[file.stem] = extract(place / "encoder", out)
        save(found[file.stem], place / f"{file.stem}.safetensors")
    return found


@pytest.fixture(scope="module")
def bench(place: Path, tasks: list[Path]) -> Workbench:
    return Workbench.open(place / "encoder", tasks[:2], rows=FEW, **SHOTS)


def bits(bench: Workbench) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in tensors_of(bench.opened.model).arrays.items()}


def brute(place: Path, tasks: list[Path], graft: Graft) -> dict[str, Predictions]:
    """A full evaluation on all validation rows."""
    found = evaluate(place / "encoder", tasks[:2], grafts={"g": graft}, split="validation", **SHOTS).said
    return {task: models["g"] for task, models in found.items()}


def sampled(bench: Workbench, said: Predictions, task: str) -> Predictions:
    """The rows of a full evaluation that are on the bench."""
    rows = np.sort(np.random.default_rng(0).permutation(len(said))[:FEW])
    assert [row.label for row in bench.rows[bench.tasks.index(task)]] == said.labels[rows].tolist()
    return Predictions(said.scores[rows], said.labels[rows], task=said.task, label_names=said.label_names)


def accuracies(bench: Workbench, said: dict[str, Predictions]) -> dict[str, float]:
    return {task: METRICS["accuracy"](sampled(bench, one, task)) for task, one in said.items()}
