"""Whether one task's skill lands in the same place whatever rows it is learned from (P1 appendix D.1).

found = stability([graft.region for graft in grafts], said=[...])
found.mean_jaccard, found.all_agree
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from skillgraft.errors import InputError
from skillgraft.measure.predictions import Predictions, same_rows
from skillgraft.region import Region

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Stability:
    """Regions (and predictions) of several training samples, pair by pair; the matrices are symmetric with ones inside."""

    jaccard: Matrix
    common: int  # entries that all regions share
    agreement: Matrix | None = None
    all_agree: float | None = None  # the share of rows on which all predict the same class

    @property
    def mean_jaccard(self) -> float:
        """Over all pairs."""
        return _mean(self.jaccard)

    @property
    def mean_agreement(self) -> float | None:
        """The share of rows on which two of them predict the same class, over all pairs."""
        return None if self.agreement is None else _mean(self.agreement)


def stability(regions: Sequence[Region], *, said: Sequence[Predictions] = ()) -> Stability:
    """Compare the regions of several training samples of one task, and what the grafted models say on the same test rows.

    P1's Θ_n, the number of regions that a task can give, is small where regions overlap much.
    """
    if len(regions) < 2:
        raise InputError(f"stability compares at least two regions, found {len(regions)}")
    if said and len(said) != len(regions):
        raise InputError(f"expected one set of predictions for each of the {len(regions)} regions, found {len(said)}")
    common = regions[0]
    for region in regions[1:]:
        common &= region
    jaccard = _pairwise(len(regions), lambda a, b: regions[a].jaccard(regions[b]))
    if not said:
        return Stability(jaccard, len(common))
    same_rows(*said)
    classes = np.stack([one.predicted for one in said])
    agreement = _pairwise(len(said), lambda a, b: float((classes[a] == classes[b]).mean()))
    return Stability(jaccard, len(common), agreement, float((classes == classes[0]).all(axis=0).mean()))


def _pairwise(count: int, compare: Callable[[int, int], float]) -> Matrix:
    """A symmetric comparison of all with all."""
    found = np.eye(count)
    for a, b in combinations(range(count), 2):
        found[a, b] = found[b, a] = compare(a, b)
    found.flags.writeable = False
    return found


def _mean(matrix: Matrix) -> float:
    """Over the pairs, each once."""
    return float(matrix[np.triu_indices(len(matrix), k=1)].mean())
