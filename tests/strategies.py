"""Anything that an engine test can be fed with: scopes, regions, numbers of every format, grafts of one base.

Numbers come as bit patterns, so that subnormals, -0.0 and the largest numbers are as likely as any other.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from skillgraft.values.graft import Graft
from skillgraft.values.info import Info
from skillgraft.values.numbers import BFLOAT16, Array, bits
from skillgraft.values.region import Region, Scope

FORMATS: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": BFLOAT16,
    "float16": np.dtype(np.float16),
}
# Where a format keeps its exponent, as (bits, shift).
_EXPONENTS = {"float32": (8, 23), "bfloat16": (8, 7), "float16": (5, 10)}
_NAMES = ("encoder.layer.0.query.weight", "encoder.layer.10.output.bias", "b", "ä.é")
_HEADS = ("classifier.weight", "pooler.dense.bias")
FINGERPRINT = "0123456789abcdef" * 4
SCALES = (1.0, -1.0, 0.0, 0.3, -0.3, 0.5, 2.0, -7.0, 1e-3, 1 / 3)


def examples(count: int) -> settings:
    """So many examples of each test; how long one takes depends on who else uses the machine."""
    return settings(max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def special_numbers(dtype: np.dtype[Any]) -> Array:
    """0, -0, the smallest and largest subnormal, the smallest normal, 1 and its neighbour, the largest; both signs."""
    width, shift = _EXPONENTS[str(dtype)]
    one = ((1 << (width - 1)) - 1) << shift
    largest = (((1 << width) - 1) << shift) - 1
    positive = [0, 1, (1 << shift) - 1, 1 << shift, one, one + 1, largest]
    sign = 1 << (width + shift)
    return np.array([p | s for p in positive for s in (0, sign)], f"u{dtype.itemsize}").view(dtype)


def arrays(dtype: np.dtype[Any], size: int, *, large: bool = True) -> st.SearchStrategy[Array]:
    """Finite numbers; without `large` sums of many stay far from overflow, also in float32."""
    width, shift = _EXPONENTS[str(dtype)]
    special = special_numbers(dtype)
    exponent = ((1 << width) - 1) << shift

    def numbers(choice: bytes, noise: bytes) -> Array:
        result = np.frombuffer(noise, f"u{dtype.itemsize}").copy()
        picks = np.frombuffer(choice, np.uint8)
        result = np.where(picks < len(special), bits(special)[picks % len(special)], result)
        endless = (result & exponent) == exponent
        result[endless] &= ~result.dtype.type(1 << (shift + 1))
        if not large:
            result[(result & exponent) >= (exponent // 4 * 3)] &= ~result.dtype.type(1 << (shift + width - 2))
        return result.astype(f"u{dtype.itemsize}").view(dtype)

    return st.builds(numbers, _bytes(size), _bytes(size * dtype.itemsize))


def _bytes(count: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=count, max_size=count)


@st.composite
def scopes(draw: st.DrawFn) -> Scope:
    """One to four parameters of up to 16 entries, scalars and empty ones among them."""
    names = draw(st.lists(st.sampled_from(_NAMES), min_size=1, max_size=4, unique=True))
    shape = st.lists(st.integers(0, 4), max_size=2).map(tuple)
    return Scope.of(draw(st.sampled_from(["layers", "all"])), {name: draw(shape) for name in names})


@st.composite
def regions(draw: st.DrawFn, scope: Scope) -> Region:
    """Any subset of the scope's entries."""
    sizes = {name: math.prod(shape) for name, shape in scope.shapes.items()}
    chosen = {name: draw(st.integers(0, 2**size - 1)) for name, size in sizes.items()}
    return Region(scope, {name: [i for i in range(sizes[name]) if chosen[name] >> i & 1] for name in chosen})


# Enough for laws in which provenance only has to come along; `infos` has every kind of content.
_INFOS = (Info(), Info(task="sst2", labels=["bad", "good"]), Info(task="sst2", num_labels=2), Info(task="trec"))


def infos() -> st.SearchStrategy[Info]:
    """Provenance of every type: text, list, dict, whole number."""
    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    items = {
        "task": text,
        "labels": st.lists(text, max_size=3),
        "num_labels": st.integers(0, 10**20),
        "scores": st.dictionaries(text, st.floats(allow_nan=False, allow_infinity=False), max_size=3),
        "recipe": st.dictionaries(text, st.none() | st.booleans() | st.lists(st.integers(), max_size=2), max_size=2),
    }
    return st.fixed_dictionaries({}, optional=items).map(lambda chosen: Info(**chosen))


@st.composite
def heads(draw: st.DrawFn, dtype: np.dtype[Any]) -> dict[str, Array]:
    """None, or a matrix in the weights' format and a scalar of whole numbers."""
    result: dict[str, Array] = {}
    if draw(st.booleans()):
        result[_HEADS[0]] = draw(arrays(dtype, 6)).reshape(2, 3)
    if draw(st.booleans()):
        result[_HEADS[1]] = np.array(draw(st.integers(-5, 5)), np.int64)
    return result


@st.composite
def families(
    draw: st.DrawFn,
    dtype: np.dtype[Any],
    count: int,
    *,
    large: bool = False,
    forms: tuple[str, ...] = ("exact", "arithmetic"),
) -> list[Graft]:
    """Grafts of one base: same scope, same `before` wherever they meet, same heads."""
    scope = draw(scopes())
    base = {name: draw(arrays(dtype, math.prod(shape), large=large)) for name, shape in scope.shapes.items()}
    shared = draw(heads(dtype))
    return [draw(_grafts(scope, base, shared, draw(st.sampled_from(forms)), large=large)) for _ in range(count)]


@st.composite
def _grafts(
    draw: st.DrawFn, scope: Scope, base: dict[str, Array], shared: dict[str, Array], form: str, *, large: bool
) -> Graft:
    region = draw(regions(scope))
    exact = form == "exact"
    change = {
        name: draw(arrays(base[name].dtype if exact else FORMATS["float32"], len(at), large=large))
        for name, at in region.sites.items()
    }
    return Graft(
        region,
        {name: base[name][at] for name, at in region.sites.items()},
        change,
        form="exact" if exact else "arithmetic",
        scale=draw(st.sampled_from(SCALES)) if exact else 1.0,
        heads=shared,
        base_fingerprint=FINGERPRINT,
        info=draw(st.sampled_from(_INFOS)),
    )


def grafts(dtype: np.dtype[Any], **options: Any) -> st.SearchStrategy[Graft]:
    """One graft of any form, any scale, with and without heads and provenance."""
    return families(dtype, 1, **options).map(lambda family: family[0])
