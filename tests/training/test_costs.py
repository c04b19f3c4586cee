"""What a step costs: bytes by hand, setups side by side, the model left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from skillgraft.errors import InputError
from skillgraft.live.grafted import parameter_names, tensors_of
from skillgraft.tasks.data import Data
from skillgraft.training.costs import Setup, TensorMemory, step_costs, training_costs
from skillgraft.training.plan import TrainingPlan
from skillgraft.values.region import Scope
from tests.readouts import making
from tests.training.test_trainables import a_region
from tests.training.toys import a_course, tiny_bert

PLAN = TrainingPlan(optimizer="adamw", lr=1e-3, batch_size=8, dropout=False)


def test_bytes_of_tensors_by_hand() -> None:
    with TensorMemory() as memory:
        a = torch.zeros(1000)
        assert memory.now == 4000
        b = a + 1
        assert memory.now == 8000
        del a
        assert memory.now == 4000
        view = b.view(10, 100).t()
        del b
        assert memory.now == 4000, "the view keeps the storage"
        del view
        assert (memory.now, memory.peak) == (0, 8000)


def test_what_a_graph_keeps_counts_until_the_backward_pass_is_over() -> None:
    weight, x = torch.randn(100, 100, requires_grad=True), torch.randn(50, 100)
    with TensorMemory() as memory:
        y = (x @ weight).relu().sum()
        assert memory.now == 40_000 + 20_000 + 20_000 + 4, "weight, x, relu's result (kept for its gradient), y"
        y.backward()
        assert memory.now == 40_000 + 20_000 + 40_000 + 4, "the gradient is there, relu's result is not"
    assert memory.peak > memory.now


def test_ways_side_by_side() -> None:
    model = tiny_bert()
    before = {name: array.copy() for name, array in tensors_of(model).arrays.items()}
    region = a_region(model)
    setups = {
        "full": Setup(PLAN),
        "sgd": Setup(PLAN.with_changes(optimizer="sgd")),
        "linear": Setup(PLAN.with_changes(method="linear")),
        "lora": Setup(PLAN.with_changes(method="lora", lora_rank=2)),
        "region": Setup(PLAN, inside=region),
    }
    found = {cost.name: cost for cost in step_costs(model, [a_course()], setups, steps=3)}
    assert list(found) == list(setups)
    layers = Scope.select("layers", {name: tuple(p.shape) for name, p in parameter_names(model).items()})
    assert found["full"].trained == layers.size
    assert found["region"].trained == len(region)
    for name in ("full", "linear", "lora", "region"):
        assert found[name].optimizer_bytes == 2 * 4 * found[name].trained, f"two float32 moments: {name}"
    assert found["sgd"].optimizer_bytes == 0
    assert all(
        len(cost.seconds) == 3 and min(cost.seconds) <= cost.step_seconds <= max(cost.seconds)
        for cost in found.values()
    )
    assert found["full"].peak_bytes > found["region"].peak_bytes > layers.size * 4
    assert found["linear"].peak_bytes > found["full"].peak_bytes, "a second set of activations, and the base"
    after = tensors_of(model).arrays
    assert all((array == before[name]).all() for name, array in after.items())
    assert found["full"].peak_bytes == step_costs(model, [a_course()], {"full": Setup(PLAN)}, steps=1)[0].peak_bytes


def test_a_tasks_own_rows(tmp_path: Path) -> None:
    base, task = making.sentence_encoder(tmp_path / "m"), making.write_films(tmp_path)
    (cost,) = training_costs(
        base, task, {"bias": Setup(PLAN.with_changes(method="bias"))}, steps=1, data=Data(train_rows=16)
    )
    assert cost.name == "bias"
    assert 0 < cost.trained < 1000


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"setups": {}}])
def test_nothing_to_measure_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="expected one setup or more and one step or more"):
        step_costs(tiny_bert(), [a_course()], **{"setups": {"full": Setup(PLAN)}, **wrong})
