"""Combination rules: by hand on one parameter, and against brute force on anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillgraft import Graft, Region, Scope, combine, total
from skillgraft.compose.rules import CONFLICTS, RULES
from skillgraft.errors import HeadConflict, InputError, Overlap, WrongBase

SCOPE = Scope.of("layers", {"w": (6,)})


def graft(deltas: dict[int, float], **rest: Any) -> Graft:
    """An exact graft that adds these numbers to a base of ones."""
    base = np.ones(6, np.float32)
    tuned = np.array([1 + deltas.get(site, 0.0) for site in range(6)], np.float32)
    return Graft.between({"w": base}, {"w": tuned}, Region(SCOPE, {"w": sorted(deltas)}), **rest)


def deltas(g: Graft) -> dict[int, float]:
    return dict(zip(g.region.sites["w"].tolist(), g.delta("w").tolist(), strict=True)) if len(g) else {}


def grafts_of_one_base() -> st.SearchStrategy[Graft]:
    """Small whole deltas, so that equal ones meet often; some scaled, some in the arithmetic form."""
    drawn = st.dictionaries(st.integers(0, 5), st.integers(-3, 3).map(float), max_size=6).map(graft)
    scaled = st.builds(lambda g, scale: scale * g, drawn, st.sampled_from([1.0, 0.5, -2.0]))
    return scaled | st.builds(lambda g, h: g + h, drawn, scaled)


A, B, C = graft({0: 1.0, 1: 3.0, 2: -4.0}), graft({1: 1.0, 2: 4.0, 3: 2.0}), graft({2: -8.0, 3: 2.0, 5: 0.5})


@pytest.mark.parametrize(
    ("conflict", "expected"),
    [
        ("first", {0: 1.0, 1: 3.0, 2: -4.0, 3: 2.0, 5: 0.5}),
        ("largest", {0: 1.0, 1: 3.0, 2: -8.0, 3: 2.0, 5: 0.5}),
        ("mean", {0: 1.0, 1: 2.0, 2: np.float32(-8 / 3), 3: 2.0, 5: 0.5}),
    ],
)
def test_conflicts_by_hand(conflict: str, expected: dict[int, float]) -> None:
    assert deltas(combine([A, B, C], rule="union", conflict=conflict)) == expected


def test_sum_by_hand() -> None:
    assert deltas(combine([A, B, C])) == {0: 1.0, 1: 4.0, 2: -8.0, 3: 4.0, 5: 0.5}
    assert combine([A, B], rule="sum") == A + B
    assert combine([A]) == A


def test_the_first_has_it_and_of_equal_ones_too() -> None:
    left, right = graft({0: 2.0}), graft({0: -2.0})
    for conflict in ("first", "largest"):
        assert deltas(combine([left, right], rule="union", conflict=conflict)) == {0: 2.0}
        assert deltas(combine([right, left], rule="union", conflict=conflict)) == {0: -2.0}


def test_choosing_stays_exact() -> None:
    """Nothing is added up where each entry has one owner, so the tuned numbers stay as they are."""
    for conflict in ("first", "largest"):
        chosen = combine([A, B, C], rule="union", conflict=conflict)
        assert (chosen.form, chosen.scale) == ("exact", 1.0)
    covered = combine([A, 0.5 * graft({0: 1.0})], rule="union", conflict="first")
    assert covered == A


def test_a_union_refuses_what_is_shared_and_says_what_to_do() -> None:
    with pytest.raises(
        Overlap, match=r"2 entries are in more than one graft; use rule 'sum', or .*first, largest, mean"
    ):
        combine([A, B], rule="union")


@pytest.mark.parametrize("conflict", list(CONFLICTS))
def test_a_union_of_disjoint_grafts_is_their_sum(conflict: str) -> None:
    @given(st.lists(grafts_of_one_base(), min_size=3, max_size=3))
    def law(grafts: list[Graft]) -> None:
        apart = [grafts[0], grafts[1].outside(grafts[0].region), grafts[2].outside(grafts[0].region | grafts[1].region)]
        summed = total([part for part in apart if len(part)] or apart[:1])
        united = combine(apart, rule="union", conflict=conflict)
        assert united.region == summed.region
        assert deltas(united) == deltas(summed)

    law()


def largest(candidates: list[float]) -> float:
    return max(candidates, key=abs)  # max keeps the first of equal ones


CHOICES: dict[str, Callable[[list[float]], float]] = {
    "first": lambda candidates: candidates[0],
    "largest": largest,
    "mean": lambda candidates: sum(candidates) / len(candidates),
}


@pytest.mark.parametrize("conflict", list(CHOICES))
def test_conflicts_by_brute_force(conflict: str) -> None:
    @given(st.lists(grafts_of_one_base(), min_size=3, max_size=3))
    def law(grafts: list[Graft]) -> None:
        candidates: dict[int, list[float]] = {}
        for g in grafts:
            for site, delta in deltas(g).items():
                candidates.setdefault(site, []).append(delta)
        wanted = {site: CHOICES[conflict](found) for site, found in candidates.items()}
        united = combine(grafts, rule="union", conflict=conflict)
        assert deltas(united) == pytest.approx(wanted, rel=1e-7)
        assert conflict != "mean" or combine(grafts[::-1], rule="union", conflict="mean") == united

    law()


def test_the_mean_of_equal_changes_is_that_change() -> None:
    g = graft({0: 0.1, 3: 1e-7})
    assert deltas(combine([g, g, g], rule="union", conflict="mean")) == deltas(g)


def test_unknown_names() -> None:
    with pytest.raises(InputError, match=r"unknown rule 'unoin'; did you mean 'union'\? Known: sum, "):
        combine([A], rule="unoin")
    with pytest.raises(InputError, match=r"unknown conflict rule 'larges'; did you mean 'largest'\?"):
        combine([A], rule="union", conflict="larges")
    with pytest.raises(InputError, match="belongs to rule 'union', found rule 'sum'"):
        combine([A], conflict="first")
    with pytest.raises(InputError, match="at least one graft"):
        combine([])


def test_grafts_of_different_bases() -> None:
    for rule in RULES:
        with pytest.raises(WrongBase, match="different bases"):
            combine([A, graft({4: 1.0}, base_fingerprint="a" * 64)], rule=rule)


def test_heads_are_joined_or_chosen_and_never_combined() -> None:
    ones, twos = np.ones(2, np.float32), np.full(2, 2, np.float32)
    g = graft({0: 1.0}, heads={"score.bias": ones})
    same, other = graft({1: 1.0}, heads={"score.bias": ones}), graft({1: 1.0}, heads={"score.bias": twos})
    extra = graft({2: 1.0}, heads={"pooler.bias": twos})
    for rule in RULES:
        assert combine([g, same], rule=rule).heads["score.bias"].tolist() == [1, 1]
        assert set(combine([g, extra], rule=rule).heads) == {"score.bias", "pooler.bias"}
        with pytest.raises(HeadConflict, match=r"different heads named score.bias.*--head"):
            combine([g, other], rule=rule)
        assert combine([g, other], rule=rule, head=other).heads["score.bias"].tolist() == [2, 2]


def test_the_scope_is_that_of_all() -> None:
    wide = Scope.of("all", {"w": (6,), "x": (2,)})
    g = Graft(Region(wide, {"x": [0]}), {"x": np.ones(1, np.float32)}, {"x": np.zeros(1, np.float32)})
    nothing = g & Region(wide, {})
    for conflict in CONFLICTS:
        assert combine([A, nothing], rule="union", conflict=conflict).region.scope == wide
