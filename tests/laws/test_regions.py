"""A region behaves like Python's set of (name, index) pairs."""

from __future__ import annotations

import math
import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillgraft.errors import InputError
from skillgraft.values.names import kind_of, layer_of
from skillgraft.values.region import Region, Scope

from ..strategies import examples, regions, scopes

quick = examples(150)
OPERATORS = {"|": operator.or_, "&": operator.and_, "-": operator.sub, "^": operator.xor}


def entries(region: Region) -> set[tuple[str, int]]:
    """The region as Python's own set."""
    return {(name, index) for name, at in region.sites.items() for index in at.tolist()}


def region_of(scope: Scope, pairs: set[tuple[str, int]]) -> Region:
    return Region(scope, {name: sorted(i for n, i in pairs if n == name) for name in scope.shapes})


@quick
@given(data=st.data(), symbol=st.sampled_from(list(OPERATORS)))
def test_the_operators_are_those_of_sets(data, symbol):
    scope = data.draw(scopes())
    a, b = data.draw(regions(scope)), data.draw(regions(scope))
    combine = OPERATORS[symbol]
    assert combine(a, b) == region_of(scope, combine(entries(a), entries(b)))
    assert len(combine(a, b)) == len(combine(entries(a), entries(b)))
    assert a.isdisjoint(b) == entries(a).isdisjoint(entries(b))


@quick
@given(data=st.data())
def test_coverage_jaccard_and_density(data):
    scope = data.draw(scopes())
    a, b = data.draw(regions(scope)), data.draw(regions(scope))
    both, either = entries(a) & entries(b), entries(a) | entries(b)
    assert a.coverage(of=b) == (len(both) / len(b) if len(b) else 0.0)
    assert a.jaccard(b) == b.jaccard(a) == (len(both) / len(either) if either else 1.0)
    size = sum(math.prod(shape) for shape in scope.shapes.values())
    assert scope.size == size
    assert a.density == (len(a) / size if size else 0.0)


@quick
@given(data=st.data())
def test_counts_by_layer_and_by_kind_partition_the_region(data):
    region = data.draw(scopes().flatmap(regions))
    for counts, group in ((region.by_layer(), layer_of), (region.by_kind(), kind_of)):
        assert counts.keys() == {group(name) for name in region.scope.shapes}
        assert sum(counts.values()) == len(region)
        for key, count in counts.items():
            assert count == sum(group(name) == key for name, _ in entries(region))


@quick
@given(data=st.data())
def test_masks_and_regions_are_two_views_of_one_thing(data):
    region = data.draw(scopes().flatmap(regions))
    masks = {name: region.mask(name) for name in region.scope.shapes}
    assert {name: mask.shape for name, mask in masks.items()} == dict(region.scope.shapes)
    assert Region.from_masks(region.scope, masks) == region
    full = Region.full(region.scope)
    assert len(full) == region.scope.size
    assert region | full == full
    assert full - (full - region) == region


@quick
@given(data=st.data())
def test_equal_regions_have_equal_hashes_however_they_were_built(data):
    region = data.draw(scopes().flatmap(regions))
    names = data.draw(st.permutations(list(region.scope.shapes)))
    scope = Scope.of(region.scope.label, {name: region.scope.shapes[name] for name in names})
    again = Region(scope, {name: np.array(region.sites.get(name, []), np.int64) for name in names})
    assert again == region
    assert hash(again) == hash(region)
    assert list(again) == sorted(again)


def test_regions_of_different_scopes_meet_in_the_scope_of_both():
    small, large = Scope.of("biases", {"b": (3,)}), Scope.of("all", {"b": (3,), "w": (2,)})
    assert (Region(small, {"b": [0]}) | Region(large, {"w": [1]})).scope == large
    other = Scope.of("queries", {"w": (2,)})
    for joined in (small.join(other), other.join(small)):
        assert joined.label == "biases + queries"
        assert joined.shapes == large.shapes
    assert small.join(other).join(small) == small.join(other)


@pytest.mark.parametrize("symbol", OPERATORS)
def test_scopes_that_disagree_on_a_shape_are_refused(symbol):
    a, b = Region(Scope.of("all", {"w": (2, 3)}), {}), Region(Scope.of("all", {"w": (3, 2)}), {})
    with pytest.raises(InputError, match=r"w has shape \[2, 3\] on one side and \[3, 2\].*different models"):
        OPERATORS[symbol](a, b)
