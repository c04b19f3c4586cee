"""Tables of regions against regions and of grafts against tasks (P1 figures 8 and 11 to 14), and which tasks are alike.

A cell is an `Estimate`: what has no answer is None and carries its reason.

    >>> from skillgraft.values.region import Scope
    >>> scope = Scope.of("all", {"w": (8,)})
    >>> both = {"sst2": Region(scope, {"w": [0, 1]}), "cr": Region(scope, {"w": [1, 2, 3, 4]})}
    >>> coverage_matrix(both).values()
    [[1.0, 0.25], [0.5, 1.0]]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from skillgraft.errors import InputError, did_you_mean
from skillgraft.measure.comparisons import LEAST_GAIN, relative_gain, stability
from skillgraft.measure.intervals import Bootstrap, Estimate, interval
from skillgraft.measure.metrics import METRICS
from skillgraft.predictions.predictions import AnyPredictions
from skillgraft.values.kinds import parts_of
from skillgraft.values.names import natural_key
from skillgraft.values.region import Region

# predictions[task][model], as `evaluate` gives it.
PredictionTable = Mapping[str, Mapping[str, AnyPredictions]]


@dataclass(frozen=True)
class Matrix:
    """A table with named rows and columns."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[Estimate, ...], ...]

    @classmethod
    def of(cls, rows: Sequence[str], columns: Sequence[str], cell: Callable[[str, str], Estimate]) -> Matrix:
        """Every cell from the names of its row and column."""
        return cls(tuple(rows), tuple(columns), tuple(tuple(cell(row, column) for column in columns) for row in rows))

    def __getitem__(self, cell: tuple[str, str]) -> Estimate:
        """The cell of (row, column)."""
        row, column = cell
        for name, known in ((row, self.rows), (column, self.columns)):
            if name not in known:
                raise InputError(f"this table has no {name!r}; {did_you_mean(name, known)}")
        return self.cells[self.rows.index(row)][self.columns.index(column)]

    def values(self) -> list[list[float | None]]:
        """The numbers alone."""
        return [[cell.value for cell in row] for row in self.cells]

    def as_json(self) -> dict[str, Any]:
        """`rows`, `columns` and `cells`, each cell as `Estimate.as_json` gives it."""
        cells = [[cell.as_json() for cell in row] for row in self.cells]
        return {"rows": list(self.rows), "columns": list(self.columns), "cells": cells}


def coverage_matrix(regions: Mapping[str, Region]) -> Matrix:
    """Row a, column b: how much of b's region a's contains, |a ∩ b| / |b| (P1 fig. 8a). Not symmetric."""

    def cell(a: str, b: str) -> Estimate:
        if not len(regions[b]):
            return Estimate(None, reason=f"the region of {b} is empty")
        return Estimate(regions[a].coverage(of=regions[b]))

    return Matrix.of(list(regions), list(regions), cell)


def gain_matrix(
    predictions: PredictionTable,
    models: Sequence[str],
    *,
    base: str = "base",
    tuned: str = "tuned",
    least: float = LEAST_GAIN,
    bootstrap: Bootstrap = Bootstrap(),
) -> Matrix:
    """Row i, column j: relative gain of model i on task j (P1 eq. 5, fig. 8b to d).

    Undefined where tuned gains less than `least` over base: there is no skill to localise.
    """

    def cell(model: str, task: str) -> Estimate:
        of = _models(predictions, task, (model, base, tuned))
        return relative_gain(of[model], of[tuned], base=of[base], least=least, bootstrap=bootstrap)

    return Matrix.of(models, list(predictions), cell)


def score_matrix(predictions: PredictionTable, models: Sequence[str], *, bootstrap: Bootstrap = Bootstrap()) -> Matrix:
    """Row i, column j: score of model i on task j; a task that a model was not run on is left open."""

    def cell(model: str, task: str) -> Estimate:
        if model not in predictions[task]:
            return Estimate(None, reason=f"{model} was not measured on {task}")
        return interval(predictions[task][model], metric=METRICS["score"], bootstrap=bootstrap)

    return Matrix.of(models, list(predictions), cell)


def _models(predictions: PredictionTable, task: str, names: Sequence[str]) -> Mapping[str, AnyPredictions]:
    for name in names:
        if name not in predictions[task]:
            raise InputError(f"{task}: nothing is known of a model {name!r}; {did_you_mean(name, predictions[task])}")
    return predictions[task]


