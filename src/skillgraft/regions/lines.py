"""A search that uses at most so many rows and columns of a matrix, so that its graft has an adapter of that rank.

The lines are chosen before the search, where tuned moved most; outside them tuned counts as unchanged, so that no method can
choose anything there. What it costs in score is measured in docs/interop.md.

    searched = within_lines(base, tuned, Scope.select("matrices", base.shapes), most=64, count=8500)

Refused: scopes with anything but matrices, more entries than the lines hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from skillgraft.errors import InputError, listed
from skillgraft.folders.checkpoint import Tensors, take
from skillgraft.folders.movement import most_moved
from skillgraft.values.cover import Lines, entries_of, heaviest_cover
from skillgraft.values.numbers import Array, widen
from skillgraft.values.region import Scope, Shape

AMONG = 20  # times the budget: so many of the most moved entries decide which lines are heavy
_SHARE, _FEW = 0.05, 1_000_000  # of the scope, and at least so many, where no budget is given


@dataclass(frozen=True, eq=False)
class WithinLines:
    """Tuned's tensors, which are the base's outside the lines of each matrix of a scope."""

    base: Tensors
    tuned: Tensors
    lines: Mapping[str, Lines]

    @property
    def shapes(self) -> Mapping[str, Shape]:
        return self.tuned.shapes

    @property
    def dtypes(self) -> Mapping[str, np.dtype[Any]]:
        return self.tuned.dtypes

    def flat(self, name: str, low: int = 0, high: int | None = None) -> Array:
        """Entries [low, high)."""
        numbers = self.tuned.flat(name, low, high)
        if name not in self.lines:
            return numbers
        rows, columns = entries_of(np.arange(low, low + len(numbers)), self.shapes[name])
        mine = np.zeros(self.shapes[name][0], bool), np.zeros(self.shapes[name][1], bool)
        mine[0][self.lines[name].rows], mine[1][self.lines[name].columns] = True, True
        return np.where(mine[0][rows] | mine[1][columns], numbers, self.base.flat(name, low, high))


def within_lines(base: Tensors, tuned: Tensors, scope: Scope, *, most: int, count: int | None = None) -> WithinLines:
    """Tuned within at most `most` rows and columns of each matrix: those that hold the most of ‖delta‖² among what moved most.

    `count` is how many entries will be asked for.
    """
    if most < 1:
        raise InputError(f"max_rank is 1 or more, found {most}")
    other = [name for name, shape in scope.shapes.items() if len(shape) != 2]
    if other:
        raise InputError(
            f"max_rank is about matrices, and the scope {scope.label!r} holds {listed(other)}: use scope='matrices'"
        )
    among = AMONG * count if count is not None else max(round(_SHARE * scope.size), _FEW)
    moved = most_moved(base, tuned, scope, max(1, min(among, scope.size)))
    lines = {}
    for name, shape in scope.shapes.items():
        at = moved.sites.get(name, np.empty(0, np.int64))
        delta = widen(take(tuned, name, at)).astype(np.float64) - widen(take(base, name, at))
        lines[name] = heaviest_cover(*entries_of(at, shape), np.square(delta), most=most)
    held = sum(_size(lines[name], shape) for name, shape in scope.shapes.items())
    if count is not None and count > held:
        raise InputError(
            f"{count:,} entries do not fit on the {most} heaviest rows and columns of each matrix, which hold {held:,}: "
            "ask for fewer entries, or for a larger max_rank"
        )
    return WithinLines(base, tuned, lines)


def _size(lines: Lines, shape: Shape) -> int:
    """How many entries lie on the lines."""
    rows, columns = len(lines.rows), len(lines.columns)
    return rows * shape[1] + columns * shape[0] - rows * columns
