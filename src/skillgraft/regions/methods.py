"""Ways to choose a region: one table, one signature.

Each ranks all entries of the scope, so that every budget is a prefix of one order. Only the learned region also has an
answer of its own to how many entries there are (γ > ½).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from skillgraft.errors import InputError, did_you_mean, listed
from skillgraft.live.grafted import as_numpy
from skillgraft.opening.runtime import Runtime
from skillgraft.regions.budgeted import ROWS, learn_within_budget
from skillgraft.regions.learned import MaskPlan, learn
from skillgraft.regions.problem import Problem
from skillgraft.regions.ranking import Array, Ranking
from skillgraft.training.snapshot import Snapshot
from skillgraft.values.region import Region


@dataclass(frozen=True)
class MethodResult:
    """A ranking of all entries, the method's own region where it has one, and what there is to tell about the search.

    `wider` makes the ranking for a larger budget without another search, where a method can.
    """

    ranking: Ranking
    region: Region | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    wider: Callable[[int], Ranking] | None = None


@dataclass(frozen=True)
class RegionMethod:
    """One row of the table: a search `(problem, start, *, most, **options) -> MethodResult`, and what it needs.

    `most` is the largest budget that will be asked for; `start` is γ_base, which only the learned region uses. `handed_on` is
    whose keywords its options are, where they are not the search's own. `draws`: it takes a seed. `step_rows` are the rows of a
    step where it likes few; `balanced`: with as many of each class. `one_budget`: its search serves one budget alone.
    `own_size`: it says itself how many entries there are (γ > ½), and has a start.
    """

    search: Callable[..., MethodResult]
    handed_on: Callable[..., Any] | None = None
    draws: bool = False
    step_rows: int | None = None
    balanced: bool = False
    one_budget: bool = False
    own_size: bool = False

    def __call__(self, problem: Problem, start: Region, *, most: int, **options: Any) -> MethodResult:
        return self.search(problem, start, most=most, **options)

    @property
    def options(self) -> list[str]:
        """The names of its options."""
        taken = inspect.signature(self.handed_on or self.search).parameters.values()
        ours = ("most", "budget", "entries", "progress", "score")
        return [one.name for one in taken if one.kind is one.KEYWORD_ONLY and one.name not in ours]


def learned(
    problem: Problem,
    start: Region,
    *,
    most: int,
    score: Callable[[], float] | None = None,
    snapshot: Snapshot | None = None,
    runtime: Runtime = Runtime(),
    **options: Any,
) -> MethodResult:
    """P1 §2.3: gradient descent on a soft mask. Options are those of `learned.MaskPlan`."""
    # Without a budget the mask grows to P1's own size.
    plan = MaskPlan(**{"entries": most if most > 1 else None, **options})
    result = learn(problem, start, plan, score=score, snapshot=snapshot, runtime=runtime)
    losses = _thinned([(step, _rounded(loss)) for step, loss in enumerate(result.losses, start=1)])
    looks = _thinned([(step, entries, _rounded(score)) for step, entries, score in result.looks])
    facts = {"losses": losses, "looks": looks, "lr": _rounded(result.lr)}
    soft = result.soft
    return MethodResult(soft.ranking(most=most), result.region, facts, lambda wide: soft.ranking(most=wide))


def _rounded(number: float) -> float:
    return float(f"{number:.6g}")


def _thinned(points: Sequence[tuple[float, ...]], *, most: int = 50) -> list[list[float]]:
    """The points, or `most` of them evenly spread from the first to the last: enough for a picture in a file's header."""
    if len(points) > most:
        points = [points[at] for at in np.linspace(0, len(points) - 1, most).round().astype(int)]
    return [list(point) for point in points]


def budgeted(problem: Problem, _start: Region, *, most: int, **options: Any) -> MethodResult:
    """Small steps on the region itself, as large as the budget. Options are those of `learn_within_budget`."""
    result = learn_within_budget(problem, budget=most, **options)
    losses = [[step, _rounded(loss)] for step, loss in enumerate(result.losses, start=1)]
    looks = {"looks": [[step, most, _rounded(score)] for step, score in result.looks]} if result.looks else {}
    return MethodResult(result.ranking, facts={"losses": losses, "candidates": result.candidates, **looks})


def movement(problem: Problem, _start: Region, *, most: int) -> MethodResult:
    """P1's comparison: the entries that moved the most, |tuned − base|."""
    return MethodResult(problem.ranking(problem.movement, most=most))


def random(problem: Problem, _start: Region, *, most: int, seed: int = 0) -> MethodResult:
    """P1's other comparison: entries drawn at random."""
    order = {name: number for number, name in enumerate(problem.scope.shapes)}

    def drawn(name: str) -> Array:
        numbers = np.random.default_rng((seed, order[name])).random(problem.scope.shapes[name], dtype=np.float32)
        return numbers.reshape(-1)[slice(*problem.slots[name].held)]

    return MethodResult(problem.ranking(drawn, most=most))


def attribution(problem: Problem, _start: Region, *, most: int, points: int = 8) -> MethodResult:
    """How much of the loss an entry takes off on the straight line from reference to tuned: −mean gradient ⊙ delta."""
    gained = {name: torch.zeros_like(problem.delta(name)) for name in problem.slots}
    with problem.borrowed():
        for point in range(points):
            _go(problem, (point + 0.5) / points)
            problem.backward(point)
            for name, gain in gained.items():
                gradient = problem.gradient(name)
                if gradient is not None:
                    gain.addcmul_(gradient.to(gain.dtype), problem.delta(name), value=-1.0 / points)
    scores = {name: as_numpy(gain) for name, gain in gained.items()}

    def ranking(entries: int) -> Ranking:
        return problem.ranking(scores, most=entries)

    return MethodResult(ranking(most), wider=ranking)


def _go(problem: Problem, share: float) -> None:
    """Put the model this share of the straight line from reference to tuned."""
    for name in problem.slots:
        for low, high in problem.blocks(name):
            reference, change = problem.numbers(name, low, high)
            problem.write(name, torch.add(reference, change, alpha=share), low, high)


DEFAULT, P1 = "budgeted", "learned"  # docs/faster-regions.md says why the default is not P1's own
# A plain table: a method of one's own is one more row, added from anywhere.
METHODS: dict[str, RegionMethod] = {
    "budgeted": RegionMethod(budgeted, learn_within_budget, step_rows=ROWS, balanced=True, one_budget=True),
    "learned": RegionMethod(learned, MaskPlan, draws=True, own_size=True),
    "movement": RegionMethod(movement),
    "random": RegionMethod(random, draws=True),
    "attribution": RegionMethod(attribution),
}


def method(name: str, options: Iterable[str] = ()) -> RegionMethod:
    """A method by name; it must take all of these options."""
    if name not in METHODS:
        raise InputError(f"unknown method {name!r}; {did_you_mean(name, METHODS)}")
    known = METHODS[name].options
    for option in options:
        if option not in known:
            others = [other for other, one in METHODS.items() if option in one.options]
            own = did_you_mean(option, known) if known else "it has no settings"
            raise InputError(
                f"the method {name!r} takes no {option!r}; {f'that is for {listed(others)}' if others else own}"
            )
    return METHODS[name]
