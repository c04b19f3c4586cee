"""Rows and columns that cover entries of a matrix: how low a rank a change of these entries can have.

A matrix that is zero outside |R| rows and |C| columns is a product B · A of rank |R| + |C|, every number of it multiplied by 1.
The fewest such lines are a minimum vertex cover of the bipartite graph whose edges are the entries, and as many as a largest
matching has edges (König). With fewer lines than that some entries are left out.

    >>> rows, columns = np.array([0, 0, 0, 1, 2]), np.array([0, 1, 2, 0, 0])     # one full row and one full column
    >>> minimum_cover(rows, columns).rank
    2
    >>> heaviest_cover(rows, columns, np.array([3.0, 1, 1, 1, 5]), most=1)
    Lines(rows=array([], dtype=int64), columns=array([0]))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from skillgraft.values.numbers import Array
from skillgraft.values.region import Indices, Region, Shape

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class Lines:
    """Rows and columns of one matrix, each sorted."""

    rows: Indices
    columns: Indices

    @property
    def rank(self) -> int:
        """The rank of a matrix that is zero elsewhere, at most."""
        return len(self.rows) + len(self.columns)

    def cover(self, rows: Indices, columns: Indices) -> npt.NDArray[np.bool_]:
        """Which entries lie on one of the lines."""
        return np.isin(rows, self.rows) | np.isin(columns, self.columns)

    def factors(self, rows: Indices, columns: Indices, numbers: Array, shape: Shape) -> tuple[Array, Array]:
        """(B, A) with B · A = `numbers` at the entries and 0 elsewhere, bit for bit: every sum has one term that is not 0.

        An entry on a row and a column of the cover belongs to the row.
        """
        b, a = np.zeros((shape[0], self.rank), numbers.dtype), np.zeros((self.rank, shape[1]), numbers.dtype)
        of_row = np.isin(rows, self.rows)
        place = np.searchsorted(self.rows, rows[of_row])
        a[place, columns[of_row]] = numbers[of_row]
        b[self.rows, np.arange(len(self.rows))] = 1
        place = len(self.rows) + np.searchsorted(self.columns, columns[~of_row])
        b[rows[~of_row], place] = numbers[~of_row]
        a[len(self.rows) + np.arange(len(self.columns)), self.columns] = 1
        return b, a


def minimum_cover(rows: Indices, columns: Indices) -> Lines:
    """The fewest rows and columns that hold all entries (rows[i], columns[i])."""
    row_names, row_of = np.unique(rows, return_inverse=True)
    column_names, column_of = np.unique(columns, return_inverse=True)
    reached = _Matching(row_of, column_of, len(row_names), len(column_names)).complete()
    # König: what alternating paths from unmatched rows reach. Columns there and rows elsewhere are the cover.
    return Lines(row_names[~reached[0]], column_names[reached[1]])


def heaviest_cover(rows: Indices, columns: Indices, weights: Floats, *, most: int) -> Lines:
    """At most `most` lines, chosen one after the other, each the one that holds the most weight of what is left.

    The best choice is a hard problem; this one holds at least 63 % of its weight (the sum is submodular). Where the minimum
    cover is small enough it is the answer, and nothing is left out.
    """
    whole = minimum_cover(rows, columns)
    if whole.rank <= most:
        return whole
    row_names, row_of = np.unique(rows, return_inverse=True)
    column_names, column_of = np.unique(columns, return_inverse=True)
    # Rows and columns in one list of lines: an entry is on two of them.
    lines = np.stack([row_of, len(row_names) + column_of])
    left = np.concatenate([np.bincount(part, weights) for part in (row_of, column_of)]).astype(np.float64)
    order = np.argsort(lines.reshape(-1), kind="stable") % len(rows)
    starts = np.searchsorted(np.sort(lines.reshape(-1)), np.arange(len(left) + 1))
    taken, held = np.zeros(len(left), bool), np.zeros(len(rows), bool)
    for _ in range(most):
        line = int(np.argmax(left))
        mine = order[starts[line] : starts[line + 1]]
        mine = mine[~held[mine]]
        taken[line], held[mine] = True, True
        np.subtract.at(left, lines[:, mine].reshape(-1), np.tile(weights[mine], 2))
        left[line] = -np.inf
    return Lines(row_names[taken[: len(row_names)]], column_names[taken[len(row_names) :]])


def entries_of(at: Indices, shape: Shape) -> tuple[Indices, Indices]:
    """Rows and columns of flat indices of a matrix."""
    rows, columns = np.divmod(at, shape[1])
    return rows, columns


def matrices(region: Region) -> Iterator[tuple[str, Indices]]:
    """The region's matrices with their sites."""
    return ((name, at) for name, at in region.sites.items() if len(region.scope.shapes[name]) == 2)


def ranks(region: Region) -> Mapping[str, int]:
    """Matrix → the rank that its part of the region needs."""
    shapes = region.scope.shapes
    return {name: minimum_cover(*entries_of(at, shapes[name])).rank for name, at in matrices(region)}


class _Matching:
    """A largest matching of rows and columns, grown along alternating paths from all unmatched rows at once.

    A round is one breadth-first search in numpy: it grows a tree from every unmatched row, and each tree that meets an
    unmatched column is turned over. Trees share nothing, so all of them are turned over together. Edges are shuffled (always
    the same way): otherwise the first row's tree would take every column of a full matrix.
    """

    def __init__(self, row_of: Indices, column_of: Indices, rows: int, columns: int) -> None:
        shuffled = np.random.default_rng(0).permutation(len(row_of))
        order = shuffled[np.argsort(row_of[shuffled], kind="stable")]
        self.ends = column_of[order]
        self.starts = np.searchsorted(row_of[order], np.arange(rows + 1))
        self.of_row, self.of_column = np.full(rows, -1), np.full(columns, -1)
        self.random = np.random.default_rng(1)

    def complete(self) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Make the matching as large as it can be; returns which rows and columns the last search reached."""
        while True:
            root, parent, found = self._search()
            if not len(found):
                return root >= 0, parent >= 0
            while len(found):
                rows = parent[found]
                before = self.of_row[rows]
                self.of_row[rows], self.of_column[found] = found, rows
                found = before[before >= 0]

    def _search(self) -> tuple[Indices, Indices, Indices]:
        """The root of each row's tree and the row from which each column was reached (−1: none); one free column per tree."""
        root, parent = np.full(len(self.of_row), -1), np.full(len(self.of_column), -1)
        front = np.flatnonzero(self.of_row < 0)
        root[front] = front
        finished = np.zeros(len(self.of_row), bool)
        found: list[Indices] = [np.empty(0, np.int64)]
        while len(front):
            rows, columns = self._edges(front)
            fresh = parent[columns] < 0
            columns, first = np.unique(columns[fresh], return_index=True)
            rows = rows[fresh][first]
            parent[columns] = rows
            owner = self.of_column[columns]
            roots, one = np.unique(root[rows[owner < 0]], return_index=True)
            found.append(columns[owner < 0][one])
            finished[roots] = True
            front = owner[owner >= 0]
            root[front] = root[rows[owner >= 0]]
            front = front[~finished[root[front]]]
        return root, parent, np.concatenate(found)

    def _edges(self, rows: Indices) -> tuple[Indices, Indices]:
        """All edges of these rows, in an order that favours none of them."""
        counts = self.starts[rows + 1] - self.starts[rows]
        first = np.repeat(self.starts[rows] - np.cumsum(counts) + counts, counts)
        at = self.random.permutation(len(first))
        return np.repeat(rows, counts)[at], self.ends[(first + np.arange(len(first)))[at]]
