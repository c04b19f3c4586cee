"""Scopes and regions: selection, and every refusal with its message. The set algebra is in laws/."""

from __future__ import annotations

import doctest

import numpy as np
import pytest

from skillgraft.errors import InputError
from skillgraft.values import names, region
from skillgraft.values.region import Region, Scope, index_dtype

SHAPES = {
    "embeddings.word_embeddings.weight": (10, 4),
    "encoder.layer.0.query.weight": (4, 4),
    "encoder.layer.0.query.bias": (4,),
    "encoder.layer.10.output.dense.weight": (4, 8),
    "classifier.weight": (2, 4),
    "lm_head.bias": (10,),
}
SCOPE = Scope.of("all", {"w": (2, 3), "b": (3,)})


@pytest.mark.parametrize(
    ("label", "size"),
    [
        ("layers", 16 + 4 + 32),
        ("biases", 4),
        ("all", 40 + 16 + 4 + 32 + 10),
        ("*.query.*", 20),
        ("lm_head.bias", 10),
        ("upper:layers", 32),
        ("upper:all", 32),
    ],
)
def test_a_scope_is_selected_by_its_label(label, size):
    scope = Scope.select(label, SHAPES)
    assert scope.size == size
    assert scope.label == label
    assert list(scope.shapes) == sorted(scope.shapes)


def test_a_label_that_selects_nothing_is_refused():
    with pytest.raises(
        InputError, match=r"scope 'layer' selects none of the 6 tensors; names here: .*did you mean 'layers'"
    ):
        Scope.select("layer", SHAPES)
    with pytest.raises(InputError, match=r"scope 'upper:layer' selects none .*did you mean 'layers'"):
        Scope.select("upper:layer", SHAPES)


@pytest.mark.parametrize(
    ("sites", "message"),
    [
        ({"w": [0, 6]}, r"w: index 6 is out of range for 6 entries \(1 of 2 are\)"),
        ({"w": [-2, -1, 3]}, r"w: index -2 is negative \(2 of 3 are\)"),
        ({"w": [3, 1]}, "w: indices are not sorted"),
        ({"w": [1, 1, 1, 2]}, "w: 2 indices are duplicates"),
        ({"w": [[0, 1]]}, r"w: indices must be one row of whole numbers, found int64 of shape \(1, 2\)"),
        ({"w": [0.0, 1.0]}, "whole numbers, found float64"),
        ({"w": [True, False]}, "whole numbers, found bool"),
        ({"weight": [0]}, "weight is not in the scope 'all'; .*Known: b, w"),
        ({"w": np.array([0, 2**63], np.uint64)}, "out of range"),
    ],
)
def test_sites_that_are_none_are_refused(sites, message):
    with pytest.raises(InputError, match=message):
        Region(SCOPE, sites)


def test_names_without_entries_do_not_appear():
    assert dict(Region(SCOPE, {"w": [], "b": np.zeros(0)}).sites) == {}
    assert Region(SCOPE, {"w": []}) == Region(SCOPE, {})


@pytest.mark.parametrize(("size", "dtype"), [(0, np.int32), (2**31 - 1, np.int32), (2**31, np.int64)])
def test_index_dtype(size, dtype):
    assert index_dtype(size) == dtype


def test_indices_beyond_int32():
    scope = Scope.of("all", {"w": (2**20, 2**12)})
    a, b = Region(scope, {"w": [0, 2**31]}), Region(scope, {"w": [2**31, 2**32 - 1]})
    assert (a | b).sites["w"].tolist() == [0, 2**31, 2**32 - 1]
    assert (a & b).sites["w"].tolist() == [2**31]
    assert (a - b).sites["w"].dtype == np.int64
    assert a.density == 2 / 2**32


def test_a_mask_of_another_shape_is_refused():
    with pytest.raises(InputError, match=r"w: the mask has shape \[3, 2\], the parameter \[2, 3\]"):
        Region.from_masks(SCOPE, {"w": np.ones((3, 2), bool)})
    with pytest.raises(InputError, match="x is not in the scope"):
        Region.from_masks(SCOPE, {"x": np.ones(2, bool)})


def test_within_another_scope():
    region = Region(SCOPE, {"b": [1]})
    assert region.within(Scope.of("biases", {"b": (3,)})).density == 1 / 3
    with pytest.raises(InputError, match="b is not in the scope 'other'"):
        region.within(Scope.of("other", {"c": (3,)}))


def test_layers_are_counted_in_natural_order():
    scope = Scope.select("all", SHAPES)
    region = Region(scope, {"encoder.layer.10.output.dense.weight": [0, 1], "encoder.layer.0.query.bias": [3]})
    assert list(region.by_layer().items()) == [("", 0), ("encoder.layer.0", 1), ("encoder.layer.10", 2)]
    assert region.by_kind() == {"bias": 1, "query": 0, "MLP out": 2, "other": 0}


def test_the_digest_is_of_the_entries_whatever_the_scope():
    region = Region(SCOPE, {"w": [0, 5]})
    assert region.digest == region.within(Scope.of("w", {"w": (6,)})).digest
    assert region.digest != Region(SCOPE, {"w": [0, 4]}).digest
    assert region.digest != Region(SCOPE, {}).digest


def test_equality_and_representation():
    region = Region(SCOPE, {"w": [0, 5]})
    assert repr(region) == "Region(2 entries, density 2.22e-01 of 'all')"
    assert region != "Region"
    assert region != Region(Scope.of("layers", SCOPE.shapes), {"w": [0, 5]})
    assert len({region, Region(SCOPE, {"w": [0, 5]}), Region(SCOPE, {})}) == 2
    assert list(region) == ["w"]


@pytest.mark.parametrize("module", [region, names])
def test_examples_in_docstrings(module):
    tried = doctest.testmod(module)
    assert tried.attempted
    assert not tried.failed
