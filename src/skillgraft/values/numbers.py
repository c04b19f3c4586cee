"""Number formats: bits, widening, and rounding once."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from mmap import mmap
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
# The formats a graft can hold. 8-bit floats are quantised weights and are refused elsewhere, by name.
FLOATS: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": BFLOAT16,
}
OTHERS: dict[str, np.dtype[Any]] = {
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
DTYPES: dict[str, np.dtype[Any]] = {**FLOATS, **OTHERS}
TAGS: dict[np.dtype[Any], str] = {dtype: tag for tag, dtype in DTYPES.items()}
QUANTISED = frozenset({"F8_E4M3", "F8_E5M2", "F8_E8M0", "F4", "F6_E2M3", "F6_E3M2"})


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether numbers of this format can be part of a region."""
    return dtype in FLOATS.values()


def bits(array: Array) -> Array:
    """The same memory as unsigned integers: two arrays are the same when their bits are."""
    return array.view(np.dtype(f"u{array.dtype.itemsize}"))


def same_bits(a: Array, b: Array) -> bool:
    """Equality that tells -0.0 from 0.0 and needs equal formats."""
    return a.dtype == b.dtype and a.shape == b.shape and bool((bits(a) == bits(b)).all())


def frozen(array: Array) -> Array:
    """The array itself where nobody can write to its memory, otherwise a read-only copy."""
    owner: Any = array
    while isinstance(owner, np.ndarray) and not owner.flags.writeable:
        owner = owner.base
    # A read-only view can have a writeable owner; the memory of a mapped file has an owner that is no array.
    if owner is None or (isinstance(owner, (bytes, memoryview, mmap)) and memoryview(owner).readonly):
        return array
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def sealed(fresh: Array) -> Array:
    """An array that nobody else holds, made read-only: a graft then takes it as it is instead of copying it."""
    fresh.flags.writeable = False
    return fresh


# The exponent's bits, all ones in infinities and NaN alone; numpy has no fast test for its foreign formats.
_EXPONENTS = {BFLOAT16: 0x7F80, np.dtype("<f2"): 0x7C00}


def all_finite(array: Array) -> bool:
    """False if any number is NaN or infinite; whole numbers are always finite."""
    if array.dtype in _EXPONENTS:
        exponent = np.uint16(_EXPONENTS[array.dtype])
        return not array.size or bool((bits(array) & exponent).max() < exponent)
    return not is_float(array.dtype) or bool(np.isfinite(array).all())


def widen(array: Array) -> npt.NDArray[np.float32]:
    """float32 copies of bfloat16 and float16 numbers (exact); float32 comes back as it is."""
    if array.dtype == BFLOAT16:
        # A shift is many times faster than the element-wise cast.
        return (array.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array.astype(np.float32, copy=False)


def round_once(numbers: npt.NDArray[np.float64], dtype: np.dtype[Any]) -> Array:
    """Round float64 numbers to `dtype`, to nearest even, in one rounding. Overflow gives infinities.

    ml_dtypes goes from float64 to bfloat16 through float32, which rounds twice; rounding the first step to odd
    (truncate, then set the last bit if anything was lost) makes the second one right.
    """
    with np.errstate(over="ignore", under="ignore"):
        single = numbers.astype(np.float32)
        if dtype != BFLOAT16:
            return single if dtype == np.float32 else numbers.astype(dtype)
        finite = np.isfinite(single)
        pattern = single.view(np.uint32).copy()
        pattern[finite & (np.abs(single.astype(np.float64)) > np.abs(numbers))] -= np.uint32(1)
        pattern[finite & (single.astype(np.float64) != numbers)] |= np.uint32(1)
        return pattern.view(np.float32).astype(BFLOAT16)


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
            wide = combine(*(float64(each[part]) for each in (before, other)))
            result[part] = round_once(wide, before.dtype)
    return result


def float64(numbers: Array) -> Floats:
    """float64 copies; bfloat16 numbers go through float32, because their own cast is many times slower."""
    return (widen(numbers) if numbers.dtype == BFLOAT16 else numbers).astype(np.float64)


def difference(a: Array, b: Array) -> Floats:
    """a − b of one format in float64, without copies in between."""
    found: Floats = np.subtract(
        *((widen(each) if each.dtype == BFLOAT16 else each) for each in (a, b)), dtype=np.float64
    )
    return found


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
