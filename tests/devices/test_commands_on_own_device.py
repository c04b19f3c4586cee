"""Whole commands where accelerate finds a device: the work is done there, and what they write is the CPU's.

The folders are mapped into memory: on the CPU the last bits of a product depend on where a file's numbers lie, so what is
compared with the CPU here is compared to rounding.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from skillgraft import extract
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.measure.evaluate import evaluate
from skillgraft.regions.choose import choose_region
from skillgraft.regions.localize import localize
from skillgraft.regions.pruning import pruning_sensitivity
from skillgraft.task_model import TaskModel
from skillgraft.tasks.data import Data
from skillgraft.training.costs import Setup, training_costs
from skillgraft.training.finetune import finetune
from skillgraft.training.linearised import near_linearity
from skillgraft.training.plan import TrainingPlan
from tests.devices.running import CPU, Products, accelerator_on, is_whole_on
from tests.readouts import making

Where = torch.device
QUICK = TrainingPlan(optimizer="adamw", lr=3e-3, batch_size=8, steps=6)
FORTY = Data(train_rows=40)
FEW = Data(train_rows=16, validation_rows=8, test_rows=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence encoder, films.toml, and the encoder tuned on it."""
    made = tmp_path_factory.mktemp("films")
    making.sentence_encoder(made / "encoder")
    making.write_films(made)
    finetune(made / "encoder", [made / "films.toml"], out=made / "tuned", plan=QUICK, data=FORTY)
    return made


@pytest.mark.parametrize("method", ["full", "lora", "houlsby"])
def test_finetune_trains_on_the_device_and_writes_a_folder(
    device: Where, folder: Path, method: Any, tmp_path: Path
) -> None:
    plan = QUICK.with_changes(method=method)
    with accelerator_on(device), Products() as products:
        found = finetune(folder / "encoder", [folder / "films.toml"], out=tmp_path / "own", plan=plan, data=FORTY)
    with accelerator_on(CPU):
        expected = finetune(folder / "encoder", [folder / "films.toml"], out=tmp_path / "cpu", plan=plan, data=FORTY)
    assert device.type in products.devices
    np.testing.assert_allclose([e["loss"] for e in found.log], [e["loss"] for e in expected.log], rtol=1e-4)
    ours, theirs = Checkpoint.open(tmp_path / "own"), Checkpoint.open(tmp_path / "cpu")
    assert ours.shapes == theirs.shapes


def test_evaluate_works_on_the_device(device: Where, folder: Path) -> None:
    with accelerator_on(device), Products() as products:
        evaluate(folder / "encoder", [folder / "films.toml"], data=FEW)
    assert device.type in products.devices


def test_training_costs_are_those_of_the_device(device: Where, folder: Path) -> None:
    with accelerator_on(device), Products() as products:
        training_costs(folder / "encoder", folder / "films.toml", {"full": Setup(QUICK)}, steps=1, data=FEW)
    assert device.type in products.devices


def test_localize_searches_on_the_device(device: Where, folder: Path) -> None:
    found = []
    for where in (CPU, device):
        with accelerator_on(where), Products() as products:
            located = localize(
                folder / "encoder",
                folder / "tuned",
                task=folder / "films.toml",
                method="budgeted",
                entries=30,
                steps=3,
                data=FORTY,
            )
        assert where.type in products.devices
        found.append(located.graft)
    assert len(found[0]) == len(found[1]) == 30
    # An entry at the edge may differ.
    assert found[0].region.jaccard(found[1].region) > 0.9


def test_regions_of_the_base_are_found_on_the_device(device: Where, folder: Path) -> None:
    with accelerator_on(device), Products() as products:
        choose_region(folder / "encoder", task=folder / "films.toml", data=FEW)
    assert device.type in products.devices


def test_pruning_is_tried_on_the_device(device: Where, folder: Path) -> None:
    with accelerator_on(device), Products() as products:
        pruning_sensitivity(folder / "encoder", [folder / "films.toml"], shares=(0.1,), data=FEW)
    assert device.type in products.devices


def test_an_opened_task_model_is_on_the_device(device: Where, folder: Path) -> None:
    with accelerator_on(device), Products() as products:
        opened = TaskModel.open(folder / "encoder", [folder / "films.toml"], data=FEW)
        opened.predict(extract(folder / "encoder", folder / "tuned"))
    assert is_whole_on(opened.model, device)
    assert device.type in products.devices


def test_linearity_is_measured_on_the_device(device: Where, folder: Path) -> None:
    graft = extract(folder / "encoder", folder / "tuned")
    with accelerator_on(device), Products() as products:
        near_linearity(folder / "encoder", graft, folder / "films.toml", data=FEW)
    assert device.type in products.devices
