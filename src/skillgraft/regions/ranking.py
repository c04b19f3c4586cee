"""The best entries of a scope by a score, over all parameters together, with ties settled the same way everywhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from skillgraft.opening.processes import ALONE, Processes
from skillgraft.values.region import Indices, Region, Scope, index_dtype
from skillgraft.values.topmost import Tally, above_and_tied

Array = npt.NDArray[np.floating[Any]]
# A number for every entry of each parameter: kept, or computed when its turn comes so that never all are in memory.
Numbers = Mapping[str, Array] | Callable[[str], Array]
_BLOCK = 1 << 17  # entries looked at together


class Ranking:
    """All entries of a scope, best first: by score, then by |delta|, name and index. Every budget is a prefix.

    Only the entries that could be asked for are kept and sorted: `most` bounds the budget, and memory follows it. Parameters are
    read once, in the scope's order. Where several processes hold a stretch of each, `firsts` says where a stretch begins; each
    finds its best ones, and all of them the best of these.
    """

    def __init__(
        self,
        scope: Scope,
        scores: Numbers,
        movements: Numbers,
        *,
        most: int,
        firsts: Mapping[str, int] = MappingProxyType({}),
        processes: Processes = ALONE,
    ) -> None:
        self.scope = scope
        best = _Best(min(most, scope.size), index_dtype(scope.size))
        for start, name in zip(starts_of(scope), scope.shapes, strict=False):
            score, movement = _of(scores, name), _of(movements, name)
            first = start + firsts.get(name, 0)
            for low in range(0, max(1, len(score)), _BLOCK):
                best.offer(first + low, score[low : low + _BLOCK], movement[low : low + _BLOCK])
        if processes.split:
            best.join(processes)
        self.order = best.sorted()

    def top(self, budget: int) -> Region:
        """The best `budget` entries."""
        return at_positions(self.scope, np.sort(self.order[:budget]))


def starts_of(scope: Scope) -> list[int]:
    """The position of each tensor's first entry among the scope's; the scope's size last."""
    found: list[int] = np.cumsum([0, *map(math.prod, scope.shapes.values())]).tolist()
    return found


def at_positions(scope: Scope, positions: Indices) -> Region:
    """The region of these positions among a scope's entries, in order."""
    starts = starts_of(scope)
    cuts = np.searchsorted(positions, starts).tolist()
    stretches = zip(scope.shapes, starts, cuts, cuts[1:], strict=False)
    return Region(scope, {name: positions[low:high] - start for name, start, low, high in stretches if high > low})


def _of(numbers: Numbers, name: str) -> Array:
    return (numbers(name) if callable(numbers) else numbers[name]).reshape(-1)


class _Best:
    """Collects candidates in order of position and, whenever there are too many, keeps the best and raises the edge."""

    def __init__(self, count: int, index: np.dtype[Any]) -> None:
        self.count, self.room, self.edge = count, count + max(count // 2, _BLOCK), -np.inf
        self.scores: list[Array] = []
        self.movements: list[Array] = []
        self.positions: list[Indices] = []
        self.index, self.held = index, 0

    def offer(self, start: int, score: Array, movement: Array) -> None:
        at = np.flatnonzero(score >= self.edge)
        if not len(at) and self.positions:
            return
        self.scores.append(score[at])
        self.movements.append(movement[at])
        self.positions.append((start + at).astype(self.index))
        self.held += len(at)
        if self.held > self.room:
            self.shrink()

    def shrink(self) -> tuple[Array, Array, Indices]:
        """What is held, reduced to the best `count`."""
        score, movement, position = _joined(self.scores), _joined(self.movements), _joined(self.positions)
        if len(score) > self.count:
            kept = _topmost(score, movement, self.count)
            score, movement, position = score[kept], movement[kept], position[kept]
            self.edge = score.min()
        self.scores.append(score)
        self.movements.append(movement)
        self.positions.append(position)
        self.held = len(score)
        return score, movement, position

    def join(self, processes: Processes) -> None:
        """What every process has kept, in order of position."""
        mine = [torch.from_numpy(np.ascontiguousarray(part)) for part in self.shrink()]
        score, movement, position = (processes.gathered(part).numpy() for part in mine)
        order = np.argsort(position, kind="stable")
        self.scores, self.movements, self.positions = [score[order]], [movement[order]], [position[order]]
        self.held = len(order)

    def sorted(self) -> Indices:
        score, movement, position = self.shrink()
        # lexsort's last key decides first; positions are name and index order.
        order: Indices = position[np.lexsort((position, -movement, -score))]
        return order


def _joined(parts: list[Any]) -> Any:
    """All parts in one array; the parts themselves are let go."""
    whole = np.concatenate(parts)
    parts.clear()
    return whole


def _topmost(score: Array, movement: Array, count: int) -> npt.NDArray[np.bool_]:
    """Which `count` to keep: the highest scores; of equal ones the largest movements; of equal ones the first."""
    kept, tied = above_and_tied(score, count)
    left = count - int(kept.sum())
    if left < len(tied):
        larger, same = above_and_tied(movement[tied], left)
        kept[tied[larger]] = True
        kept[tied[same[: left - int(larger.sum())]]] = True
    else:
        kept[tied] = True
    return kept


def over(processes: Processes) -> Callable[[Tally], Tally]:
    """Counts of all processes that a model is split over."""
    return lambda tally: processes.summed(torch.from_numpy(tally)).numpy()
