"""Dot product, norm and cosine of grafts against plain Python over (name, index) → delta."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillgraft.values.graft import Graft
from skillgraft.values.region import Region, Scope

from ..strategies import FORMATS, examples, families

pytestmark = pytest.mark.parametrize("dtype", FORMATS.values(), ids=FORMATS)
quick = examples(60)


def deltas(graft: Graft) -> dict[tuple[str, int], float]:
    """Entry → what is added there, one number at a time."""
    result = {}
    for name, at in graft.region.sites.items():
        for place, index in enumerate(at.tolist()):
            change = float(graft.change[name][place])
            old = float(graft.before[name][place])
            result[name, index] = change if graft.form == "arithmetic" else graft.scale * (change - old)
    return result


@quick
@given(data=st.data())
def test_dot_product_and_norm(dtype, data):
    g, h = data.draw(families(dtype, 2))
    ours, theirs = deltas(g), deltas(h)
    products = [ours[entry] * theirs[entry] for entry in ours.keys() & theirs.keys()]
    # The order of summation may differ, so the error is measured against the sum of magnitudes.
    assert abs(g.dot(h) - math.fsum(products)) <= 1e-14 * math.fsum(map(abs, products))
    assert g.norm == pytest.approx(math.sqrt(math.fsum(delta * delta for delta in ours.values())), rel=1e-14)


@quick
@given(data=st.data())
def test_cosine(dtype, data):
    g, h = data.draw(families(dtype, 2))
    assert g.cosine(h) == pytest.approx(h.cosine(g), abs=1e-12)
    assert abs(g.cosine(h)) <= 1 + 1e-12
    expected = 1.0 if g.norm else 0.0
    assert g.cosine(g) == pytest.approx(expected)
    assert g.cosine(-g) == pytest.approx(-expected)
    if g.norm and h.norm:
        assert g.cosine(h) == pytest.approx(g.dot(h) / (g.norm * h.norm))


def test_sites_of_only_one_graft_count_as_zero(dtype):
    scope = Scope.of("all", {"w": (3,)})
    zero, delta = np.zeros(2, dtype), np.array([3, 4], dtype)
    g = Graft(Region(scope, {"w": [0, 1]}), {"w": zero}, {"w": delta})
    h = Graft(Region(scope, {"w": [1, 2]}), {"w": zero}, {"w": delta})
    assert g.norm == 5
    assert g.dot(h) == 4 * 3
    assert g.cosine(h) == pytest.approx(12 / 25)
