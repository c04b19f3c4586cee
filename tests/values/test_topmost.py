"""The largest of many numbers, against a plain sort."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillgraft.values.topmost import INFINITE, edge_of, topmost

FLOATS = st.lists(st.floats(0, 2.0**99, width=32) | st.sampled_from([0.0, 1.0, 1.5]), min_size=1, max_size=60)


@given(numbers=FLOATS, share=st.floats(0, 1), parts=st.integers(1, 5))
def test_the_edge_is_that_of_a_sort(numbers: list[float], share: float, parts: int) -> None:
    count = max(1, round(share * len(numbers)))
    bits = np.array(numbers, np.float32).view(np.uint32)
    edge = edge_of(lambda: np.array_split(bits, parts), count)
    ordered = np.sort(bits)[::-1]
    assert edge.bits == ordered[count - 1]
    assert edge.ties == int((ordered[:count] == edge.bits).sum())
    assert edge.peak == ordered[0] >> 16
    turned = edge_of(lambda: [~bits], count)  # the lowest
    assert ~turned.bits == np.sort(bits)[count - 1]


@given(numbers=FLOATS, share=st.floats(0, 1))
def test_of_equal_numbers_the_first_are_taken(numbers: list[float], share: float) -> None:
    given_ = np.array(numbers)
    count = max(1, round(share * len(numbers)))
    wanted = np.argsort(-given_, kind="stable")[:count]
    assert np.flatnonzero(topmost(given_, count)).tolist() == sorted(wanted.tolist())


@pytest.mark.parametrize("odd", [np.inf, np.nan])
def test_what_is_not_finite_is_seen_at_the_peak(odd: float) -> None:
    bits = np.array([1.0, odd, 2.0], np.float32).view(np.uint32)
    assert edge_of(lambda: [bits], 1).peak >= INFINITE


def test_counts_of_several_processes_are_added_up() -> None:
    mine, theirs = (np.array(each, np.float32).view(np.uint32) for each in ([3.0, 1.0], [2.0, 4.0]))
    leading = theirs >> 16
    counted = iter(np.bincount(each, minlength=1 << 16) for each in (leading, theirs[:1] & 0xFFFF))  # the edge is 2.0
    found = edge_of(lambda: [mine], 3, lambda tally: tally + next(counted))
    assert found == edge_of(lambda: [mine, theirs], 3)
