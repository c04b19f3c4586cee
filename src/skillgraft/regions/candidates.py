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

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from skillgraft.errors import InputError
from skillgraft.folders.movement import BUCKETS
from skillgraft.live.grafted import as_numpy
from skillgraft.regions.problem import Problem
from skillgraft.regions.ranking import Array, above_and_tied, bucket_of
from skillgraft.values.region import Region, index_dtype

CANDIDATES = 0.05  # of the scope
_INFINITE = 0x7F80  # the leading bits of infinity; those of NaN are higher


class Candidates:
    """Some entries of a problem, joined in the scope's order of names: a number for each in `delta`, `slope` and `values`.

    `values` is what a search moves (w, or S).
    """

    def __init__(self, problem: Problem, region: Region) -> None:
        self.problem = problem
        self.at = {name: _index(problem, name, region) for name in problem.scope.shapes if name in region.sites}
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
        return Region(self.problem.scope, {name: as_numpy(at) for name, at in self.sites(chosen).items() if len(at)})

    def best(self, count: int) -> Tensor:
        """A mask of the `count` highest values; of equal ones the first by name and index.

        The edge is found by a partition: torch's own topk takes four times the memory.
        """
        if count >= len(self):
            return torch.ones_like(self.values, dtype=torch.bool)
        above, tied = above_and_tied(as_numpy(self.values), count)
        above[tied[: count - int(above.sum())]] = True
        return torch.from_numpy(above).to(self.values.device)

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
                found = self.problem.slots[name].part(parameter.grad).reshape(-1).index_select(0, self.at[name])
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
    """The entries of the largest |delta|; of equal ones the first by name and index.

    They are counted by their leading bits, then by the others, and then picked: nothing is sorted or held on the way.
    """
    count = min(count, problem.scope.size)
    tally = np.zeros(BUCKETS, np.int64)
    for _, _, bits in _patterns(problem):
        tally += np.bincount(bits >> np.uint32(16), minlength=BUCKETS)
    if tally[_INFINITE:].any():
        raise InputError("base or tuned holds NaN or infinite numbers, or their difference overflows")
    leading, above = bucket_of(tally, count)
    tally[:] = 0
    for _, _, bits in _patterns(problem):
        there = bits[(bits >> np.uint32(16)) == leading] & np.uint32(BUCKETS - 1)
        tally += np.bincount(there, minlength=BUCKETS)
    rest, above_rest = bucket_of(tally, count - above)
    edge, ties = np.uint32(leading << 16 | rest), count - above - above_rest
    found: dict[str, list[Array]] = {}
    for name, low, bits in _patterns(problem):
        equal = np.flatnonzero(bits == edge)
        chosen = bits > edge
        chosen[equal[:ties]] = True
        ties -= min(ties, len(equal))
        at = np.flatnonzero(chosen).astype(index_dtype(problem.size(name)))
        found.setdefault(name, []).append(at + at.dtype.type(low))
    sites = {name: np.concatenate(parts) for name, parts in found.items()}
    return Region(problem.scope, {name: at for name, at in sites.items() if len(at)})


def _patterns(problem: Problem) -> Iterator[tuple[str, int, npt.NDArray[np.uint32]]]:
    """Name, first entry and the bits of |delta| in float32, which sort as the numbers do, stretch by stretch."""
    for name in problem.scope.shapes:
        for low, high in problem.blocks(name):
            delta = as_numpy(problem.numbers(name, low, high)[1].abs_().float())
            yield name, low, delta.view(np.uint32)


def _index(problem: Problem, name: str, region: Region) -> Tensor:
    # Half the memory of int64; torch gathers with it as well.
    at = region.sites[name]
    dtype = np.int32 if problem.size(name) <= np.iinfo(np.int32).max else np.int64
    return torch.from_numpy(np.array(at, dtype)).to(problem.slots[name].data.device)


def _joined(problem: Problem, parts: list[Tensor]) -> Tensor:
    if not parts:
        raise InputError(f"the scope {problem.scope.label!r} has no entries to search among; choose a larger one")
    return torch.cat(parts)
