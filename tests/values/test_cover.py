"""Fewest rows and columns of a region in a matrix: compared with scipy, with brute force, and with the product they make."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillgraft.values.cover import entries_of, heaviest_cover, minimum_cover, ranks
from skillgraft.values.numbers import bits
from skillgraft.values.region import Region, Scope
from tests.strategies import examples

SHAPES = st.tuples(st.integers(1, 5), st.integers(1, 5))


@st.composite
def sites(draw: st.DrawFn) -> tuple[tuple[int, int], np.ndarray]:
    shape = draw(SHAPES)
    return shape, np.flatnonzero(
        draw(st.lists(st.booleans(), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))
    )


def fewest(rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> int:
    """By trying every set of rows; the columns then follow."""
    sets = (set(chosen) for count in range(shape[0] + 1) for chosen in combinations(range(shape[0]), count))
    return min(len(s) + len({c for r, c in zip(rows, columns, strict=True) if r not in s}) for s in sets)


@examples(150)
@given(sites())
def test_no_cover_is_smaller_and_the_product_is_the_change(case: tuple[tuple[int, int], np.ndarray]) -> None:
    shape, at = case
    rows, columns = entries_of(at, shape)
    lines = minimum_cover(rows, columns)
    assert lines.rank == fewest(rows, columns, shape)
    assert lines.cover(rows, columns).all()
    numbers = np.random.default_rng(len(at)).normal(size=len(at)).astype(np.float32)
    b, a = lines.factors(rows, columns, numbers, shape)
    whole = np.zeros(shape, np.float32)
    whole[rows, columns] = numbers
    assert b.shape[1] == a.shape[0] == lines.rank
    assert (bits(b @ a) == bits(whole)).all()


@pytest.mark.parametrize(("shape", "count"), [((70, 90), 150), ((300, 200), 900), ((64, 256), 6000), ((40, 30), 1200)])
def test_as_many_lines_as_scipy_matches_edges(shape: tuple[int, int], count: int) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    random = np.random.default_rng(count)
    rows, columns = entries_of(np.sort(random.choice(shape[0] * shape[1], count, replace=False)), shape)
    graph = sparse.csr_matrix((np.ones(count), (rows, columns)), shape)
    matched = (sparse.csgraph.maximum_bipartite_matching(graph) >= 0).sum()
    lines = minimum_cover(rows, columns)
    assert lines.rank == matched
    assert lines.cover(rows, columns).all()


@examples(100)
@given(sites(), st.integers(1, 4), st.integers(0, 9))
def test_the_heaviest_lines_are_nearly_the_best(case: tuple[tuple[int, int], np.ndarray], most: int, seed: int) -> None:
    shape, at = case
    rows, columns = entries_of(at, shape)
    weights = np.random.default_rng(seed).exponential(size=len(at))
    lines = heaviest_cover(rows, columns, weights, most=most)
    assert lines.rank <= most
    held = weights[lines.cover(rows, columns)].sum()
    both = np.stack([rows, shape[0] + columns])
    best = max(
        weights[np.isin(both, chosen).any(0)].sum() for chosen in combinations(range(sum(shape)), min(most, sum(shape)))
    )
    assert held >= (1 - 1 / np.e) * best - 1e-12
    if minimum_cover(rows, columns).rank <= most:
        assert lines.cover(rows, columns).all()


def test_one_row_and_one_column_by_hand() -> None:
    region = Region(Scope.of("all", {"w": (3, 4), "b": (4,)}), {"w": [0, 4, 5, 6, 7, 8], "b": [1]})
    assert ranks(region) == {"w": 2}
    lines = minimum_cover(*entries_of(region.sites["w"], (3, 4)))
    assert (lines.rows.tolist(), lines.columns.tolist()) == ([1], [0])
