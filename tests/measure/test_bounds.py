"""P1's theorems D.2 and D.4, worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from skillgraft.errors import InputError
from skillgraft.measure import Bound, generalization_bound, log_all_regions


def test_retraining_in_a_fixed_region() -> None:
    """D.2: 2·√((s·log q + log Θ + log 1/δ) / n) + bias + 4·ε₁, with s = 3, q = e², Θ = e, δ = e⁻¹, n = 32: 2·√(8/32) = 1."""
    bound = generalization_bound(3, 32, log_levels=2.0, log_regions=1.0, delta=math.exp(-1))
    assert (bound.values, bound.regions, bound.confidence) == (6.0, 1.0, 1.0)
    assert bound.variance == pytest.approx(1.0)
    whole = generalization_bound(
        3, 32, log_levels=2.0, log_regions=1.0, delta=math.exp(-1), bias=0.125, quantisation_error=0.01
    )
    assert whole.value == pytest.approx(1.165)
    assert whole.vacuous


def test_a_graft_as_it_is() -> None:
    """D.4: log 2/δ instead of log 1/δ, and ε₂ on top. With δ = 2/e and n = 800: 2·√(8/800) = 0.2."""
    bound = generalization_bound(
        3, 800, log_levels=2.0, log_regions=1.0, delta=2 / math.e, retrained=False, training_gap=0.03
    )
    assert bound.confidence == pytest.approx(1.0)
    assert bound.value == pytest.approx(0.23)
    assert not bound.vacuous
    assert generalization_bound(3, 800, retrained=False).value > generalization_bound(3, 800).value


def test_the_papers_numbers() -> None:
    """A learned region of 0.01 % of RoBERTa-base, 4096-shot: 32-bit numbers and d^s regions prove nothing at that size."""
    entries, scope = 8505, 85_054_464
    bound = generalization_bound(entries, 2 * 4096, log_regions=log_all_regions(entries, scope))
    by_hand = 2 * math.sqrt((entries * (32 * math.log(2) + math.log(scope)) + math.log(20)) / 8192)
    assert bound.value == pytest.approx(by_hand)
    assert bound.vacuous
    assert generalization_bound(10, 1_000_000).value < 0.05


def test_exactly_one_is_not_vacuous() -> None:
    assert not Bound(4, 0.5, 1.0, 0.0, 0.0, 0.0, 0.0).vacuous
    assert Bound(4, 0.5, 1.0, 0.0, 0.0, 0.0, 0.001).vacuous


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"entries": -1}, "entries ≥ 0"),
        ({"n": 0}, "n ≥ 1"),
        ({"delta": 1.0}, "delta between 0 and 1"),
        ({"log_levels": -1.0}, "not negative"),
        ({"log_regions": math.inf}, "finite"),
        ({"training_gap": 0.1}, "belongs to grafts that were not re-trained"),
    ],
)
def test_what_means_nothing_is_refused(given: dict[str, Any], message: str) -> None:
    whole = {"entries": 5, "n": 10, **given}
    with pytest.raises(InputError, match=message):
        generalization_bound(whole.pop("entries"), whole.pop("n"), **whole)


def test_there_are_no_more_entries_than_the_scope_has() -> None:
    assert log_all_regions(0, 5) == 0.0
    with pytest.raises(InputError, match="from 0 to all 5 entries of its scope, found 6"):
        log_all_regions(6, 5)
