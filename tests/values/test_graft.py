"""Grafts by hand-computed numbers, and every refusal with its message. The laws are in laws/."""

from __future__ import annotations

import numpy as np
import pytest

from skillgraft.errors import HeadConflict, InputError, WrongBase
from skillgraft.values.graft import Graft, total
from skillgraft.values.info import Info
from skillgraft.values.numbers import BFLOAT16
from skillgraft.values.region import Region, Scope

SCOPE = Scope.of("all", {"w": (2, 3), "b": (3,)})


def graft(at: list[int], before: list[float], after: list[float], *, dtype=np.float32, **rest) -> Graft:
    """A graft of the parameter w."""
    return Graft(Region(SCOPE, {"w": at}), {"w": np.array(before, dtype)}, {"w": np.array(after, dtype)}, **rest)


def test_between_takes_the_numbers_at_the_sites():
    base = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(3, np.float32)}
    tuned = {"w": 10 * base["w"], "b": base["b"] + 1}
    g = Graft.between(base, tuned, Region(SCOPE, {"w": [1, 5], "b": [2]}), info=Info(task="t"))
    assert g.before["w"].tolist() == [1, 5]
    assert g.change["w"].tolist() == [10, 50]
    assert g.change["b"].tolist() == [1]
    assert g.info == Info(task="t")
    assert len(g) == 3


def test_scaling_an_exact_graft_changes_the_scale_alone():
    g = graft([0, 4], [1, 2], [3, 6])
    assert (0.5 * g).scale == (g * 0.5).scale == 0.5
    assert (g * 0.5).written("w").tolist() == [2, 4]
    assert (-g).written("w").tolist() == [-1, -2]
    assert (2 * (2 * g)).delta("w").tolist() == [8, 16]
    assert (g * -0.0).scale == 0.0
    assert str((g * -0.0).scale) == "0.0"


def test_disjoint_exact_grafts_of_one_scale_stay_exact():
    g, h = graft([0, 4], [1, 2], [3, 6]), graft([1], [7], [8])
    both = g + h
    assert both.form == "exact"
    assert both.region.sites["w"].tolist() == [0, 1, 4]
    assert both.written("w").tolist() == [3, 8, 6]
    assert (0.5 * g + 0.5 * h).scale == 0.5
    assert (0.5 * g + h).form == "arithmetic"


def test_overlapping_grafts_add_their_deltas():
    g, h = graft([0, 4], [1, 2], [3, 6]), graft([4, 5], [2, 0], [1, 5])
    both = g + h
    assert both.form == "arithmetic"
    assert both.change["w"].dtype == np.float32
    assert both.change["w"].tolist() == [2, 4 - 1, 5]
    assert both.written("w").tolist() == [3, 5, 5]
    assert (g - h).change["w"].tolist() == [2, 5, -5]
    assert (0.5 * both).change["w"].tolist() == [1, 1.5, 2.5]


def test_a_sum_is_rounded_once_to_float32():
    step = 2.0**-24
    parts = [graft([0], [0], [number], scale=scale) for number, scale in ((1, 1.0), (step, 1.0), (step, 1.0 + 2**-40))]
    assert total(parts).change["w"].tolist() == [1 + 2 * step], "adding one after the other in float32 would give 1"


def test_restriction():
    g = graft([0, 2, 4], [1, 2, 3], [4, 5, 6], heads={"score.bias": np.ones(2)})
    inside = g & Region(Scope.of("queries", {"w": (2, 3)}), {"w": [2, 3]})
    assert inside.region == Region(SCOPE, {"w": [2]}), "the scope stays the graft's own"
    assert inside.change["w"].tolist() == [5]
    assert list(inside.heads) == ["score.bias"]
    assert g.outside(inside.region).change["w"].tolist() == [4, 6]


def test_heads_of_one_name_need_a_choice():
    one, two = np.ones((2, 2), np.float32), np.full((2, 2), 2, np.float32)
    g = graft([0], [1], [2], heads={"score.weight": one})
    h = graft([1], [1], [2], heads={"score.weight": two})
    with pytest.raises(HeadConflict, match=r"different heads named score\.weight; choose whose to keep: total.*head=g"):
        g + h
    assert total([g, h], head=h).heads["score.weight"].tolist() == two.tolist()
    assert (g + h.without_heads()).heads["score.weight"].tolist() == one.tolist()
    assert list((g + graft([2], [1], [2], heads={"score.bias": one})).heads) == ["score.bias", "score.weight"]
    assert (g + graft([2], [1], [2], heads={"score.weight": one})).heads["score.weight"].tolist() == one.tolist()


def test_heads_that_differ_in_the_sign_of_zero_differ():
    g, h = (
        graft([at], [1], [2], heads={"score.bias": np.array([zero], np.float32)}) for at, zero in ((0, 0.0), (1, -0.0))
    )
    with pytest.raises(HeadConflict):
        g + h


def test_grafts_of_different_bases_are_refused():
    g, h = graft([0], [1], [2], base_fingerprint="a" * 64, info=Info(base="bert")), graft([1], [1], [2])
    with pytest.raises(
        WrongBase, match=r"different bases: (unnamed \(…\) and bert \(aaaaaaaaaaaa…\)|bert .* and unnamed)"
    ):
        g + h
    with pytest.raises(WrongBase, match="w: the grafts disagree about the base's number at 1 shared sites"):
        graft([0, 1], [1, 2], [2, 3]) + graft([1, 2], [5, 6], [6, 7])
    with pytest.raises(WrongBase, match="w: the grafts hold bfloat16, float32 numbers; combine grafts of one format"):
        graft([0], [1], [2]) + graft([1], [1], [2], dtype=BFLOAT16)


