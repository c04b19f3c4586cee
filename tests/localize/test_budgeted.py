"""The region learned within its budget: the capped mask and one step against brute force, and what the search gives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from skillgraft.errors import InputError
from skillgraft.live import tensors_of
from skillgraft.localize.budgeted import capped, learn_within_budget
from skillgraft.localize.methods import METHODS
from skillgraft.localize.problem import Problem
from skillgraft.region import Region
from tests.localize.test_learned import a_problem, loss, steps, tuned_bert
from tests.training.toys import tiny_bert


@pytest.fixture(scope="module")
def pair() -> tuple[nn.Module, Any]:
    return tiny_bert(), tensors_of(tuned_bert())


def none(problem: Problem) -> Region:
    return Region(problem.scope, {})


def bisected(w: list[float], total: int) -> list[float]:
    """min(1, exp(w + λ)) by halving the interval that holds λ."""
    low, high = -max(w) - 60.0, -min(w) + 60.0
    for _ in range(200):
        middle = (low + high) / 2
        if math.fsum(min(1.0, math.exp(min(0.0, each + middle))) for each in w) > total:
            high = middle
        else:
            low = middle
    return [min(1.0, math.exp(min(0.0, each + low))) for each in w]


@given(st.lists(st.floats(-30, 30), min_size=2, max_size=12), st.data())
def test_the_capped_mask_is_the_one_that_halving_finds(w: list[float], data: st.DataObject) -> None:
    total = data.draw(st.integers(1, len(w) - 1))
    gamma = capped(torch.tensor(w, dtype=torch.float64), total)
    assert gamma.tolist() == pytest.approx(bisected(w, total), rel=1e-6, abs=1e-9)
    assert float(gamma.sum()) == pytest.approx(total)


def test_capped_by_hand() -> None:
    """Weights 8, 1, 1 and two to share: the first would get 1.6, so it gets 1 and the others share the one that is left."""
    assert capped(torch.tensor([8.0, 1.0, 1.0]).log(), 2).tolist() == pytest.approx([1.0, 0.5, 0.5])
    assert capped(torch.tensor([3.0, 1.0]).log(), 1).tolist() == pytest.approx([0.75, 0.25])
    assert capped(torch.tensor([-9.0, 4.0]), 2).tolist() == [1.0, 1.0]


def flat(numbers: Any, problem: Problem) -> torch.Tensor:
    return torch.cat([numbers[name].detach().reshape(-1) for name in problem.scope.shapes])


@pytest.mark.parametrize("reference", ["base", "zero"])
def test_two_steps_are_those_of_autograd_on_the_mask(pair: Any, reference: Any) -> None:
    """The module's formula written out over all entries, the slope from autograd through reference + γ ⊙ delta."""
    problem = a_problem(pair, reference=reference)
    budget, gain = 60, 2.0
    delta, start = flat(problem.delta, problem), flat(problem.reference, problem)
    sizes = [math.prod(shape) for shape in problem.scope.shapes.values()]
    real = {id(p): n for n, p in pair[0].named_parameters()}
    w, typical = delta.abs().clamp(min=torch.finfo(torch.float32).tiny).log(), []
    for _ in range(2):
        gamma = torch.tensor(bisected(w.tolist(), budget), dtype=torch.float32, requires_grad=True)
        pieces = (start + gamma * delta).split(sizes)
        blended = {
            real[id(problem.parameters[name])]: piece.view(problem.scope.shapes[name])
            for name, piece in zip(problem.scope.shapes, pieces, strict=True)
        }

        class Whole(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = pair[0]

            def forward(self, batch: Any) -> torch.Tensor:
                return loss(self.model, batch)

        inside = {f"model.{name}": tensor for name, tensor in blended.items()}
        pair[0].eval()
        total = sum(torch.func.functional_call(Whole(), inside, (batch,)) * share for batch, share in steps(0))
        (slope,) = torch.autograd.grad(-total, gamma)
        typical.append(float((gamma.detach() * slope.abs()).sum()) / budget)
        w = w + gain / 2 * slope / np.mean(typical)
    found = learn_within_budget(problem, budget=budget, steps=2, gain=gain, candidates=1.0)
    best = torch.topk(w.double(), budget).indices.tolist()
    agreed = len(set(best) & set(found.ranking.order[:budget].tolist()))
    assert agreed >= budget - 1, "float32 may swap two entries at the edge"
    assert found.ranking.order[:10].tolist() == best[:10]


def test_a_step_of_no_size_is_movement(pair: Any) -> None:
    problem = a_problem(pair)
    found = METHODS["budgeted"](problem, none(problem), most=40, steps=1, gain=1e-9)
    assert found.ranking.top(40) == METHODS["movement"](problem, none(problem), most=40).ranking.top(40)


def test_only_the_most_moved_are_candidates(pair: Any) -> None:
    problem = a_problem(pair)
    found = learn_within_budget(problem, budget=10, candidates=1e-6, gain=50.0)
    assert found.candidates == 20, "twice the budget where the share is less"
    moved = METHODS["movement"](problem, none(problem), most=20).ranking.top(20)
    assert len(found.ranking.top(10) - moved) == 0


def test_it_beats_movement_on_the_loss_and_gives_the_model_back(pair: Any) -> None:
    problem = a_problem(pair)
    before = {name: array.copy() for name, array in tensors_of(pair[0]).arrays.items()}
    losses = {}
    for name in ("budgeted", "movement"):
        region = METHODS[name](problem, none(problem), most=100).ranking.top(100)
        with problem.borrowed():
            problem.put_on(region)
            losses[name] = problem.backward(0)
    assert losses["budgeted"] < losses["movement"]
    after = tensors_of(pair[0]).arrays
    assert all(after[name].tobytes() == array.tobytes() for name, array in before.items())


def test_nothing_moved_is_no_reason_to_fail(pair: Any) -> None:
    problem = Problem.between(pair[0], tensors_of(pair[0]), steps=steps, loss=loss)
    assert len(learn_within_budget(problem, budget=7).ranking.top(7)) == 7


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "1 step or more, found 0"),
        ({"gain": 0.0}, "above 0, found 0.0"),
        ({"candidates": 1.5}, "at most 1; found 1.5"),
    ],
)
def test_wrong_settings_are_refused(pair: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        learn_within_budget(a_problem(pair), budget=5, **settings)
