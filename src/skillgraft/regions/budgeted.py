"""A region learned within its budget: many small steps, each at a model that is really grafted.

    region of a step = the `budget` entries with the highest w            w starts as log |delta|: the region starts as movement's
    w ← w + gain / steps · 2 (1 − step / steps) · s / typical,  s = −∂L/∂θ ⊙ delta at reference + region ⊙ delta

s is what putting an entry on would take off the loss, to first order, with the region as it is. It is taken for the entries
outside the region too, so they come in as others go. The learned region (P1 §2.3) grows a soft mask from nearly nothing and
is rounded at the end; here every gradient is taken at a grafted model of the size that is asked for, so there is nothing to
round, and sums of many noisy slopes decide: a step needs few rows. `typical` is the mean of |s| in the region, averaged over the
steps so far; it makes `gain` a number without a unit. Steps grow smaller to the end, so that what single batches say averages
out, and each has as many rows of every class: slopes of two classes point apart, and a batch with more of one moves the region
towards it. Only the entries that moved most are candidates: beside the model nothing is held but a few numbers for each of these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from skillgraft.errors import InputError
from skillgraft.opening.runtime import Progress, silent
from skillgraft.regions.candidates import CANDIDATES, Candidates, check_candidates, most_moved_of
from skillgraft.regions.problem import Problem, Touched
from skillgraft.regions.ranking import Ranking
from skillgraft.values.region import Region

STEPS = 40
ROWS = 24  # of a step: 40 of them cost less than a tenth of 40 steps of 256
GAIN = 10.0


@dataclass(frozen=True, eq=False)
class Budgeted:
    """The outcome: all entries in order, candidates first, and the loss before each step."""

    ranking: Ranking
    losses: tuple[float, ...]
    candidates: int
    looks: tuple[tuple[int, float], ...] = ()  # step, the score of its region; step 0 is movement


def learn_within_budget(
    problem: Problem,
    *,
    budget: int,
    steps: int = STEPS,
    gain: float = GAIN,
    candidates: float = CANDIDATES,
    look_every: int | None = None,
    score: Callable[[Region], float] | None = None,
    progress: Progress = silent,
) -> Budgeted:
    """Rank the scope's entries for regions of `budget` entries; a smaller one is a prefix, but was not learned for itself.

    `gain` is by how much w of a typical chosen entry moves in all the steps together. `candidates` is a share of the scope; twice
    the budget where that is more. With `look_every` regions are compared by `score` every so many steps and at the end, and the
    best one is the outcome, of equal ones the first. Law: none scores less than movement, the region of step 0.
    """
    _check(steps, gain, candidates, look_every)
    count = min(max(2 * budget, round(candidates * problem.scope.size)), problem.scope.size)
    among = Candidates(problem, most_moved_of(problem, count))
    # An entry that did not move has no logarithm; it comes last.
    torch.log(among.delta.abs().clamp_(min=torch.finfo(among.delta.dtype).tiny), out=among.values)
    losses, typical, looks = [], 0.0, _Looks(among, budget, score if look_every else None)
    with problem.among(among.at) as touched:
        looks.look(0, touched)
        for step in range(steps):
            region = among.best(budget)
            touched.put_on(among.sites(region))
            losses.append(among.backward(step))
            typical += among.mean_slope(region)
            if typical > 0:
                falling = 2 * (1 - step / steps)
                among.values.add_(among.slope, alpha=gain / steps * falling / (typical / (step + 1)))
            if look_every and ((step + 1) % look_every == 0 or step + 1 == steps):
                looks.look(step + 1, touched)
            progress(step + 1, steps, {"loss": losses[-1]})
    looks.settle()
    ranking = problem.ranking(among.scores, most=budget)
    return Budgeted(ranking, tuple(losses), count, tuple(looks.found))


class _Looks:
    """The scores of the regions that were looked at, and the values of the best of them."""

    def __init__(self, among: Candidates, budget: int, score: Callable[[Region], float] | None) -> None:
        self.among, self.budget, self.score = among, budget, score
        self.found: list[tuple[int, float]] = []
        self.best: Tensor | None = None

    def look(self, step: int, touched: Touched) -> None:
        if self.score is None:
            return
        touched.take_off()
        score = self.score(self.among.region(self.among.best(self.budget)))
        if all(score > earlier for _, earlier in self.found):
            self.best = self.among.values.clone()
        self.found.append((step, score))

    def settle(self) -> None:
        """The best values again."""
        if self.best is not None:
            self.among.values.copy_(self.best)


def _check(steps: int, gain: float, candidates: float, look_every: int | None) -> None:
    if look_every is not None and look_every < 1:
        raise InputError(f"look_every must be 1 or more, found {look_every}")
    if steps < 1:
        raise InputError(f"a search takes 1 step or more, found {steps}")
    if not gain > 0:
        raise InputError(f"the gain must be above 0, found {gain}")
    check_candidates(candidates)
