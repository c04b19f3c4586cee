"""What a region looks like (P2 figures 4 and 5), and whether regions of several tasks are the same one.

>>> from skillgraft.region import Scope
>>> scope = Scope.of("all", {"layer.0.query.weight": (2, 3), "layer.0.key.weight": (2, 2)})
>>> shape = structure(Region(scope, {"layer.0.query.weight": [0, 1]}))
>>> shape.kinds, shape.counts.tolist(), shape.matrices[1].empty_rows
(('query', 'key'), [[2, 0]], 1)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from skillgraft.errors import InputError
from skillgraft.measure.intervals import Estimate
from skillgraft.measure.matrices import Matrix, coverage_matrix
from skillgraft.names import KINDS, kind_of, layer_of, natural_key
from skillgraft.region import Region

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MatrixShape:
    """One matrix of the scope: how many of its rows and columns no selected entry is in.

    A step of training leaves those alone: hardware can leave them out. Rows go by the first axis, columns by the last.
    """

    name: str
    selected: int
    rows: int
    columns: int
    empty_rows: int
    empty_columns: int


@dataclass(frozen=True, eq=False)
class Structure:
    """A region by layer (rows) and kind (columns): how many entries it selects, of how many; and matrix by matrix."""

    layers: tuple[str, ...]
    kinds: tuple[str, ...]
    counts: Counts
    sizes: Counts
    matrices: tuple[MatrixShape, ...]

    @property
    def shares(self) -> npt.NDArray[np.float64]:
        """The share of each layer's entries of each kind that is selected; NaN where the scope has none."""
        shares = np.full(self.counts.shape, np.nan)
        np.divide(self.counts, self.sizes, out=shares, where=self.sizes > 0)
        return shares

    @property
    def shares_by_kind(self) -> dict[str, float]:
        """The share of each kind's entries that is selected, over all layers."""
        totals = self.counts.sum(axis=0) / self.sizes.sum(axis=0)
        return dict(zip(self.kinds, totals.tolist(), strict=True))

    def as_json(self) -> dict[str, Any]:
        """Plain lists and numbers; a share that does not exist is None."""
        shares = [[None if math.isnan(share) else share for share in row] for row in self.shares.tolist()]
        return {
            "layers": list(self.layers),
            "kinds": list(self.kinds),
            "counts": self.counts.tolist(),
            "sizes": self.sizes.tolist(),
            "shares": shares,
            "matrices": [vars(matrix) for matrix in self.matrices],
        }


def structure(region: Region) -> Structure:
    """The region counted by layer and kind, and the empty rows and columns of each matrix (P2's mask pictures)."""
    shapes = region.scope.shapes
    layers = tuple(sorted({layer_of(name) for name in shapes}, key=natural_key))
    kinds = tuple(kind for kind in KINDS if kind in set(map(kind_of, shapes)))
    counts, sizes = np.zeros((2, len(layers), len(kinds)), np.int64)
    for name, shape in shapes.items():
        cell = layers.index(layer_of(name)), kinds.index(kind_of(name))
        counts[cell] += len(region.sites.get(name, ()))
        sizes[cell] += math.prod(shape)
    matrices = [_shape(region, name) for name in sorted(shapes, key=natural_key) if len(shapes[name]) > 1]
    return Structure(layers, kinds, counts, sizes, tuple(matrices))


def _shape(region: Region, name: str) -> MatrixShape:
    mask = region.mask(name)
    rows, columns = mask.reshape(len(mask), -1), mask.reshape(-1, mask.shape[-1])
    empty_rows, empty_columns = (~rows.any(axis=1)).sum(), (~columns.any(axis=0)).sum()
    return MatrixShape(name, int(mask.sum()), len(rows), columns.shape[1], int(empty_rows), int(empty_columns))


@dataclass(frozen=True)
class Consistency:
    """How much regions of several tasks agree: pair by pair, on average, and in what all of them share.

    `chance` is the mean jaccard that random regions of these sizes would have.
    """

    jaccard: Matrix
    coverage: Matrix
    mean_jaccard: float
    chance: float
    common: int


def consistency(regions: Mapping[str, Region]) -> Consistency:
    """Whether low-sensitivity regions found on different tasks are one and the same (P2's first finding, figure 1)."""
    if len(regions) < 2:
        raise InputError(f"at least two regions can agree or not, found {len(regions)}")
    names = list(regions)
    pairs = {frozenset(pair): regions[pair[0]].jaccard(regions[pair[1]]) for pair in combinations(names, 2)}
    jaccard = Matrix.of(names, names, lambda a, b: Estimate(1.0 if a == b else pairs[frozenset((a, b))]))
    by_chance = [_chance(regions[a], regions[b]) for a, b in combinations(names, 2)]
    shared = regions[names[0]]
    for name in names[1:]:
        shared = shared & regions[name]
    mean = sum(pairs.values()) / len(pairs)
    return Consistency(jaccard, coverage_matrix(regions), mean, sum(by_chance) / len(by_chance), len(shared))


def _chance(a: Region, b: Region) -> float:
    """Jaccard of two random regions of these sizes: expected intersection over expected union."""
    if not len(a) + len(b):
        return 1.0
    both = len(a) * len(b) / a.scope.join(b.scope).size
    return both / (len(a) + len(b) - both)