def test_a_base_that_differs_in_the_sign_of_zero_differs():
    with pytest.raises(WrongBase, match="disagree"):
        graft([0], [0.0], [1]) + graft([0], [-0.0], [2])


def test_a_total_of_nothing_is_refused():
    with pytest.raises(InputError, match="needs at least one graft"):
        total([])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale": float("nan")}, "scale must be a finite number .* found nan"),
        ({"scale": float("inf")}, "scale must be a finite number"),
        ({"form": "arithmetic", "scale": 2.0}, r"1 in the arithmetic form\), found 2.0"),
        ({"form": "fuzzy"}, "form must be 'exact' or 'arithmetic', found 'fuzzy'"),
        ({"before": {"w": np.ones(2)}}, "w: exact form needs float64 numbers, found float32"),
        ({"before": {"w": np.ones(3, np.float32)}}, r"w: 2 sites but before of shape \[3\]"),
        ({"change": {"w": np.ones((2, 1), np.float32)}}, r"w: 2 sites but change of shape \[2, 1\]"),
        (
            {"before": {"b": np.ones(2, np.float32)}},
            "before: its parameters are not the region's; only one side has b, w",
        ),
        ({"before": {"w": np.ones(2, np.int32)}}, "w: before must be floating point, found int32"),
        ({"before": {"w": np.ones(2, ">f4")}}, "w: before must be floating point, found >f4"),
        ({"change": {"w": np.array([1, np.nan], np.float32)}}, r"w: 1 of 2 numbers \(change\) are NaN or infinite"),
        ({"heads": {"h": np.array([np.inf])}}, r"h: 1 of 1 numbers \(head\) are NaN or infinite"),
        ({"heads": {"h": np.array(["text"])}}, "h: head of <U4 cannot be stored; known: float64"),
        ({"heads": {"h": np.ones(1, complex)}}, "h: head of complex128 cannot be stored"),
    ],
)
def test_what_cannot_be_a_graft_is_refused(change, message):
    good = {"before": {"w": np.ones(2, np.float32)}, "change": {"w": np.ones(2, np.float32)}}
    with pytest.raises(InputError, match=message):
        Graft(Region(SCOPE, {"w": [0, 1]}), **{**good, **change})


def test_an_arithmetic_graft_needs_float32_deltas():
    half = np.ones(1, np.float16)
    with pytest.raises(InputError, match="w: arithmetic form needs float32 numbers, found float16"):
        Graft(Region(SCOPE, {"w": [0]}), {"w": half}, {"w": half}, form="arithmetic")


def test_a_sum_too_large_for_float32_is_refused():
    g = graft([0], [-3e38], [3e38])
    with pytest.raises(InputError, match=r"w: 1 of 1 numbers \(change\) are NaN or infinite"):
        g + g


def test_equality_is_of_content_scope_and_provenance():
    g = graft([0], [1], [2])
    assert g == graft([0], [1], [2])
    assert g != graft([1], [1], [2])
    assert g != graft([0], [1], [3])
    assert g != 1.0001 * g
    assert g != g.with_info(task="t")
    assert g.digest == g.with_info(task="t").digest
    assert g.with_info(task="t").with_info(task=None) == g
    assert g != graft([0], [1], [2], heads={"h": np.ones(1)})
    assert g != graft([0], [1], [2], base_fingerprint="a" * 64)
    wider = Region(Scope.of("all", {**SCOPE.shapes, "c": (1,)}), {"w": [0]})
    assert g != Graft(wider, g.before, g.change)
    assert g != "graft"


def test_a_name_cannot_be_mistaken_for_numbers():
    """The digest keeps names apart from what follows them, also names with line breaks."""
    one = np.ones(1, np.float32)
    odd = Scope.of("all", {"w 1 float32\n": (2,), "w": (2,)})
    digests = {Graft(Region(odd, {name: [1]}), {name: one}, {name: one}).digest for name in odd.shapes}
    assert len(digests) == 2


def test_representation():
    g = graft([0, 1], [1, 1], [2, 2], heads={"h": np.ones(1)})
    assert repr(g) == "Graft(2 entries, density 2.22e-01, exact, 1 head tensors)"
    assert repr(0.5 * g.without_heads()) == "Graft(2 entries, density 2.22e-01, exact, scale 0.5)"


def test_a_delta_beyond_float64_does_not_warn():
    g = graft([0], [0], [3e38], scale=1e300)
    assert g.delta("w").tolist() == [np.inf]


def test_a_sum_keeps_the_labels_of_the_head_that_is_taken() -> None:
    region = Region(Scope.of("all", {"w": (4,)}), {"w": [1]})
    base, tuned = {"w": np.zeros(4, np.float32)}, {"w": np.ones(4, np.float32)}

    def made(head: float, *labels: str) -> Graft:
        heads = {"classifier.weight": np.full(2, head, np.float32)}
        return Graft.between(base, tuned, region, heads=heads, info=Info(labels=list(labels), base="b"))

    films, topics, plain = (
        made(1.0, "bad", "good"),
        made(2.0, "sport", "world"),
        made(1.0, "bad", "good").without_heads(),
    )
    assert total([films, topics], head=topics).info["labels"] == ["sport", "world"]
    assert total([films, plain.with_info(labels=None)]).info["labels"] == ["bad", "good"]
    assert total([films, topics], head=films).info["base"] == "b"
