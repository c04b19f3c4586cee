"""Ways to choose a region: one table, one signature.

Each ranks all entries of the scope, so that every budget is a prefix of one order. Only the learned region also has an
answer of its own to how many entries there are (γ > ½).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from skillgraft.errors import InputError, did_you_mean
from skillgraft.localize.learned import learn
from skillgraft.localize.problem import Problem
from skillgraft.localize.ranking import Ranking
from skillgraft.region import Region


@dataclass(frozen=True)
class Found:
    """A ranking of all entries, the method's own region where it has one, and what there is to tell about the search."""

    ranking: Ranking
    region: Region | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


# (problem, start, *, most, **options) -> Found. `most` is the largest budget that will be asked for; `start` is γ_base,
# which only the learned region uses.
Method = Callable[..., Found]


def learned(problem: Problem, start: Region, *, most: int, **options: Any) -> Found:
    """P1 §2.3: gradient descent on a soft mask. Options are those of `learned.learn`."""
    result = learn(problem, start, **options)
    facts = {"losses": list(result.losses), "looks": [list(look) for look in result.looks]}
    return Found(result.soft.ranking(most=most), result.region, facts)


def movement(problem: Problem, _start: Region, *, most: int) -> Found:
    """P1's comparison: the entries that moved the most, |tuned − base|."""
    sizes = {name: delta.abs().float().numpy() for name, delta in problem.delta.items()}
    return Found(Ranking(problem.scope, sizes, sizes, most=most))


def random(problem: Problem, _start: Region, *, most: int, seed: int = 0) -> Found:
    """P1's other comparison: entries drawn at random."""
    draw = np.random.default_rng(seed)
    scores = {name: draw.random(tuple(delta.shape), dtype=np.float32) for name, delta in problem.delta.items()}
    return Found(Ranking(problem.scope, scores, scores, most=most))


def attribution(problem: Problem, _start: Region, *, most: int, points: int = 8) -> Found:
    """How much of the loss an entry takes off on the straight way from reference to tuned: −mean gradient ⊙ delta."""
    gained = {name: torch.zeros_like(delta) for name, delta in problem.delta.items()}
    with problem.borrowed():
        for point in range(points):
            _go(problem, (point + 0.5) / points)
            problem.backward(point)
            for name, parameter in problem.parameters.items():
                if parameter.grad is not None:
                    gained[name].addcmul_(parameter.grad, problem.delta[name], value=-1.0 / points)
    scores = {name: gain.float().numpy() for name, gain in gained.items()}
    sizes = {name: delta.abs().float().numpy() for name, delta in problem.delta.items()}
    return Found(Ranking(problem.scope, scores, sizes, most=most))


@torch.no_grad()
def _go(problem: Problem, share: float) -> None:
    for name, parameter in problem.parameters.items():
        torch.add(problem.reference[name], problem.delta[name], alpha=share, out=parameter.data)


METHODS: Mapping[str, Method] = MappingProxyType(
    {"learned": learned, "movement": movement, "random": random, "attribution": attribution}
)


def method(name: str) -> Method:
    """A method by name."""
    if name not in METHODS:
        raise InputError(f"unknown method {name!r}; {did_you_mean(name, METHODS)}")
    return METHODS[name]
