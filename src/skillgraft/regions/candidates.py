"""A search among candidates: the entries that moved most, and what is kept for them alone.

An entry whose delta is tiny has a tiny slope −∂L/∂θ · delta, so that a search among the few percent that moved most finds the
same region. Then nothing of the model's size is held besides the model: its weights stay where they are, in their own format,
and each parameter's gradient is read at the candidates as the backward pass makes it, and dropped. Law: afterwards the model's
numbers are the base's, bit for bit, because what is written over is kept and copied back.

    with problem.among(candidates.at) as touched:   # the model in eval mode, its own numbers at every entry
        touched.put_on(sites)                       # tuned's change at these
        candidates.backward(step)                   # candidates.slope is −∂L/∂θ · delta of each
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from skillgraft.errors import InputError
from skillgraft.live.grafted import as_numpy
from skillgraft.regions.problem import Problem
from skillgraft.regions.ranking import Array, over
from skillgraft.values.region import Region, index_dtype
from skillgraft.values.topmost import INFINITE, Bits, edge_of, topmost

CANDIDATES = 0.05  # of the scope


class Candidates:
    """Some entries of a problem, joined in the scope's order of names: a number for each in `delta`, `slope` and `values`.

    `values` is what a search moves (w, or S).
    """

    def __init__(self, problem: Problem, region: Region) -> None:
        self.problem = problem
        # Of a model that is split, every process names all tensors: they ask for gradients together.
        names = [name for name in problem.scope.shapes if name in region.sites or problem.processes.split]
        self.at = {name: _index(problem, name, region) for name in names}
        self.delta = _joined(problem, [problem.delta_at(name, at)[1] for name, at in self.at.items()])
        self.values = torch.zeros_like(self.delta)
        self.slope = torch.zeros_like(self.delta)

    def __len__(self) -> int:
        return len(self.delta)

    def by_name(self, joined: Tensor) -> dict[str, Tensor]:
        """A joined vector's stretches: views of it."""
        return dict(zip(self.at, torch.split(joined, [len(at) for at in self.at.values()]), strict=True))

    def sites(self, chosen: Tensor) -> dict[str, Tensor]:
        """Where the chosen candidates lie: by a mask of them all."""
        return {name: self.at[name][mask] for name, mask in self.by_name(chosen).items()}

    def region(self, chosen: Tensor) -> Region:
        """The chosen candidates as a region."""
        return self.problem.region(self.sites(chosen))

    def best(self, count: int) -> Tensor:
        """A mask of the `count` highest values; of equal ones the first by name and index.

        The edge is found by a partition: torch's own topk takes four times the memory.
        """
        if self.problem.processes.split:
            return self._best_of_all(count)
        return self._best_here(count)

    def _best_here(self, count: int) -> Tensor:
        if count >= len(self):
            return torch.ones_like(self.values, dtype=torch.bool)
        return torch.from_numpy(topmost(as_numpy(self.values), count)).to(self.values.device)

    def _best_of_all(self, count: int) -> Tensor:
        """The same where each process has some of the candidates, and offers its own best."""
        offered = self._best_here(count)
        values, positions = self.values[offered], self.problem.positions(self.sites(offered))
        theirs = as_numpy(self.problem.processes.gathered(values)), as_numpy(self.problem.processes.gathered(positions))
        last = np.lexsort((theirs[1], -theirs[0]))[:count][-1]
        value, position = (float(theirs[0][last]), int(theirs[1][last]))
        offered[offered.clone()] = (values > value) | ((values == value) & (positions <= position))
        return offered

    def mean_slope(self, chosen: Tensor) -> float:
        """The mean |slope| of the chosen candidates of all processes."""
        if not self.problem.processes.split:
            return float(self.slope[chosen].abs().mean())
        slopes = self.slope[chosen].abs()
        total, count = self.problem.processes.summed(torch.stack([slopes.sum(), torch.tensor(len(slopes)).to(slopes)]))
        return float(total / count)

    def scores(self, name: str, values: Mapping[str, Tensor] | None = None) -> Array:
        """The values of one tensor's candidates; below every one of them the other entries, which go by |delta| as ties do."""
        scores = np.full(self.problem.size(name), -np.inf, np.float32)
        if name in self.at:
            found = (self.by_name(self.values) if values is None else values)[name]
            scores[as_numpy(self.at[name])] = as_numpy(found.float())
        return scores

    def backward(self, step: int) -> float:
        """The slopes of a step's loss at the model's present numbers; returns that loss."""
        self.slope.zero_()
        with self._listening():
            loss = self.problem.run(step)
        self.values.grad = self.slope  # what processes add up are gradients
        try:
            return self.problem.summed([self.values], loss, step)
        finally:
            self.values.grad = None

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """While a backward pass runs, each parameter's gradient is read here and let go."""
        deltas, slopes = self.by_name(self.delta), self.by_name(self.slope)
        held: dict[Tensor, list[str]] = {}
        for name in self.at:
            held.setdefault(self.problem.slots[name].tensor, []).append(name)

        @torch.no_grad()
        def take(parameter: Tensor) -> None:
            assert parameter.grad is not None
            for name in held[parameter]:
                found = self.problem.slots[name].own(parameter.grad).index_select(0, self.at[name])
                slopes[name].addcmul_(found.to(self.slope.dtype), deltas[name], value=-1.0)
            parameter.grad = None

        handles = [parameter.register_post_accumulate_grad_hook(take) for parameter in held]  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def check_candidates(candidates: float) -> None:
    """Refuse what is no share."""
    if not 0 < candidates <= 1:
        raise InputError(f"candidates are a share of the scope, above 0 and at most 1; found {candidates}")


