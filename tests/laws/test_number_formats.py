"""A graft for a model that is held in other number formats: exact when wider, rounded once when narrower, itself when equal."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from skillgraft.errors import InputError
from skillgraft.values.graft import Graft
from skillgraft.values.numbers import Array, same_bits
from skillgraft.values.region import Region, Scope

from ..strategies import FORMATS, examples, grafts
from .test_rounding import all_nearest

_FLOAT64 = np.dtype(np.float64)
_WIDER = [(FORMATS["bfloat16"], FORMATS["float32"]), (FORMATS["float16"], FORMATS["float32"])]
_WIDER += [(dtype, _FLOAT64) for dtype in FORMATS.values()]
_OTHER = [(own, other) for own, other in permutations(FORMATS.values(), 2) if (own, other) not in _WIDER]
every_format = pytest.mark.parametrize("dtype", FORMATS.values(), ids=FORMATS)
quick = examples(100)


def pairs(which: list[tuple[Any, Any]]) -> Any:
    return pytest.mark.parametrize(("own", "held"), which, ids=[f"{own}-{held}" for own, held in which])


def everywhere(graft: Graft, dtype: np.dtype[Any]) -> dict[str, np.dtype[Any]]:
    """All floating-point tensors of the graft in one format."""
    floats = [name for name, head in graft.heads.items() if head.dtype.kind != "i"]
    return dict.fromkeys((*graft.before, *floats), dtype)


def drawn(data: st.DataObject, dtype: np.dtype[Any], **options: Any) -> Graft:
    """A graft that can be written in its own format."""
    graft: Graft = data.draw(grafts(dtype, **options))
    try:
        for name in graft.before:
            graft.written(name)
    except InputError:
        assume(False)
    return graft


def rounded(numbers: Array, dtype: np.dtype[Any]) -> Array:
    """By exact fractions; a zero keeps its sign."""
    nearest = all_nearest([Fraction(number) for number in numbers.reshape(-1).tolist()], dtype)
    nearest = np.copysign(nearest.astype(np.float64), numbers.reshape(-1).astype(np.float64)).astype(dtype)
    return nearest.reshape(numbers.shape)


@every_format
@quick
@given(data=st.data())
def test_equal_formats_change_nothing(dtype, data):
    graft = data.draw(grafts(dtype))
    assert graft.in_formats(everywhere(graft, dtype)) is graft
    assert graft.in_formats({"another.weight": np.dtype(np.float64)}) is graft


@pairs(_WIDER)
@quick
@given(data=st.data())
def test_widening_is_exact(own, held, data):
    graft = drawn(data, own)
    wide = graft.in_formats(everywhere(graft, held))
    for name, before in graft.before.items():
        for ours, theirs in ((before, wide.before[name]), (graft.written(name), wide.written(name))):
            assert theirs.dtype == held
            assert theirs.tolist() == ours.astype(np.float64).tolist()
            assert same_bits(theirs.astype(own), ours), "nothing is lost on the way there and back"
    for name, head in graft.heads.items():
        assert wide.heads[name].astype(np.float64).tolist() == head.astype(np.float64).tolist()


@pairs(_OTHER)
@quick
@given(data=st.data())
def test_narrowing_rounds_what_stands_in_the_model_once(own, held, data):
    """As if the graft were applied to the folder, and the folder then loaded in that format."""
    graft = drawn(data, own)
    wanted = {name: (rounded(graft.before[name], held), rounded(graft.written(name), held)) for name in graft.before}
    heads = {name: rounded(head, held) for name, head in graft.heads.items() if head.dtype.kind != "i"}
    finite = all(np.isfinite(part).all() for parts in (*wanted.values(), heads.values()) for part in parts)
    if not finite:
        with pytest.raises(InputError, match=f"too large for {held}"):
            graft.in_formats(everywhere(graft, held))
        return
    narrow = graft.in_formats(everywhere(graft, held))
    for name, (before, after) in wanted.items():
        assert same_bits(narrow.before[name], before)
        assert same_bits(narrow.written(name), after)
    for name, head in heads.items():
        assert same_bits(narrow.heads[name], head)


@pairs([*_WIDER, *_OTHER])
@quick
@given(data=st.data())
def test_what_is_not_a_number_stays(own, held, data):
    graft = drawn(data, own)
    try:
        found = graft.in_formats(everywhere(graft, held))
    except InputError:
        assume(False)
    assert (found.region, found.base_fingerprint, found.info) == (graft.region, graft.base_fingerprint, graft.info)
    if found is not graft:
        assert (found.form, found.scale) == ("exact", 1.0)
    assert [name for name, head in found.heads.items() if head.dtype.kind == "i"] == [
        name for name, head in graft.heads.items() if head.dtype.kind == "i"
    ]


@pairs(_WIDER)
@quick
@given(data=st.data())
def test_widened_and_narrowed_again_it_writes_the_same(own, held, data):
    graft = drawn(data, own)
    back = graft.in_formats(everywhere(graft, held)).in_formats(everywhere(graft, own))
    for name in graft.before:
        assert same_bits(back.before[name], graft.before[name])
        assert same_bits(back.written(name), graft.written(name))


def graft_of(*numbers: float) -> Graft:
    region = Region(
        Scope.of("all", {"a": (len(numbers),), "b": (len(numbers),)}), dict.fromkeys("ab", range(len(numbers)))
    )
    before, after = np.zeros(len(numbers), np.float32), np.array(numbers, np.float32)
    return Graft(region, dict.fromkeys("ab", before), dict.fromkeys("ab", after), heads={"score.bias": after})


def test_each_tensor_has_the_format_in_which_the_model_holds_it():
    found = graft_of(1.0, 1 / 3).in_formats({"b": FORMATS["bfloat16"], "score.bias": FORMATS["float16"]})
    assert [str(found.written(name).dtype) for name in "ab"] == ["float32", "bfloat16"]
    assert str(found.heads["score.bias"].dtype) == "float16"
    assert found.written("a").tolist() == [1.0, np.float32(1 / 3)]


def test_a_number_that_the_format_cannot_hold_is_named():
    with pytest.raises(InputError, match=r"a: 1 float32 numbers are too large for float16; .* in float32"):
        graft_of(1.0, 1e6).in_formats({"a": FORMATS["float16"]})
