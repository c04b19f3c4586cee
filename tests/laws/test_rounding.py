"""Numbers are rounded once: against exact rational arithmetic, at ties and where rounding twice goes wrong."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillgraft.errors import InputError
from skillgraft.values.graft import Graft
from skillgraft.values.numbers import BFLOAT16, Array, added, bits, blended, round_once, same_bits, widen
from skillgraft.values.region import Region, Scope

from ..strategies import FORMATS, arrays, examples, grafts, special_numbers

# Significant bits, the exponent of the smallest subnormal, the largest exponent.
_LIMITS = {"float32": (24, -149, 127), "bfloat16": (8, -133, 127), "float16": (11, -24, 15)}
every_format = pytest.mark.parametrize("dtype", FORMATS.values(), ids=FORMATS)
quick = examples(150)


def nearest(exact: Fraction, dtype: np.dtype[Any]) -> float:
    """The number of the format nearest to a fraction, ties to even, infinity beyond the largest."""
    digits, lowest, highest = _LIMITS[str(dtype)]
    if exact == 0:
        return 0.0
    exponent = abs(exact.numerator).bit_length() - exact.denominator.bit_length()
    exponent -= abs(exact) < Fraction(2) ** exponent
    step = Fraction(2) ** max(exponent - digits + 1, lowest)
    result = round(exact / step) * step  # Python rounds a fraction's ties to even
    if abs(result) >= Fraction(2) ** (highest + 1):
        return math.inf if exact > 0 else -math.inf
    return math.copysign(float(result), 1 if exact > 0 else -1)


def all_nearest(numbers: list[Fraction], dtype: np.dtype[Any]) -> Array:
    return np.array([nearest(number, dtype) for number in numbers], np.float32).astype(dtype)


@st.composite
def near_ties(draw: st.DrawFn, dtype: np.dtype[Any]) -> float:
    """A float64 number at or one step beside the middle between two neighbours of the format."""
    low = draw(arrays(dtype, 1))
    high = (bits(low) + 1).view(dtype)  # away from zero
    if not np.isfinite(high[0]):
        return float(low[0])
    middle = (float(low[0]) + float(high[0])) / 2
    return draw(st.sampled_from([middle, math.nextafter(middle, math.inf), math.nextafter(middle, -math.inf)]))


@every_format
@quick
@given(data=st.data())
def test_round_once_gives_the_nearest_number(dtype, data):
    any_number = st.floats(allow_nan=False, allow_infinity=False)
    numbers = data.draw(st.lists(near_ties(dtype) | any_number, min_size=1, max_size=8))
    got = round_once(np.array(numbers), dtype)
    assert got.tolist() == all_nearest(list(map(Fraction, numbers)), dtype).tolist()
    assert np.signbit(got).tolist() == np.signbit(numbers).tolist()


def test_float64_to_bfloat16_through_float32_would_round_twice():
    # 1 + 2^-8 is a tie in bfloat16, which goes down to 1; a trace more must go up. float32 cannot see the trace.
    number = np.array([1 + 2**-8 + 2**-40])
    assert float(round_once(number, BFLOAT16)[0]) == 1 + 2**-7
    assert float(number.astype(np.float32).astype(BFLOAT16)[0]) == 1.0


@every_format
def test_widen_is_exact(dtype):
    numbers = special_numbers(dtype)
    assert widen(numbers).dtype == np.float32
    assert same_bits(widen(numbers).astype(dtype), numbers)
    assert widen(numbers).astype(np.float64).tolist() == numbers.astype(np.float64).tolist()


def fractions_of(g: Graft, name: str) -> list[Fraction]:
    """before + delta at each site, exactly."""
    result = []
    for before, change in zip(g.before[name].tolist(), g.change[name].tolist(), strict=True):
        old, new = Fraction(before), Fraction(change)
        result.append(old + (new if g.form == "arithmetic" else Fraction(g.scale) * (new - old)))
    return result


@every_format
@examples(200)
@given(data=st.data())
def test_written_is_exact_arithmetic_rounded_once(dtype, data):
    g = data.draw(grafts(dtype, large=True))
    for name in g.region:
        result = all_nearest(fractions_of(g, name), dtype)
        if g.form == "exact" and g.scale == 1.0:
            assert same_bits(g.written(name), g.change[name])
        elif np.isfinite(result).all():
            assert same_bits(g.written(name), np.where(g.delta(name) == 0, g.before[name], result))
        else:
            with pytest.raises(InputError, match="overflow"):
                g.written(name)


@every_format
@quick
@given(data=st.data(), scale=st.floats(-1e300, 1e300) | st.sampled_from([5e-324, 1e-310, 1e-200, 2**0.5, 0.1, 0.3]))
def test_any_scale_is_exact(dtype, data, scale):
    before, after = data.draw(arrays(dtype, 6)), data.draw(arrays(dtype, 6))
    exact = [
        Fraction(b) + Fraction(scale) * (Fraction(a) - Fraction(b))
        for b, a in zip(before.tolist(), after.tolist(), strict=True)
    ]
    assert blended(before, after, scale=scale).tolist() == all_nearest(exact, dtype).tolist()


def one_entry(before: float, after: float, scale: float, dtype: Any) -> float:
    region = Region(Scope.of("all", {"w": (1,)}), {"w": [0]})
    graft = Graft(region, {"w": np.array([before], dtype)}, {"w": np.array([after], dtype)}, scale=scale)
    return float(graft.written("w")[0])


@every_format
def test_scale_0_leaves_the_bits_and_takes_no_long_way(dtype, monkeypatch):
    monkeypatch.setattr("skillgraft.values.numbers._blend_by_fractions", None)  # exact, but a hundred times as slow
    before, after = np.array([-0.0, 1.0, 3.0], dtype), np.array([1.0, -2.0, 0.0], dtype)
    assert same_bits(blended(before, after, scale=0.0), before)


def test_a_scale_of_three_tenths_does_not_make_a_tie():
    # 0.3 is a little less than 3/10, so 0.3 · 5 steps is a little less than 1.5 steps; float64 says exactly 1.5.
    step = 2.0**-24
    assert one_entry(0.0, 5 * step, 0.3, np.float16) == step
    assert float(np.float16(0.3 * (5 * step))) == 2 * step


def test_magnitudes_too_far_apart_for_float64():
    # 3/4 · (1 + 3 · 2^-23) is a tie in float32; the trace 2^-62 that float64 loses decides it.
    before = 1 + 3 * 2.0**-23
    assert one_entry(before, 2.0**-60, 0.25, np.float32) == 0.75 + 5 * 2.0**-24
    assert float(np.float32(before + 0.25 * (2.0**-60 - before))) == 0.75 + 4 * 2.0**-24


def test_cancellation_keeps_what_is_left():
    exact = 3 + Fraction(0.3) * -10
    assert one_entry(3.0, -7.0, 0.3, np.float32) == float(exact) == 2.0**-53


def test_a_tiny_before_decides_a_tie_of_the_delta():
    before, delta = np.array([2.0**-60, -(2.0**-60)], BFLOAT16), np.array([1 + 2.0**-8] * 2, np.float32)
    assert added(before, delta).tolist() == [1 + 2.0**-7, 1.0]


@every_format
def test_an_overflow_is_an_error_that_names_parameter_and_scale(dtype):
    largest = float(special_numbers(dtype)[-2])
    with pytest.raises(InputError, match=rf"w: 1 numbers overflow {dtype} .* use a smaller scale than 3"):
        one_entry(0.0, largest, 3.0, dtype)
    assert one_entry(0.0, largest, -1.0, dtype) == -largest


def test_a_scale_beyond_float64_is_an_overflow_too():
    with pytest.raises(InputError, match="overflow float32"):
        one_entry(0.0, 1e38, 1e300, np.float32)


def test_where_plain_float64_arithmetic_differs_it_is_the_one_that_is_wrong():
    # Tuned numbers lie whole steps from the old ones, so 0.3 of that is often close to a half step: one in fifty here.
    generator = np.random.default_rng(0)
    before, after = generator.normal(size=(2, 200_000)).astype(np.float32)  # more than one stretch
    got = blended(before, after, scale=0.3)
    plain = (before.astype(np.float64) + 0.3 * (after.astype(np.float64) - before)).astype(np.float32)
    differ = np.flatnonzero(got != plain)
    assert 0.01 < len(differ) / len(got) < 0.04
    for place in differ[:: len(differ) // 100]:
        old, new = Fraction(float(before[place])), Fraction(float(after[place]))
        assert got[place] == nearest(old + Fraction(0.3) * (new - old), got.dtype)


def test_float64_weights_are_plain_float64_arithmetic():
    before, after = np.array([0.1, 1e308]), np.array([0.7, -1e308])
    assert one_entry(0.1, 0.7, 0.3, np.float64) == 0.1 + 0.3 * (0.7 - 0.1)
    assert added(before, after).tolist() == [0.1 + 0.7, 0.0]
    with pytest.raises(InputError, match="overflow float64"):
        one_entry(1e308, -1e308, 2.0, np.float64)
