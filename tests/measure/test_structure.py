"""Where a region's entries stand, against loops over masks; agreement of regions by hand and by law."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillgraft.errors import InputError
from skillgraft.measure.matrices import consistency, structure
from skillgraft.values.names import kind_of, layer_of
from skillgraft.values.region import Region, Scope

SCOPE = Scope.of(
    "layers",
    {
        "encoder.layer.0.attention.self.query.weight": (3, 4),
        "encoder.layer.0.attention.self.query.bias": (3,),
        "encoder.layer.2.intermediate.dense.weight": (2, 5),
        "encoder.layer.10.intermediate.dense.weight": (2, 5),
        "encoder.layer.10.conv.weight": (2, 3, 2),
    },
)


@st.composite
def regions(draw: st.DrawFn) -> Region:
    sites = {}
    for name, shape in SCOPE.shapes.items():
        sites[name] = sorted(draw(st.sets(st.integers(0, math.prod(shape) - 1))))
    return Region(SCOPE, sites)


def test_by_hand() -> None:
    query, bias = "encoder.layer.0.attention.self.query.weight", "encoder.layer.0.attention.self.query.bias"
    found = structure(Region(SCOPE, {query: [0, 3, 8], bias: [1]}))
    assert found.layers == ("encoder.layer.0", "encoder.layer.2", "encoder.layer.10")
    assert found.kinds == ("bias", "query", "MLP in", "other")
    assert found.counts.tolist() == [[1, 3, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert found.sizes.tolist() == [[3, 12, 0, 0], [0, 0, 10, 0], [0, 0, 10, 12]]
    assert found.shares[0, :2].tolist() == [1 / 3, 0.25]
    assert np.isnan(found.shares[0, 2:]).all()
    assert found.shares_by_kind == {"bias": 1 / 3, "query": 0.25, "MLP in": 0.0, "other": 0.0}
    matrix = found.matrices[0]
    assert (matrix.name, matrix.selected, matrix.rows, matrix.columns) == (query, 3, 3, 4)
    assert (matrix.empty_rows, matrix.empty_columns) == (1, 2), "row 1 and columns 1, 2 have no entry"
    read = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert read["shares"][0] == [1 / 3, 0.25, None, None]
    assert read["matrices"][0]["empty_rows"] == 1


@given(regions())
def test_it_agrees_with_loops_and_with_the_regions_own_counts(region: Region) -> None:
    found = structure(region)
    assert dict(zip(found.layers, found.counts.sum(axis=1).tolist(), strict=True)) == region.by_layer()
    assert dict(zip(found.kinds, found.counts.sum(axis=0).tolist(), strict=True)) == region.by_kind()
    assert found.sizes.sum() == region.scope.size
    for layer, counts in zip(found.layers, found.counts, strict=True):
        for kind, count in zip(found.kinds, counts, strict=True):
            names = [n for n in region.sites if layer_of(n) == layer and kind_of(n) == kind]
            assert count == sum(len(region.sites[n]) for n in names)
    for matrix in found.matrices:
        mask = region.mask(matrix.name)
        assert matrix.empty_rows == sum(not mask[row].any() for row in range(len(mask)))
        assert matrix.empty_columns == sum(not mask[..., column].any() for column in range(mask.shape[-1]))


def test_consistency_by_hand() -> None:
    scope = Scope.of("all", {"w": (20,)})
    a, b, c = (Region(scope, {"w": sites}) for sites in ([0, 1, 2, 3], [0, 1, 2, 4], [0, 5, 6, 7]))
    found = consistency({"a": a, "b": b, "c": c})
    assert found.jaccard.values() == [[1.0, 3 / 5, 1 / 7], [3 / 5, 1.0, 1 / 7], [1 / 7, 1 / 7, 1.0]]
    assert found.coverage["a", "b"].value == 0.75
    assert found.mean_jaccard == pytest.approx((3 / 5 + 2 / 7) / 3)
    assert found.chance == pytest.approx((16 / 20) / (8 - 16 / 20))
    assert found.common == 1
    with pytest.raises(InputError, match="at least two regions"):
        consistency({"a": a})


@given(regions(), regions())
def test_consistency_is_symmetric_and_one_only_for_equal_regions(a: Region, b: Region) -> None:
    found = consistency({"a": a, "b": b})
    assert found.mean_jaccard == consistency({"b": b, "a": a}).mean_jaccard == a.jaccard(b)
    assert (found.mean_jaccard == 1.0) == (a == b)
    assert found.common == len(a & b)


def test_random_regions_agree_as_chance_says() -> None:
    scope = Scope.of("all", {"w": (20_000,)})
    draw = np.random.default_rng(0)
    drawn = {str(n): Region(scope, {"w": np.sort(draw.permutation(20_000)[:2000])}) for n in range(4)}
    found = consistency(drawn)
    assert found.mean_jaccard == pytest.approx(found.chance, rel=0.1)
