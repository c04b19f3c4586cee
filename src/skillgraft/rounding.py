"""Sums that are rounded once: before + delta and before + scale · (after − before), in the weights' own format.

float64 arithmetic followed by a rounding to the format rounds several times, and near a tie the last rounding then goes
the wrong way: at scale 0.3, five steps of the smallest float16 become 1.5 steps and end at 2 instead of 1. Here every
step keeps what it loses (Knuth's and Dekker's error-free sum and product), and the last float64 number is rounded *to
odd*: truncated, its last bit set if anything was lost. Rounding that to a narrower format equals rounding the exact number.

float64 weights have nothing wider to be computed in: theirs is plain float64 arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from skillgraft.dtypes import Array, round_once

Floats = npt.NDArray[np.float64]

_CHUNK = 1 << 16  # entries at a time: a dozen float64 arrays of this length stay in the cache
_SPLIT = 2.0**27 + 1.0
# Between these no product of a 53-bit scale with a difference loses bits to underflow or overflow.
_SMALLEST, _LARGEST = 2.0**-900, 2.0**900


def added(before: Array, delta: Array) -> Array:
    """before + delta in `before`'s format, rounded once. Overflow gives infinities."""
    return _chunked(before, delta, np.add if before.dtype == np.float64 else _sum_to_odd)


def blended(before: Array, after: Array, *, scale: float) -> Array:
    """before + scale · (after − before) in `before`'s format, rounded once. Overflow gives infinities."""
    if scale == 0.0:
        return before.copy()
    blend = _blend if before.dtype == np.float64 else _blend_to_odd
    return _chunked(before, after, lambda old, new: blend(old, new, scale))


def _chunked(before: Array, other: Array, combine: Callable[[Floats, Floats], Floats]) -> Array:
    result = np.empty_like(before)
    with np.errstate(over="ignore", invalid="ignore"):
        for low in range(0, len(before), _CHUNK):
            part = slice(low, low + _CHUNK)
            wide = combine(before[part].astype(np.float64), other[part].astype(np.float64))
            result[part] = round_once(wide, before.dtype)
    return result


def _blend(before: Floats, after: Floats, scale: float) -> Floats:
    return before + scale * (after - before)


def _blend_to_odd(before: Floats, after: Floats, scale: float) -> Floats:
    difference, lost = _sum(after, -before)
    product, rest = _product(difference, scale)
    high, low = _sum(before, product)
    result = _sum_to_odd(high, _sum_to_odd(low, rest))
    size = np.abs(product)
    hard = (lost != 0) | ((difference != 0) & ~((size > _SMALLEST) & (size < _LARGEST)))
    for place in np.flatnonzero(hard):
        result[place] = _blend_by_fractions(float(before[place]), float(after[place]), scale)
    return result


def _sum(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """a + b as float64 gives it, and exactly what that lost."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


def _product(numbers: Floats, factor: float) -> tuple[Floats, Floats]:
    """numbers · factor as float64 gives it, and exactly what that lost."""
    mantissa, exponent = math.frexp(factor)
    product = numbers * mantissa
    high, low = _halves(numbers)
    factor_high, factor_low = _halves(np.asarray(mantissa))
    lost = ((high * factor_high - product) + high * factor_low + low * factor_high) + low * factor_low
    return np.ldexp(product, exponent), np.ldexp(lost, exponent)


def _halves(numbers: Floats) -> tuple[Floats, Floats]:
    """Two numbers of at most 26 bits each that add up to the given one."""
    shifted = numbers * _SPLIT
    high = shifted - (shifted - numbers)
    return high, numbers - high


def _sum_to_odd(a: Floats, b: Floats) -> Floats:
    total, lost = _sum(a, b)
    pattern = total.view(np.int64).copy()
    inexact = (lost != 0) & np.isfinite(total)
    pattern[inexact & ((lost < 0) != (total < 0))] -= 1  # float64 rounded away from zero
    pattern[inexact] |= 1
    return pattern.view(np.float64)


def _blend_by_fractions(before: float, after: float, scale: float) -> float:
    """One entry whose magnitudes are too far apart for two float64 numbers: rare, so its cost does not matter."""
    exact = Fraction(before) + Fraction(scale) * (Fraction(after) - Fraction(before))
    try:
        near = float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf
    lost = 5e-324 * ((exact > near) - (exact < near))
    return float(_sum_to_odd(np.array([near]), np.array([lost]))[0])
