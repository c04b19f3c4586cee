"""Training inside and outside a region: the numbers of a masked full optimizer, at the region's cost."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from skillgraft.errors import InputError
from skillgraft.live.grafted import parameter_names, tensors_of
from skillgraft.training.loop import make_optimizer
from skillgraft.training.plan import TrainingPlan
from skillgraft.training.trainables import choose_trainables
from skillgraft.values.region import Region, Scope
from tests.training.toys import ToyReadout, tiny_bert, toy_rows


def a_region(model: nn.Module, *, density: float = 0.1, seed: int = 0) -> Region:
    scope = Scope.select("layers", {n: tuple(p.shape) for n, p in parameter_names(model).items()})
    draw = np.random.default_rng(seed)
    names = [name for name in scope.shapes if not name.endswith("key.weight")]  # some parameters stay without entries
    return Region(scope, {n: np.flatnonzero(draw.random(int(np.prod(scope.shapes[n]))) < density) for n in names})


def loss_of(model: nn.Module, rows: list) -> torch.Tensor:
    readout = ToyReadout()
    batch = readout.collate(rows)
    return nn.functional.cross_entropy(readout.scores(model, batch), batch["labels"])


def train_in_region(model: nn.Module, region: Region, plan: TrainingPlan, steps: int) -> None:
    trainables = choose_trainables(model, inside=region)
    optimizer = make_optimizer(plan, trainables.tensors)
    with trainables.listening():
        for step in range(steps):
            optimizer.zero_grad(set_to_none=True)
            loss_of(model, toy_rows(8, seed=step)).backward()
            trainables.before_step()
            if plan.clip_norm:
                torch.nn.utils.clip_grad_norm_(list(trainables.tensors.values()), plan.clip_norm)
            optimizer.step()
            trainables.after_step()


def train_masked(model: nn.Module, region: Region, plan: TrainingPlan, steps: int) -> None:
    """The plain way: full-size optimizer, gradients and updates masked."""
    names = parameter_names(model)
    start = {name: p.detach().clone() for name, p in names.items()}
    masks = {name: torch.from_numpy(region.mask(name)) if name in region.scope.shapes else None for name in names}
    optimizer = make_optimizer(plan, names)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, toy_rows(8, seed=step)).backward()
        for name, p in names.items():
            p.grad = torch.zeros_like(p) if masks[name] is None or p.grad is None else p.grad * masks[name]
        if plan.clip_norm:
            torch.nn.utils.clip_grad_norm_(list(names.values()), plan.clip_norm)
        optimizer.step()
        with torch.no_grad():
            for name, p in names.items():
                p.copy_(start[name] if masks[name] is None else torch.where(masks[name], p, start[name]))


@pytest.mark.parametrize(
    "plan",
    [
        TrainingPlan(optimizer="adamw", lr=1e-2, weight_decay=0.1),
        TrainingPlan(optimizer="adamw", lr=1e-2, weight_decay=0.0, clip_norm=0.01),
        TrainingPlan(optimizer="sgd", lr=0.1, weight_decay=0.01, momentum=0.9),
    ],
    ids=["adamw", "adamw-clipped", "sgd-momentum"],
)
def test_same_numbers_as_a_masked_full_optimizer(plan: TrainingPlan) -> None:
    small, full = tiny_bert(), tiny_bert()
    region = a_region(small)
    train_in_region(small, region, plan, steps=6)
    train_masked(full, region, plan, steps=6)
    start = tensors_of(tiny_bert()).arrays
    moved = 0
    for name, array in tensors_of(small).arrays.items():
        np.testing.assert_allclose(array, tensors_of(full).arrays[name], rtol=2e-4, atol=2e-6, err_msg=name)
        moved += int((array != start[name]).sum())
    assert moved > 0.9 * len(region)


def test_outside_the_region_not_a_bit_changes() -> None:
    model = tiny_bert()
    before = copy.deepcopy(tensors_of(model).arrays)
    region = a_region(model)
    train_in_region(model, region, TrainingPlan(optimizer="adamw", lr=1e-2, weight_decay=0.1), steps=3)
    for name, array in tensors_of(model).arrays.items():
        outside = ~region.mask(name) if name in region.scope.shapes else np.ones(array.shape, bool)
        assert (array[outside] == before[name][outside]).all(), name


def test_gradients_of_untouched_parameters_are_never_computed_and_full_ones_are_freed() -> None:
    model = tiny_bert()
    trainables = choose_trainables(model, inside=a_region(model))
    with trainables.listening():
        loss_of(model, toy_rows(8)).backward()
    names = parameter_names(model)
    assert all(parameter.grad is None for parameter in names.values())
    untouched = [name for name in names if name.endswith("key.weight")]
    assert untouched
    assert not any(names[name].requires_grad for name in untouched)
    assert all(tensor.grad is not None for tensor in trainables.tensors.values())
    assert sum(tensor.numel() for tensor in trainables.tensors.values()) == len(trainables)


def test_optimizer_state_is_as_small_as_the_region() -> None:
    model = tiny_bert()
    region = a_region(model)
    trainables = choose_trainables(model, inside=region)
    optimizer = make_optimizer(TrainingPlan(optimizer="adamw"), trainables.tensors)
    with trainables.listening():
        loss_of(model, toy_rows(8)).backward()
    optimizer.step()
    numbers = sum(part.numel() for state in optimizer.state.values() for part in state.values() if part.ndim)
    assert numbers == 2 * len(region)


def test_training_outside_a_region_leaves_it_bit_equal() -> None:
    model = tiny_bert()
    before = copy.deepcopy(tensors_of(model).arrays)
    region = a_region(model)
    trainables = choose_trainables(model, outside=region)
    optimizer = make_optimizer(TrainingPlan(optimizer="adamw", lr=1e-2, weight_decay=0.1), trainables.tensors)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, toy_rows(8, seed=step)).backward()
        trainables.before_step()
        optimizer.step()
        trainables.after_step()
    after = tensors_of(model).arrays
    for name, at in region.sites.items():
        assert (after[name].reshape(-1)[at] == before[name].reshape(-1)[at]).all()
    assert sum((after[name] != before[name]).sum() for name in after) > len(region)
    assert len(trainables) == sum(p.numel() for p in trainables.tensors.values()) - len(region)


def test_embeddings_are_frozen_unless_asked_for() -> None:
    model = tiny_bert()
    assert not any("embeddings" in name for name in choose_trainables(model).tensors)
    assert any("embeddings" in name for name in choose_trainables(model, embeddings=True).tensors)
    assert all(name.endswith("bias") for name in choose_trainables(model, biases=True).tensors)


@pytest.mark.parametrize("way", [{}, {"biases": True}])
def test_a_head_that_nobody_reads_neither_trains_nor_counts(way: dict[str, bool]) -> None:
    model = transformers.BertModel(tiny_bert().config)  # with a pooler
    read, unread = choose_trainables(model, **way), choose_trainables(model, **way, read_heads=False)
    assert read.tensors.keys() - unread.tensors.keys() == {"pooler.dense.weight", "pooler.dense.bias"}
    assert len(read) - len(unread) == 16 * 16 + 16
    assert not any(parameter.requires_grad for parameter in model.pooler.parameters())


@pytest.mark.parametrize("way", ["inside", "outside"])
def test_a_region_of_another_model_is_refused(way: str) -> None:
    other = Region(Scope.of("all", {"decoder.weight": (3, 3)}), {"decoder.weight": [1]})
    with pytest.raises(InputError, match=r"not of this model: decoder\.weight"):
        choose_trainables(tiny_bert(), **{way: other})


def test_biases_inside_a_region_are_its_biases() -> None:
    model = tiny_bert()
    region = a_region(model)
    trainables = choose_trainables(model, inside=region, biases=True)
    assert len(trainables) == sum(len(at) for name, at in region.sites.items() if name.endswith("bias")) > 0


def test_the_pull_is_the_gradient_of_the_l1_distance() -> None:
    model = tiny_bert()
    trainables = choose_trainables(model)
    base = trainables.copy()
    name = next(name for name in trainables.tensors if name.endswith("query.weight"))
    with torch.no_grad():
        trainables.tensors[name].add_(0.5)
    loss_of(model, toy_rows(8)).backward()
    plain = trainables.tensors[name].grad.clone()
    trainables.before_step(pull=base, strength=0.001)
    torch.testing.assert_close(trainables.tensors[name].grad, plain + 0.001)


def test_a_proximal_pull_shrinks_every_delta_and_gives_small_ones_the_bases_own_bits() -> None:
    trainables = choose_trainables(tiny_bert())
    base = trainables.copy()
    name = next(name for name in trainables.tensors if name.endswith("query.weight"))
    moved = torch.linspace(-1.0, 1.0, base[name].numel()).view_as(base[name])
    with torch.no_grad():
        trainables.tensors[name].add_(moved)
    trainables.shrink(base, 0.25)
    left = trainables.tensors[name].detach() - base[name]
    torch.testing.assert_close(left, moved.sign() * (moved.abs() - 0.25).clamp(min=0), atol=1e-6, rtol=0)
    assert torch.equal(trainables.tensors[name][moved.abs() < 0.2], base[name][moved.abs() < 0.2])
