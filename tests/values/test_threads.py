"""Work shared out over threads: results in order, errors as they are, totals that add up."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from skillgraft.values.stream import EVERY, mask_of, positions, where_of
from skillgraft.values.threads import THREADS, SharedProgress, ahead, together


def late(number: int) -> int:
    time.sleep(0.002 * (number % 3))
    return number * number


def test_results_come_in_order():
    wanted = [number * number for number in range(20)]
    assert together(late, range(20)) == wanted
    assert list(ahead(late, range(20))) == wanted
    assert together(late, []) == list(ahead(late, [])) == []


def test_what_is_worked_out_ahead_stays_a_few():
    taken = []

    def items():
        for number in range(50):
            taken.append(number)
            yield number

    results = ahead(late, items())
    for done, _ in enumerate(results, start=1):
        assert len(taken) <= done + THREADS + 2


def test_the_first_error_is_the_error_and_what_was_not_begun_is_left_out():
    begun = []

    def fails(number):
        begun.append(number)
        time.sleep(0.001)
        if number == 3:
            raise KeyError("three")

    with pytest.raises(KeyError, match="three"):
        together(fails, range(1000))
    assert len(begun) < 1000


def test_a_tally_tells_one_at_a_time_and_ends_at_the_total():
    seen, inside = [], threading.Lock()

    def told(done, total):
        assert inside.acquire(blocking=False), "two threads tell at once"
        seen.append((done, total))
        inside.release()

    tally = SharedProgress(told, 300)
    together(lambda _: tally.add(3), range(100))
    assert seen == [(3 * number, 300) for number in range(1, 101)]
    SharedProgress(None, 1).add(1)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.2, 0.89, 0.91, 0.999, 1.0])
def test_every_form_of_where_picks_the_same(share):
    mask = np.random.default_rng(0).permutation(np.arange(5000) < round(share * 5000))
    where, numbers = where_of(mask), np.arange(5000)
    np.testing.assert_array_equal(numbers[where], numbers[mask])
    np.testing.assert_array_equal(mask_of(where, 5000), mask)
    np.testing.assert_array_equal(positions(where, 5000), np.flatnonzero(mask))
    assert (where is EVERY) == (share == 1.0)
