"""Regions and predictions of several training samples, compared by hand."""

from __future__ import annotations

import numpy as np
import pytest

from skillgraft.errors import InputError
from skillgraft.measure import Predictions, stability
from skillgraft.values.region import Region, Scope

SCOPE = Scope.of("all", {"w": (8,)})
REGIONS = [Region(SCOPE, {"w": at}) for at in ([0, 1, 2], [1, 2, 3], [2, 7])]


def answers(*classes: int) -> Predictions:
    return Predictions(np.eye(2)[list(classes)], [0, 1, 0, 1], task="sst2")


def test_by_hand() -> None:
    found = stability(REGIONS, predictions=[answers(0, 1, 0, 1), answers(0, 1, 1, 1), answers(0, 0, 0, 1)])
    np.testing.assert_allclose(found.jaccard, [[1, 1 / 2, 1 / 4], [1 / 2, 1, 1 / 4], [1 / 4, 1 / 4, 1]])
    assert found.mean_jaccard == pytest.approx(1 / 3)
    assert found.common == 1
    np.testing.assert_allclose(found.agreement, [[1, 3 / 4, 3 / 4], [3 / 4, 1, 1 / 2], [3 / 4, 1 / 2, 1]])
    assert found.mean_agreement == pytest.approx(2 / 3)
    assert found.all_agree == 0.5


def test_regions_alone() -> None:
    found = stability(REGIONS[:2])
    assert (found.mean_jaccard, found.mean_agreement, found.all_agree) == (0.5, None, None)
    assert stability([REGIONS[0]] * 3).mean_jaccard == 1.0
    with pytest.raises(ValueError, match="read-only"):
        found.jaccard[0, 0] = 2


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(InputError, match="at least two regions, found 1"):
        stability(REGIONS[:1])
    with pytest.raises(InputError, match="each of the 3 regions, found 1"):
        stability(REGIONS, predictions=[answers(0, 0, 0, 0)])
    other = Predictions(np.eye(2)[[0, 0]], [0, 1], task="sst2")
    with pytest.raises(InputError, match="same rows"):
        stability(REGIONS[:2], predictions=[answers(0, 0, 0, 0), other])
