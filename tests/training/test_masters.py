"""Training a narrow model: float32 masters θ are trained by the gradients at round(θ), and the model holds round(θ).

Every law is checked against a plain loop over one float32 model that is never rounded and one narrow model that computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from skillgraft.live.grafted import parameter_names
from skillgraft.tasks.data import BatchOrder
from skillgraft.training.loop import TrainingProgress
from skillgraft.training.plan import TrainingPlan
from skillgraft.training.snapshot import Snapshot
from skillgraft.training.trainables import Trainables, choose_trainables
from skillgraft.values.region import Region
from tests.training.test_trainables import a_region, loss_of
from tests.training.toys import ToyReadout, a_course, tiny_bert, toy_rows, train_toy

ROWS = toy_rows(40)
SGD = TrainingPlan(lr=0.05, weight_decay=0.01, momentum=0.9, batch_size=8, steps=8, dropout=False)
ADAMW = TrainingPlan(optimizer="adamw", lr=3e-3, weight_decay=0.1, batch_size=8, steps=8, dropout=False)


def narrow_bert(dtype: torch.dtype = torch.bfloat16, **rest: Any) -> nn.Module:
    return tiny_bert(**rest).to(dtype)


def numbers(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in parameter_names(model).items()}


def assert_same_bits(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    differ = [name for name, tensor in found.items() if not torch.equal(tensor, expected[name])]
    assert differ == []


def run(model: nn.Module, plan: TrainingPlan, *, rows: Any = ROWS, **rest: Any) -> tuple[TrainingProgress, Trainables]:
    progress, training = train_toy(model, plan, course=a_course(rows), **rest)
    return progress, training.prepared.trainables


@dataclass(frozen=True)
class Case:
    """What is trained: parameters that train, and the entries of them that do (None: all)."""

    trains: Callable[[str], bool] = lambda name: "embeddings" not in name
    entries: Callable[[str, Region], Tensor | None] = lambda _name, _region: None
    settings: Callable[[Region], dict[str, Region]] = lambda _region: {}
    method: Any = "full"


def _inside(name: str, region: Region) -> Tensor:
    return torch.from_numpy(region.mask(name)) if name in region.scope.shapes else torch.tensor(False)


def _outside(name: str, region: Region) -> Tensor:
    return ~_inside(name, region)


CASES = {
    "full": Case(),
    "bias": Case(trains=lambda name: name.endswith("bias") and "embeddings" not in name, method="bias"),
    "region": Case(entries=_inside, settings=lambda region: {"inside": region}),
    "outside": Case(entries=_outside, settings=lambda region: {"outside": region}),
}


def by_hand(model: nn.Module, plan: TrainingPlan, case: Case, region: Region) -> dict[str, Tensor]:
    """The plain loop: masters of full size, whatever does not train is put back after every step."""
    narrow = {name: parameter for name, parameter in parameter_names(model).items() if case.trains(name)}
    masters = {name: nn.Parameter(parameter.detach().float()) for name, parameter in narrow.items()}
    start = {name: master.detach().clone() for name, master in masters.items()}
    masks = {name: mask for name in narrow if (mask := case.entries(name, region)) is not None}
    optimizer = (
        torch.optim.AdamW(masters.values(), lr=plan.lr, weight_decay=plan.weight_decay)
        if plan.optimizer == "adamw"
        else torch.optim.SGD(masters.values(), lr=plan.lr, weight_decay=plan.weight_decay, momentum=plan.momentum)
    )
    order = BatchOrder([len(ROWS)], batch_size=plan.batch_size, steps=plan.steps, seed=plan.seed)
    for step in range(plan.steps):
        model.zero_grad()
        batch = ToyReadout().collate([ROWS[row] for row in order.step(step)[1]])
        scores = ToyReadout().scores(model, batch).float()
        (nn.functional.cross_entropy(scores, batch["labels"], reduction="sum") / plan.batch_size).backward()
        for name, master in masters.items():
            gradient = narrow[name].grad.float() if narrow[name].grad is not None else None
            master.grad = gradient * masks[name] if gradient is not None and name in masks else gradient
        optimizer.step()
        with torch.no_grad():
            for name, master in masters.items():
                if name in masks:
                    master.copy_(torch.where(masks[name], master, start[name]))
                narrow[name].copy_(master)
    return {name: master.detach() for name, master in masters.items()}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("plan", [SGD, ADAMW], ids=["sgd", "adamw"])
@pytest.mark.parametrize("name", CASES)
def test_masters_follow_the_gradients_at_the_rounded_numbers(name: str, plan: TrainingPlan, dtype: torch.dtype) -> None:
    case, model, plain = CASES[name], narrow_bert(dtype), narrow_bert(dtype)
    region, before = a_region(model), numbers(model)
    expected = by_hand(plain, plan, case, region)
    _, trainables = run(model, plan.with_changes(method=case.method), **case.settings(region))
    assert_same_bits(numbers(model), numbers(plain))
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    for key, tensor in trainables.tensors.items():
        assert tensor.dtype == torch.float32
        theirs = expected[key]
        mine = theirs.view(-1)[np.array(region.sites[key])] if name == "region" else theirs
        assert torch.equal(tensor, mine), key
    moved = sum(int((parameter != before[key]).sum()) for key, parameter in numbers(model).items())
    assert moved > 0.2 * len(trainables), "too few numbers moved for the comparison to mean anything"


def test_masters_move_where_steps_are_too_small_for_the_model() -> None:
    """Every step is far below half a unit of bf16, 2⁻⁹; together they are 10 of those."""
    layer = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    with torch.no_grad():
        layer.weight.fill_(1.0)
    trainables = Trainables({"weight": layer.weight})
    optimizer = torch.optim.SGD(trainables.tensors.values(), lr=2.0**-12)
    with trainables.listening():
        for _ in range(80):
            optimizer.zero_grad(set_to_none=True)
            layer(torch.ones(1, 1, dtype=torch.bfloat16)).sum().backward()
            trainables.before_step()
            optimizer.step()
            trainables.after_step()
    assert trainables.tensors["weight"].item() == 1 - 80 * 2.0**-12
    assert layer.weight.item() == 1 - 5 * 2.0**-8  # 80 · 2⁻¹² = 5 · 2⁻⁸


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wide_parameters_are_trained_themselves(dtype: torch.dtype) -> None:
    model = tiny_bert().to(dtype)
    trainables, names = choose_trainables(model), parameter_names(model)
    assert trainables.masters == {}
    assert all(tensor is names[name] for name, tensor in trainables.tensors.items())


def test_entries_of_a_float64_model_stay_float64() -> None:
    model = tiny_bert().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1e-12)
    before = numbers(model)
    trainables = choose_trainables(model, inside=a_region(model))
    trainables.after_step()
    assert_same_bits(numbers(model), before)
    assert {tensor.dtype for tensor in trainables.tensors.values()} == {torch.float64}


def test_only_narrow_parameters_of_a_mixed_model_have_masters() -> None:
    model = narrow_bert()
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.float()
    trainables, names = choose_trainables(model), parameter_names(model)
    wide = {name for name in trainables.tensors if names[name].dtype == torch.float32}
    assert wide
    assert trainables.masters.keys() == trainables.tensors.keys() - wide
    assert all(trainables.tensors[name] is names[name] for name in wide)


def test_narrow_gradients_are_dropped_and_parts_add_up_in_float32() -> None:
    model, parts = narrow_bert(), [toy_rows(8, seed=seed) for seed in range(3)]
    trainables, names = choose_trainables(model), parameter_names(model)
    expected: dict[str, Tensor] = {}
    for rows in parts:
        model.zero_grad()
        loss_of(model, rows).backward()
        for name in trainables.tensors:
            gradient = names[name].grad.float()
            expected[name] = expected[name] + gradient if name in expected else gradient
    with trainables.listening():  # what was left from before does not count
        for rows in parts:
            loss_of(model, rows).backward()
            assert all(parameter.grad is None for parameter in model.parameters())
    assert_same_bits({name: tensor.grad for name, tensor in trainables.tensors.items()}, expected)


def test_the_pull_acts_on_masters() -> None:
    model = narrow_bert()
    trainables = choose_trainables(model)
    base = trainables.copy()
    name = next(name for name in trainables.tensors if name.endswith("query.weight"))
    with torch.no_grad():
        trainables.tensors[name].add_(2.0**-20)  # invisible in bf16
    with trainables.listening():
        loss_of(model, toy_rows(8)).backward()
    plain = trainables.tensors[name].grad.clone()
    trainables.before_step(pull=base, strength=0.001)
    moved = trainables.tensors[name] != base[name]
    assert moved.any()
    assert torch.equal(trainables.tensors[name].grad, plain + 0.001 * moved)


def test_clipping_is_by_the_norm_of_the_masters_gradients() -> None:
    plan = TrainingPlan(lr=1.0, weight_decay=0.0, batch_size=8, steps=1, dropout=False, clip_norm=1e-3)
    model = narrow_bert()
    start = {name: parameter.detach().float() for name, parameter in parameter_names(model).items()}
    _, trainables = run(model, plan)
    squares = sum(float((tensor.detach() - start[name]).square().sum()) for name, tensor in trainables.tensors.items())
    assert squares**0.5 == pytest.approx(1e-3, rel=1e-3)


def test_the_best_masters_are_kept() -> None:
    model = narrow_bert()
    plan = ADAMW.with_changes(steps=40, validate_every=5, keep="best")
    progress, training = train_toy(model, plan)
    trainables = training.prepared.trainables
    looked = [entry["validation"] for entry in progress.log if "validation" in entry]
    assert training.mean_score("validation") == max(looked)
    assert_same_bits(trainables.copy(), progress.best)
    assert {tensor.dtype for tensor in progress.best.values()} == {torch.float32}
    names = parameter_names(model)
    assert all(torch.equal(names[name], tensor.to(torch.bfloat16)) for name, tensor in progress.best.items())


class Killed(Exception):
    pass


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("method", ["full", "bias", "region", "outside", "lora", "houlsby", "linear"])
def test_a_killed_run_of_a_narrow_model_ends_with_the_same_bits(method: str, optimizer: Any, tmp_path: Path) -> None:
    plan = (ADAMW if optimizer == "adamw" else SGD).with_changes(
        steps=10, dropout=method != "linear", validate_every=4, keep="best", clip_norm=1.0, accumulation=2,
        method="full" if method in ("region", "outside") else method,
        l1=1e-4 if method == "full" else 0.0,
    )  # fmt: skip
    region = a_region(tiny_bert())
    regions = {"region": {"inside": region}, "outside": {"outside": region}}.get(method, {})
    straight, resumed = narrow_bert(dropout=0.1), narrow_bert(dropout=0.1)
    progress, expected = run(straight, plan, **regions)

    def kill(step: int, _steps: int, _entry: Any) -> None:
        if step == 7:
            raise Killed

    kept: dict[str, Any] = {"snapshot": Snapshot.beside(tmp_path / "out", {}), "snapshot_seconds": 0.0}
    with pytest.raises(Killed):
        run(narrow_bert(dropout=0.1), plan, **kept, **regions, on_step=kill)
    seen: list[int] = []
    again, found = run(resumed, plan, **kept, **regions, on_step=lambda step, *_: seen.append(step))
    assert seen == [7, 8, 9, 10]
    assert again.log == progress.log
    assert_same_bits(found.copy(), expected.copy())
    assert_same_bits(numbers(resumed), numbers(straight))


def test_frozen_entries_keep_their_bits_whatever_the_decay() -> None:
    model = narrow_bert()
    region, before = a_region(model), numbers(model)
    run(model, ADAMW.with_changes(weight_decay=10.0), outside=region)
    for name, at in region.sites.items():
        index = np.array(at)
        assert torch.equal(numbers(model)[name].view(-1)[index], before[name].view(-1)[index])
    assert sum(int((tensor != before[name]).sum()) for name, tensor in numbers(model).items()) > len(region)


def test_everything_lies_on_the_parameters_device() -> None:
    model = narrow_bert().to("meta")
    region = a_region(model)
    inside, outside = choose_trainables(model, inside=region), choose_trainables(model, outside=region)
    held = [master.at for master in inside.masters.values()] + list(inside.tensors.values())
    held += [tensor for pair in outside.frozen_sites.values() for tensor in pair] + list(outside.tensors.values())
    held += list(outside.copy().values())
    assert {tensor.device.type for tensor in held if tensor is not None} == {"meta"}
