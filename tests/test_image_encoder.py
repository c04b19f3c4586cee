"""examples/image_encoder.py at a tiny size: what it writes is a base that prototypes can be read with."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.folders.extract import extract
from skillgraft.measure.evaluate import evaluate
from skillgraft.tasks.data import Data
from tests.readouts import making

EXAMPLE = Path(__file__).parents[1] / "examples" / "image_encoder.py"


@pytest.fixture
def example() -> ModuleType:
    found = importlib.util.spec_from_file_location("image_encoder", EXAMPLE)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.long
def test_training_lowers_the_loss_and_leaves_an_encoder_without_a_head(example: ModuleType, tmp_path: Path) -> None:
    """Accuracy would show nothing here: prototypes in an encoder of random numbers tell these images apart already."""
    files = [making.write_digits(tmp_path, name) for name in ("digits", "signs")]
    plan = example.PLAN.with_changes(steps=60, batch_size=16, warmup_steps=5)
    log = example.pre_train(files, tmp_path / "out", plan=plan, width=16, layers=2)
    losses = [entry["loss"] for entry in log]
    assert np.mean(losses[-10:]) < np.mean(losses[:10])
    example.fresh_encoder(tmp_path / "fresh", width=16, layers=2)
    fresh, trained = Checkpoint.open(tmp_path / "fresh"), Checkpoint.open(tmp_path / "out")
    assert fresh.shapes == trained.shapes, "no classifier, no pooler"
    assert len(extract(tmp_path / "fresh", tmp_path / "out")) > 0
    found = evaluate(tmp_path / "out", files, data=Data(readout="prototypes"))
    assert {task: len(found[task]["base"]) for task in found} == {"digits": 30, "signs": 30}
    assert sorted(folder.name for folder in tmp_path.iterdir() if folder.is_dir()) == ["fresh", "out"]
