"""Training on a device: every method ends with the CPU's bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from skillgraft.live.bottleneck import Adapters
from skillgraft.predictions.predict import predict
from skillgraft.training.costs import Setup, step_costs
from skillgraft.training.loop import Course, TrainingProgress
from skillgraft.training.methods import merge_lora
from skillgraft.training.plan import TrainingPlan
from skillgraft.training.snapshot import Snapshot
from tests.devices.running import CPU, accelerator_on, bits, is_whole_on
from tests.training.test_trainables import a_region
from tests.training.toys import ToyReadout, tiny_bert, toy_rows, train_toy

Where = torch.device
PLAN = TrainingPlan(
    optimizer="adamw", lr=3e-3, weight_decay=0.01, batch_size=8, steps=8, dropout=True, clip_norm=1.0,
    validate_every=3, keep="best",
)  # fmt: skip


def a_course() -> Course:
    return Course(ToyReadout(), toy_rows(24), toy_rows(16, seed=9))


def trained(
    where: Where, plan: TrainingPlan, *, how: dict[str, Any] | None = None, **rest: Any
) -> tuple[nn.Module, TrainingProgress]:
    model = tiny_bert(dropout=0.1).to(where)
    with accelerator_on(where, **(how or {})) as accelerator:
        settings = {"autocast": accelerator.autocast}
        return model, train_toy(model, plan, course=a_course(), settings=settings, **rest)[0]


def assert_same_run(device: Where, plan: TrainingPlan, **rest: Any) -> None:
    theirs, expected = trained(CPU, plan, **rest)
    ours, found = trained(device, plan, **rest)
    assert is_whole_on(ours, device)
    assert found.log == expected.log
    assert bits(ours) == bits(theirs)


@pytest.mark.parametrize("method", ["full", "bias", "lora", "houlsby", "pfeiffer", "linear"])
def test_every_method(device: Where, method: Any) -> None:
    assert_same_run(device, PLAN.with_changes(method=method))


@pytest.mark.parametrize(
    "changes", [{"optimizer": "sgd", "weight_decay": 0.0}, {"accumulation": 2}, {"l1": 1e-3}], ids=str
)
def test_settings(device: Where, changes: dict[str, Any]) -> None:
    assert_same_run(device, PLAN.with_changes(**changes))


@pytest.mark.parametrize("side", ["inside", "outside"])
def test_regions(device: Where, side: str) -> None:
    assert_same_run(device, PLAN, **{side: a_region(tiny_bert())})


def test_mixed_precision(device: Where) -> None:
    how = {"mixed_precision": "bf16"}
    assert_same_run(device, PLAN, how=how)
    assert bits(trained(device, PLAN, how=how)[0]) != bits(trained(device, PLAN)[0])


class Killed(Exception):
    pass


@pytest.mark.parametrize("method", ["full", "region", "lora"])
def test_a_killed_run_resumes_and_ends_with_the_same_bits(device: Where, method: str, tmp_path: Path) -> None:
    plan = PLAN.with_changes(method="lora" if method == "lora" else "full")
    rest = {"inside": a_region(tiny_bert())} if method == "region" else {}
    straight, _ = trained(device, plan, **rest)

    def kill(step: int, _steps: int, _entry: Any) -> None:
        if step == 5:
            raise Killed

    snapshot = {"snapshot": Snapshot.beside(tmp_path / "out", {"run": 1}), "snapshot_seconds": 0.0}
    with pytest.raises(Killed):
        trained(device, plan, on_step=kill, **snapshot, **rest)
    seen: list[int] = []
    resumed, _ = trained(device, plan, on_step=lambda step, *_: seen.append(step), **snapshot, **rest)
    assert seen[0] == 5
    assert bits(resumed) == bits(straight)


def test_lora_is_merged_on_the_device(device: Where) -> None:
    plan = PLAN.with_changes(method="lora")
    (ours, _), (theirs, _) = trained(device, plan), trained(CPU, plan)
    merge_lora(ours), merge_lora(theirs)
    assert is_whole_on(ours, device)
    assert bits(ours) == bits(theirs)


def test_adapters_from_a_file(device: Where, tmp_path: Path) -> None:
    adapters = Adapters.fresh(tiny_bert().to(device), "houlsby", bottleneck=4, seed=1)
    with torch.no_grad():
        for tensor in adapters.tensors.values():
            tensor.add_(0.1)
    adapters.save(tmp_path / "a.safetensors", base_fingerprint="0" * 64)
    ours, theirs = tiny_bert().to(device), tiny_bert()
    for model in (ours, theirs):
        Adapters.load(tmp_path / "a.safetensors").attach(model)
    found, expected = (predict(model, ToyReadout(), toy_rows(5)).scores for model in (ours, theirs))
    assert found.tobytes() == expected.tobytes()
    assert found.tobytes() != predict(tiny_bert(), ToyReadout(), toy_rows(5)).scores.tobytes()


def test_costs_of_a_step(device: Where) -> None:
    setups = {"full": Setup(PLAN), "region": Setup(PLAN, inside=a_region(tiny_bert()))}
    with accelerator_on(device):
        found = step_costs(tiny_bert().to(device), [a_course()], setups, steps=1)
    expected = step_costs(tiny_bert(), [a_course()], setups, steps=1)
    assert [(c.trained, c.optimizer_bytes, c.peak_bytes) for c in found] == [
        (c.trained, c.optimizer_bytes, c.peak_bytes) for c in expected
    ]