@dataclass(frozen=True)
class Likeness:
    """Tasks by how much their regions share: an order that puts like beside like, and groups of them."""

    order: tuple[str, ...]
    groups: tuple[tuple[str, ...], ...]


def alike(coverage: Matrix, *, groups: int | None = None) -> Likeness:
    """Tasks grouped by their regions (P1 §5.1: similar tasks overlap more): average linkage on 1 − mean coverage.

    The mean is that of both directions; an empty region shares nothing. Without a number of groups, the tree is cut
    where its merges jump the most.
    """
    if coverage.rows != coverage.columns:
        raise InputError("tasks are grouped by a square table of coverage, found other rows than columns")
    if groups is not None and not 1 <= groups <= len(coverage.rows):
        raise InputError(f"{len(coverage.rows)} tasks make 1 to {len(coverage.rows)} groups, found {groups}")
    if len(coverage.rows) < 2:
        return Likeness(coverage.rows, tuple((name,) for name in coverage.rows))
    from scipy.cluster.hierarchy import cut_tree, leaves_list, linkage
    from scipy.spatial.distance import squareform

    shared = np.array([[cell or 0.0 for cell in row] for row in coverage.values()])
    distances = 1.0 - (shared + shared.T) / 2
    np.fill_diagonal(distances, 0.0)
    tree = linkage(squareform(distances, checks=False), method="average", optimal_ordering=True)
    order = [int(leaf) for leaf in leaves_list(tree)]
    labels = cut_tree(tree, n_clusters=groups or _natural_groups(tree[:, 2]))[:, 0]
    members: dict[int, list[str]] = {}
    for leaf in order:
        members.setdefault(int(labels[leaf]), []).append(coverage.rows[leaf])
    return Likeness(tuple(coverage.rows[leaf] for leaf in order), tuple(map(tuple, members.values())))


def _natural_groups(heights: np.ndarray[tuple[int], np.dtype[np.float64]]) -> int:
    """How many groups there are below the largest jump between merges; all are one where there is no jump."""
    jumps = np.diff(heights)
    if not len(jumps) or jumps.max() <= 0:
        return 1
    return len(heights) - int(jumps.argmax())


Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MatrixShape:
    """One matrix of the scope, or one part of a fused matrix: how many of its rows and columns no selected entry is in.

    A step of training leaves those alone: hardware can leave them out. Rows go by the first axis, columns by the last.
    """

    name: str
    kind: str
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
    layers, kinds = tuple(region.by_layer()), tuple(region.by_kind())
    cells = [(layer, kind) for layer in layers for kind in kinds]
    taken, room = region.by_layer_and_kind(), region.scope.by_layer_and_kind()
    counts, sizes = (
        np.array([found.get(cell, 0) for cell in cells], np.int64).reshape(len(layers), len(kinds))
        for found in (taken, room)
    )
    return Structure(layers, kinds, counts, sizes, tuple(_matrices(region)))


def _matrices(region: Region) -> Iterator[MatrixShape]:
    shapes = region.scope.shapes
    for name in sorted(shapes, key=natural_key):
        if len(shapes[name]) > 1:
            mask = region.mask(name)
            for part in parts_of(name, shapes):
                yield _shape(name, part.kind, mask[part.within])


def _shape(name: str, kind: str, mask: npt.NDArray[np.bool_]) -> MatrixShape:
    empty_rows = int((~mask.any(axis=tuple(range(1, mask.ndim)))).sum())
    empty_columns = int((~mask.any(axis=tuple(range(mask.ndim - 1)))).sum())
    return MatrixShape(name, kind, int(mask.sum()), mask.shape[0], mask.shape[-1], empty_rows, empty_columns)


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
    found = stability(list(regions.values()))
    pairs = tuple(tuple(map(Estimate, row)) for row in found.jaccard.tolist())
    jaccard = Matrix(tuple(names), tuple(names), pairs)
    by_chance = [_chance(regions[a], regions[b]) for a, b in combinations(names, 2)]
    chance = sum(by_chance) / len(by_chance)
    return Consistency(jaccard, coverage_matrix(regions), found.mean_jaccard, chance, found.common)


def _chance(a: Region, b: Region) -> float:
    """Jaccard of two random regions of these sizes: expected intersection over expected union."""
    if not len(a) + len(b):
        return 1.0
    both = len(a) * len(b) / a.scope.join(b.scope).size
    return both / (len(a) + len(b) - both)
