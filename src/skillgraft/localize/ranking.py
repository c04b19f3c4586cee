"""The best entries of a scope by a score, over all parameters together, with ties settled the same way everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from skillgraft.region import Region, Scope

Array = npt.NDArray[np.floating[Any]]


class Ranking:
    """All entries of a scope, best first: by score, then by |delta|, name and index. Every budget is a prefix.

    Only the entries that could be asked for are sorted: `most` bounds the budget.
    """

    def __init__(self, scope: Scope, scores: Mapping[str, Array], movements: Mapping[str, Array], *, most: int) -> None:
        self.scope = scope
        names = list(scope.shapes)
        score = np.concatenate([scores[name].reshape(-1) for name in names])
        kept = _contenders(score, min(most, len(score)))
        movement = np.concatenate([movements[name].reshape(-1) for name in names])[kept]
        # lexsort's last key decides first; position in the joined row is name and index order.
        order = np.lexsort((kept, -movement, -score[kept]))
        self.order = kept[order]
        self.starts = np.cumsum([0] + [scores[name].size for name in names])
        self.names = names

    def top(self, budget: int) -> Region:
        """The best `budget` entries."""
        chosen = np.sort(self.order[:budget])
        cuts = np.searchsorted(chosen, self.starts)
        sites = {
            name: chosen[cuts[place] : cuts[place + 1]] - self.starts[place]
            for place, name in enumerate(self.names)
            if cuts[place + 1] > cuts[place]
        }
        return Region(self.scope, sites)


def _contenders(score: Array, count: int) -> npt.NDArray[np.int64]:
    """Every entry that reaches the count-th best score: all that can be among the best, ties included."""
    if count >= len(score):
        return np.arange(len(score))
    edge = np.partition(score, len(score) - count)[len(score) - count]
    return np.flatnonzero(score >= edge)
