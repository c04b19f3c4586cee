"""A region learned within its budget: many small steps, each at a model that is really grafted.

    region of a step = the `budget` entries with the highest w            w starts as log |delta|: the region starts as movement's
    w ← w + gain / steps · 2 (1 − step / steps) · s / typical,  s = −∂L/∂θ ⊙ delta at reference + region ⊙ delta

s is what putting an entry on would take off the loss, to first order, with the region as it is. It is taken for the entries
outside the region too, so they come in as others go. The learned region (P1 §2.3) grows a soft mask from nearly nothing and
is rounded at the end; here every gradient is taken at a grafted model of the size that is asked for, so there is nothing to
round, and sums of many noisy slopes decide: a step needs few rows. `typical` is the mean of |s| in the region, averaged over the
steps so far; it makes `gain` a number without a unit. Steps grow smaller to the end, so that what single batches say averages
out, and each has as many rows of every class: slopes of two classes point apart, and a batch with more of one moves the region
towards it. Only the entries that moved most are candidates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from skillgraft.errors import InputError
from skillgraft.live.grafted import as_numpy
from skillgraft.regions.problem import Problem
from skillgraft.regions.ranking import Array, Ranking
from skillgraft.values.region import Region

STEPS = 40
ROWS = 24  # of a step: 40 of them cost less than a tenth of 40 steps of 256
GAIN = 10.0
CANDIDATES = 0.05  # of the scope; twice the budget where that is more


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

    `gain` is by how much w of a typical chosen entry moves in all the steps together.
    """
    _check(steps, gain, candidates)
    chosen = _Candidates(problem, max(2 * budget, round(candidates * problem.scope.size)))
    losses, typical = [], 0.0
    with problem.borrowed():
        problem.put_on(Region(problem.scope, {}))
        for step in range(steps):
            region = torch.topk(chosen.w, min(budget, len(chosen.w))).indices
            chosen.put_on(region)
            losses.append(problem.backward(step))
            slope = chosen.slope()
            typical += float(slope[region].abs().mean())
            if typical > 0:
                falling = 2 * (1 - step / steps)
                chosen.w += gain / steps * falling * slope / (typical / (step + 1))
    ranking = Ranking(problem.scope, chosen.order, problem.movement, most=budget)
    return Budgeted(ranking, tuple(losses), len(chosen.w))


class _Candidates:
    """w of the most moved entries, joined in the scope's order of names; nothing of the scope's size is kept."""

    def __init__(self, problem: Problem, count: int) -> None:
        moved = Ranking(problem.scope, problem.movement, problem.movement, most=count).top(count)
        self.problem = problem
        self.at = {name: problem.indices(name, at) for name, at in moved.sites.items()}
        numbers = [problem.delta_at(name, at) for name, at in self.at.items()]
        self.reference, self.delta = (torch.cat(parts) for parts in zip(*numbers, strict=True))
        self.grafted = torch.cat([problem.grafted_at(name, at).to(self.delta) for name, at in self.at.items()])
        # An entry that did not move has no logarithm; it comes last.
        self.w = self.delta.abs().clamp(min=torch.finfo(self.delta.dtype).tiny).log()

    @torch.no_grad()
    def put_on(self, region: Tensor) -> None:
        """Write the graft's numbers at these candidates and the reference's at the others; the rest of the model holds those."""
        numbers = self.reference.clone()
        numbers[region] = self.grafted[region]
        for (name, at), mine in zip(self.at.items(), self._by_name(numbers), strict=True):
            flat = self.problem.slots[name].data.view(-1)
            flat[at] = mine.to(flat.dtype)

    def slope(self) -> Tensor:
        """−∂L/∂θ ⊙ delta of all candidates, from the gradients that the model's parameters hold."""
        found = []
        for name, at in self.at.items():
            gradient = self.problem.gradient(name)
            found.append(torch.zeros_like(at, dtype=self.delta.dtype) if gradient is None else gradient[at])
        return -torch.cat([each.to(self.delta.dtype) for each in found]) * self.delta

    def order(self, name: str) -> Array:
        """The scores by which entries are ranked: w, and below every candidate the others (by |delta|, as ties go)."""
        scores = np.full(len(self.problem.before[name]), -np.inf, np.float32)
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