def most_moved_of(problem: Problem, count: int) -> Region:
    """The entries of the largest |delta|; of equal ones the first by name and index. Of a split model this process's alone.

    They are counted by their leading bits, then by the others, and then picked: nothing is sorted or held on the way.
    """
    edge = edge_of(
        lambda: (bits for _, _, bits in _patterns(problem)), min(count, problem.scope.size), over(problem.processes)
    )
    if edge.peak >= INFINITE:
        raise InputError("base or tuned holds NaN or infinite numbers, or their difference overflows")
    chosen: dict[str, list[Array]] = {name: [] for name in problem.scope.shapes}
    equal: dict[str, list[Array]] = {name: [] for name in problem.scope.shapes}
    for name, low, bits in _patterns(problem):
        index, first = index_dtype(math.prod(problem.scope.shapes[name])), problem.first(name) + low
        chosen[name].append(np.flatnonzero(bits > edge.bits).astype(index) + index.type(first))
        left = edge.ties - sum(map(len, equal[name]))
        equal[name].append(np.flatnonzero(bits == edge.bits)[:left].astype(index) + index.type(first))
    taken = problem.processes.shared_out({name: sum(map(len, parts)) for name, parts in equal.items()}, edge.ties)
    sites = {
        name: np.sort(np.concatenate([*parts, np.concatenate(equal[name])[: taken[name]]]))
        for name, parts in chosen.items()
        if parts
    }
    return Region(problem.scope, {name: at for name, at in sites.items() if len(at)})


def _patterns(problem: Problem) -> Iterator[tuple[str, int, Bits]]:
    """Name, first entry in this process and the bits of |delta| in float32, which sort as the numbers do, stretch by stretch."""
    for name in problem.scope.shapes:
        for low, high in problem.blocks(name):
            delta = as_numpy(problem.numbers(name, low, high)[1].abs_().float())
            yield name, low, delta.view(np.uint32)


def _index(problem: Problem, name: str, region: Region) -> Tensor:
    # Half the memory of int64; torch gathers with it as well.
    at = region.sites.get(name, np.zeros(0, np.int64))
    dtype = torch.int32 if problem.size(name) <= np.iinfo(np.int32).max else torch.int64
    return problem.indices(name, at).to(dtype)


def _joined(problem: Problem, parts: list[Tensor]) -> Tensor:
    if not parts:
        raise InputError(f"the scope {problem.scope.label!r} has no entries to search among; choose a larger one")
    return torch.cat(parts)
