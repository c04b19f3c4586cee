"""The region learned within its budget: its steps against brute force, and what the search gives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from skillgraft.errors import InputError
from skillgraft.live.grafted import tensors_of
from skillgraft.regions.budgeted import Budgeted, learn_within_budget
from skillgraft.regions.methods import METHODS
from skillgraft.regions.problem import Problem
from skillgraft.values.region import Region
from tests.regions.toys import BlendedLoss, a_problem, bert_loss, bert_pair, bert_steps, nothing


@pytest.fixture(scope="module")
def pair() -> tuple[nn.Module, Any]:
    return bert_pair()


@pytest.mark.parametrize("reference", ["base", "zero"])
def test_three_steps_are_those_of_autograd_on_the_mask(pair: Any, reference: Any) -> None:
    """The module's formula written out over all entries, the slope from autograd through reference + mask ⊙ delta."""
    problem = a_problem(pair, reference=reference)
    budget, gain = 60, 2.0
    numbers = [problem.numbers(name) for name in problem.scope.shapes]
    start, delta = (torch.cat(parts) for parts in zip(*numbers, strict=True))
    sizes = [math.prod(shape) for shape in problem.scope.shapes.values()]
    blended = BlendedLoss(problem)
    pair[0].eval()
    w, typical = delta.abs().clamp(min=torch.finfo(torch.float32).tiny).log(), []
    for step in range(3):
        best = torch.topk(w, budget).indices
        mask = torch.zeros_like(w).index_fill_(0, best, 1.0).requires_grad_()
        pieces = (start + mask * delta).split(sizes)
        total = blended.at(dict(zip(problem.scope.shapes, pieces, strict=True)))
        (slope,) = torch.autograd.grad(-total, mask)
        typical.append(float(slope[best].abs().mean()))
        w = w + gain / 3 * 2 * (1 - step / 3) * slope / np.mean(typical)
    found = learn_within_budget(problem, budget=budget, steps=3, gain=gain, candidates=1.0)
    wanted = torch.topk(w.double(), budget).indices.tolist()
    agreed = len(set(wanted) & set(found.ranking.order[:budget].tolist()))
    assert agreed >= budget - 1, "float32 may swap two entries at the edge"
    assert found.ranking.order[:10].tolist() == wanted[:10]
    assert wanted[:10] != torch.topk(delta.abs(), 10).indices.tolist(), "the steps changed something"


def test_a_step_of_no_size_is_movement(pair: Any) -> None:
    problem = a_problem(pair)
    found = METHODS["budgeted"](problem, nothing(problem), most=40, steps=1, gain=1e-9)
    assert found.ranking.top(40) == METHODS["movement"](problem, nothing(problem), most=40).ranking.top(40)


def test_only_the_most_moved_are_candidates(pair: Any) -> None:
    problem = a_problem(pair)
    found = learn_within_budget(problem, budget=10, candidates=1e-6, gain=50.0)
    assert found.candidates == 20, "twice the budget where the share is less"
    moved = METHODS["movement"](problem, nothing(problem), most=20).ranking.top(20)
    assert len(found.ranking.top(10) - moved) == 0


def test_it_beats_movement_on_the_loss_and_gives_the_model_back(pair: Any) -> None:
    problem = a_problem(pair)
    before = {name: array.copy() for name, array in tensors_of(pair[0]).arrays.items()}
    losses = {}
    for name in ("budgeted", "movement"):
        region = METHODS[name](problem, nothing(problem), most=100).ranking.top(100)
        with problem.borrowed():
            problem.put_on(region)
            losses[name] = problem.backward(0)
    assert losses["budgeted"] < losses["movement"]
    after = tensors_of(pair[0]).arrays
    assert all(after[name].tobytes() == array.tobytes() for name, array in before.items())


def test_of_the_regions_that_are_looked_at_the_best_is_taken_and_movement_is_the_first(pair: Any) -> None:
    problem = a_problem(pair)
    before = {name: array.copy() for name, array in tensors_of(pair[0]).arrays.items()}
    seen: list[Region] = []

    def search(scores: list[float]) -> Budgeted:
        seen.clear()

        def score(region: Region) -> float:
            held = tensors_of(pair[0]).arrays
            assert all(held[name].tobytes() == array.tobytes() for name, array in before.items()), "nothing is on"
            seen.append(region)
            return scores[len(seen) - 1]

        return learn_within_budget(problem, budget=40, steps=5, gain=30.0, look_every=2, score=score)

    found = search([0.1, 0.7, 0.7, 0.2])
    assert found.looks == ((0, 0.1), (2, 0.7), (4, 0.7), (5, 0.2))
    assert found.ranking.top(40) == seen[1] != seen[2], "of equal ones the first"
    assert search([0.9, 0.7, 0.6, 0.8]).ranking.top(40) == seen[0]
    assert seen[0] == METHODS["movement"](problem, nothing(problem), most=40).ranking.top(40)
    plain = learn_within_budget(problem, budget=40, steps=5, gain=30.0)
    assert search([0.0, 0.1, 0.2, 0.3]).ranking.top(40) == plain.ranking.top(40), "looking changes no step"


def test_nothing_moved_is_no_reason_to_fail(pair: Any) -> None:
    problem = Problem.between(pair[0], tensors_of(pair[0]), steps=bert_steps, loss=bert_loss)
    assert len(learn_within_budget(problem, budget=7).ranking.top(7)) == 7


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "1 step or more, found 0"),
        ({"gain": 0.0}, "above 0, found 0.0"),
        ({"candidates": 1.5}, "at most 1; found 1.5"),
        ({"look_every": 0}, "look_every must be 1 or more, found 0"),
    ],
)
def test_wrong_settings_are_refused(pair: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        learn_within_budget(a_problem(pair), budget=5, **settings)
