"""Number formats: tags, comparison by bits, finiteness."""

from __future__ import annotations

import numpy as np
import pytest

from skillgraft.values.numbers import (
    BFLOAT16,
    DTYPES,
    FLOATS,
    OTHERS,
    QUANTISED,
    TAGS,
    all_finite,
    bits,
    is_float,
    same_bits,
)


def test_tags_and_dtypes_are_one_to_one():
    assert {TAGS[dtype]: dtype for dtype in DTYPES.values()} == DTYPES
    assert not QUANTISED & DTYPES.keys()
    assert TAGS[np.dtype(np.float32)] == "F32"
    assert TAGS[BFLOAT16] == "BF16"


@pytest.mark.parametrize("dtype", FLOATS.values(), ids=FLOATS)
def test_floats(dtype):
    assert is_float(dtype)
    zero, minus_zero = np.zeros(2, dtype), -np.zeros(2, dtype)
    assert (zero == minus_zero).all()
    assert not same_bits(zero, minus_zero)
    assert same_bits(zero, zero.copy())
    assert bits(minus_zero).tolist() == [1 << (8 * dtype.itemsize - 1)] * 2
    assert all_finite(zero)
    for number in (np.nan, np.inf, -np.inf):
        assert not all_finite(np.array([0, number]).astype(dtype))


@pytest.mark.parametrize("dtype", OTHERS.values(), ids=OTHERS)
def test_others_are_always_finite(dtype):
    assert not is_float(dtype)
    assert all_finite(np.ones(3, dtype))


def test_equal_bits_need_equal_formats_and_shapes():
    assert not same_bits(np.zeros(2, np.float16), np.zeros(2, BFLOAT16))
    assert not same_bits(np.zeros(2, np.float32), np.zeros((2, 1), np.float32))
    assert same_bits(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32))
    assert same_bits(np.array(1.0), np.array(1.0))
