"""A region learned within its budget: a few steps on a soft mask whose sum is the budget at every step.

    minimise the task loss at reference + γ ⊙ (tuned − reference)   over 0 ≤ γ ≤ 1 with Σγ = budget
    γ_j = min(1, exp(w_j + λ)), λ such that Σγ = budget               w starts as log |delta|: movement, softened
    w ← w + gain / steps · s / typical,  s = −∂L/∂θ ⊙ delta = −∂L/∂γ   (mirror descent with the relative entropy)

The learned region (P1 §2.3) grows its mask from nearly nothing and takes tens of steps until enough of it has grown. Here the
mask is as large as the answer from the first step on, so every gradient is taken near a model of the size that is asked for:
entries that together would overshoot are held back as soon as they do. `typical` is Σγ|s| / budget, averaged over the steps
so far; it makes `gain` a number without a unit. Only the entries that moved most are candidates, so that a step costs a
step of training and hardly more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from skillgraft.errors import InputError
from skillgraft.live import as_numpy
from skillgraft.localize.problem import Problem
from skillgraft.localize.ranking import Array, Ranking
from skillgraft.region import Region

STEPS = 4  # a tenth of the 40 that the learned region takes at its least
GAIN = 3.0
CANDIDATES = 0.02  # of the scope; twice the budget where that is more


@dataclass(frozen=True, eq=False)
class Budgeted:
    """The outcome: all entries in order, candidates first, and the loss before each step."""

    ranking: Ranking
    losses: tuple[float, ...]
    candidates: int


def learn_within_budget(
    problem: Problem, *, budget: int, steps: int = STEPS, gain: float = GAIN, candidates: float = CANDIDATES
) -> Budgeted:
    """Rank the scope's entries for regions of `budget` entries; a smaller one is a prefix, but was not learned for itself.

    `gain` is by how much the log of a typical chosen entry's mask moves in all the steps together.
    """
    _check(steps, gain, candidates)
    mask = _Mask(problem, max(2 * budget, round(candidates * problem.scope.size)))
    losses, typical = [], 0.0
    with problem.borrowed():
        problem.put_on(Region(problem.scope, {}))
        for step in range(steps):
            gamma = capped(mask.w, budget)
            mask.put_on(gamma)
            losses.append(problem.backward(step))
            slope = mask.slope()
            typical += float((gamma * slope.abs()).sum()) / budget
            if typical > 0:
                mask.w += gain / steps * slope / (typical / (step + 1))
    ranking = Ranking(problem.scope, mask.order, problem.movement, most=budget)
    return Budgeted(ranking, tuple(losses), len(mask.w))


def capped(w: Tensor, total: int) -> Tensor:
    """min(1, exp(w + λ)) with the λ for which the sum is `total`; all ones where there are no more than that.

    With c entries at 1, λ = log(total − c) − log Σ exp(w) over the rest; c is the fewest for which the rest stays below 1.
    """
    if len(w) <= total:
        return torch.ones_like(w)
    falling, order = torch.sort(w.double(), descending=True, stable=True)
    rest = torch.logcumsumexp(falling.flip(0), 0).flip(0)[:total]
    shifts = torch.log(total - torch.arange(total, device=w.device, dtype=torch.float64)) - rest
    # The last always fits: what shares the one remaining unit is below it.
    ones = int(torch.nonzero(falling[:total] + shifts <= 1e-12)[0])
    gamma = torch.ones_like(w)
    gamma[order[ones:]] = torch.exp(falling[ones:] + shifts[ones]).clamp(max=1.0).to(w.dtype)
    return gamma


class _Mask:
    """w over the most moved entries, joined in the scope's order of names; nothing of the scope's size is kept."""

    def __init__(self, problem: Problem, count: int) -> None:
        moved = Ranking(problem.scope, problem.movement, problem.movement, most=count).top(count)
        self.problem = problem
        self.at = {
            name: torch.from_numpy(np.array(places, np.int64)).to(problem.delta[name].device)
            for name, places in moved.sites.items()
        }
        self.delta = torch.cat([problem.delta[name].view(-1)[at] for name, at in self.at.items()])
        # An entry that did not move has no logarithm; it comes last.
        self.w = self.delta.abs().clamp(min=torch.finfo(self.delta.dtype).tiny).log()

    @torch.no_grad()
    def put_on(self, gamma: Tensor) -> None:
        """Write reference + γ ⊙ delta at the candidates; the rest of the model holds the reference."""
        for (name, at), change in zip(self.at.items(), self._by_name(gamma * self.delta), strict=True):
            parameter = self.problem.parameters[name]
            numbers = self.problem.reference[name].reshape(-1)[at] + change
            parameter.view(-1)[at] = numbers.to(parameter.dtype)

    def slope(self) -> Tensor:
        """−∂L/∂γ of the candidates, from the gradients that the model's parameters hold."""
        found = []
        for name, at in self.at.items():
            gradient = self.problem.parameters[name].grad
            found.append(torch.zeros_like(at, dtype=self.delta.dtype) if gradient is None else gradient.view(-1)[at])
        return -torch.cat([each.to(self.delta.dtype) for each in found]) * self.delta

    def order(self, name: str) -> Array:
        """The scores by which entries are ranked: w, and below every candidate the others (by |delta|, as ties go)."""
        scores = np.full(self.problem.delta[name].numel(), -np.inf, np.float32)
        if name in self.at:
            mine = dict(zip(self.at, self._by_name(self.w), strict=True))[name]
            scores[as_numpy(self.at[name])] = as_numpy(mine.float())
        return scores

    def _by_name(self, joined: Tensor) -> tuple[Tensor, ...]:
        return torch.split(joined, [len(at) for at in self.at.values()])


def _check(steps: int, gain: float, candidates: float) -> None:
    if steps < 1:
        raise InputError(f"a search takes 1 step or more, found {steps}")
    if not gain > 0:
        raise InputError(f"the gain must be above 0, found {gain}")
    if not 0 < candidates <= 1:
        raise InputError(f"candidates are a share of the scope, above 0 and at most 1; found {candidates}")
