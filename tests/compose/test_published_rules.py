"""TIES, DARE, Breadcrumbs, TALL-masks, WiSE, DELLA, Stitch: by hand, against brute force over dense vectors, and their laws."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillgraft import Graft, Region, Scope, combine, total
from skillgraft.compose.rules import RULES, THINNING, thinned
from skillgraft.compose.thinning import draws
from skillgraft.errors import InputError, WrongBase
from skillgraft.values import joining

ROW = Scope.of("layers", {"w": (10,)})
TWO = Scope.of("layers", {"v": (2, 2), "w": (6,)})
MERGING = ("ties", "dare", "breadcrumbs", "tall", "wise", "della", "stitch")
Dense = dict[tuple[str, int], float]


def added(grafts: list[Graft]) -> Graft:
    return Graft.collected(joining.added([g.stream() for g in grafts]))


def graft(deltas: Dense, scope: Scope = TWO, **rest: Any) -> Graft:
    """An exact graft that adds these numbers to a base of zeros."""
    base = {name: np.zeros(shape, np.float32) for name, shape in scope.shapes.items()}
    tuned = {name: array.copy() for name, array in base.items()}
    for (name, site), delta in deltas.items():
        tuned[name].reshape(-1)[site] = delta
    sites = {name: sorted(site for key, site in deltas if key == name) for name in scope.shapes}
    return Graft.between(base, tuned, Region(scope, sites), **rest)


def row(*deltas: float) -> Graft:
    """A graft over ten entries; None's place is taken by 0, which is no entry."""
    return graft({("w", site): delta for site, delta in enumerate(deltas) if delta}, ROW)


def numbers(g: Graft) -> Dense:
    return {
        (name, int(site)): float(delta)
        for name in g.region
        for site, delta in zip(g.region.sites[name], g.delta(name), strict=True)
    }


def changed(g: Graft) -> Dense:
    """Entries that change the base: what is left of a graft when zeros do not count."""
    return {key: delta for key, delta in numbers(g).items() if delta}


def entries(scope: Scope = TWO) -> list[tuple[str, int]]:
    return [(name, site) for name, shape in scope.shapes.items() for site in range(int(np.prod(shape)))]


def grafts_of_one_base() -> st.SearchStrategy[Graft]:
    deltas = st.dictionaries(st.sampled_from(entries()), st.integers(-4, 4).map(float), max_size=10)
    scaled = st.builds(lambda d, scale: scale * graft(d), deltas, st.sampled_from([1.0, 0.5, -2.0]))
    return scaled | st.builds(lambda d, g: total([graft(d), g]), deltas, scaled)


several = st.lists(grafts_of_one_base(), min_size=2, max_size=4)
shares = st.sampled_from([0.1, 0.25, 0.3, 0.5, 0.8, 1.0])

A = row(5, -4, 3, 2, 1, 0, 0, 0, 0, 0)
B = row(-1, -2, 6, 0, 4, 5, 0, 0, 0, 3)


def test_ties_by_hand() -> None:
    """Trimmed to 3 of 10: A has 5, −4, 3 and B has 6, 4, 5. Entry 2 agrees, the others have one owner."""
    merged = combine([A, B], rule="ties", keep=0.3)
    assert changed(merged) == {("w", 0): 5, ("w", 1): -4, ("w", 2): 4.5, ("w", 4): 4, ("w", 5): 5}


def test_ties_elects_the_sign_of_the_sum_and_leaves_the_others_out() -> None:
    votes = [row(4), row(-1), row(-2), row(2)]
    assert changed(combine(votes, rule="ties")) == {("w", 0): 3}  # 4 and 2; −1 and −2 are outvoted
    assert changed(combine([row(2), row(-2)], rule="ties")) == {}


def test_breadcrumbs_by_hand() -> None:
    """Of ten entries the largest goes, the next two stay."""
    g = row(9, -10, 8, 7, 6, 5, 4, 3, 2, 1)
    assert changed(combine([g], rule="breadcrumbs")) == {("w", 0): 9, ("w", 2): 8}
    assert changed(combine([g], rule="breadcrumbs", keep=0.3, drop=0.0)) == {("w", 1): -10, ("w", 0): 9, ("w", 2): 8}
    h = row(1, 1, 1, 1, 1, 1, 1, 1, 1, 1)  # of equal ones the first go, and the next are the next in order
    assert changed(combine([g, h], rule="breadcrumbs")) == {("w", 0): 9, ("w", 2): 9, ("w", 1): 1}


def test_breadcrumbs_masks_tensor_by_tensor() -> None:
    g = graft({("v", 0): 100, ("v", 1): 90, ("v", 2): 80, ("v", 3): 70, ("w", 0): 1, ("w", 1): 2, ("w", 2): 3})
    kept = changed(combine([g], rule="breadcrumbs", keep=0.25, drop=0.3))
    assert kept == {("v", 1): 90, ("w", 1): 2, ("w", 0): 1}  # of v 1 of 4, of w 2 of 6 (1.5, to even)


def test_tall_by_hand() -> None:
    """λ = 0.5. Entry 0: 4 ≥ 0.5·1 and 1 < 0.5·4, one claim. Entry 1: 2 ≥ 1.5 and 3 ≥ 1, both. Entry 2: 3 alone."""
    a, b = row(4, 2, 3), row(1, 3, 0)
    assert numbers(combine([a, b], rule="tall", lam=0.5)) == {("w", 1): 5}
    assert numbers(combine([a, b], rule="tall", lam=0.5, consensus=1)) == {("w", 0): 5, ("w", 1): 5, ("w", 2): 3}


def test_wise_is_the_mean_and_of_one_graft_the_graft() -> None:
    assert changed(combine([A, B], rule="wise")) == {
        ("w", 0): 2, ("w", 1): -3, ("w", 2): 4.5, ("w", 3): 1, ("w", 4): 2.5, ("w", 5): 2.5, ("w", 9): 1.5,
    }  # fmt: skip
    assert combine([A], rule="wise") == A


def test_dare_keeps_about_the_share_and_the_sum_in_expectation() -> None:
    scope = Scope.of("layers", {"w": (20_000,)})
    ones = {"w": np.ones(20_000, np.float32)}
    g = Graft.between({"w": np.zeros(20_000, np.float32)}, ones, Region.full(scope))
    thinned = combine([g], rule="dare", keep=0.1)
    assert len(thinned) == pytest.approx(2_000, rel=0.1)
    assert set(thinned.delta("w")) == {10.0}
    both = combine([g, g], rule="dare", keep=0.5)
    assert sorted(set(both.delta("w"))) == [2.0, 4.0], "two draws of their own, also for equal grafts"


@given(several, shares, st.integers(0, 3))
def test_dare_by_brute_force(grafts: list[Graft], keep: float, seed: int) -> None:
    """Every entry is the sum of some of its deltas, divided by the share; all of them at share 1."""
    merged = combine(grafts, rule="dare", keep=keep, seed=seed)
    for key, delta in numbers(merged).items():
        own = [numbers(g)[key] / keep for g in grafts if key in numbers(g)]
        sums = [sum(some) for count in range(len(own) + 1) for some in itertools.combinations(own, count)]
        assert any(delta == pytest.approx(each, rel=1e-6, abs=1e-6) for each in sums)
    if keep == 1.0:
        assert numbers(merged) == numbers(added(grafts))


def chances(deltas: Dense, keep: float, epsilon: float) -> Dense:
    """The probability with which MagPrune keeps each entry, row by row."""
    found = {}
    for key, delta in deltas.items():
        width = TWO.shapes[key[0]][-1]
        row_of = [
            (abs(deltas[other]), other[1])
            for other in deltas
            if other[0] == key[0] and other[1] // width == key[1] // width
        ]
        rank = sum(each < (abs(delta), key[1]) for each in row_of)
        found[key] = keep + epsilon * (rank / (len(row_of) - 1) - 0.5 if len(row_of) > 1 else 0.0)
    return found


def naive_della(grafts: list[Graft], keep: float, epsilon: float, seed: int) -> Dense:
    """The same random numbers as the rule takes, one for each entry in the order of names and indices."""
    thinned = []
    for stream, draw in draws([g.stream() for g in grafts], seed):
        deltas = numbers(Graft.collected(stream))
        stays = chances(deltas, keep, epsilon)
        random = {name: draw(name) for name, _ in deltas}
        kept = [key for key in sorted(deltas) if random[key[0]].random() < stays[key]]
        thinned.append({key: float(np.float32(deltas[key] / stays[key])) for key in kept})  # as the rule keeps them
    merged = {}
    for key in entries():
        found = [deltas.get(key, 0.0) for deltas in thinned]
        agreeing = [delta for delta in found if delta * sum(found) > 0]
        if agreeing:
            merged[key] = sum(agreeing) / len(agreeing)
    return merged


def naive_stitch(grafts: list[Dense], keep: float | None) -> Dense:
    count = TWO.size if keep is None else round(keep * TWO.size)
    regions = [sorted(deltas, key=lambda key, d=deltas: (-abs(d[key]), key))[:count] for deltas in grafts]
    merged = {}
    for key in entries():
        found = [deltas[key] for deltas, region in zip(grafts, regions, strict=True) if key in region]
        if found:
            merged[key] = sum(found) / len(found)
    return merged


@given(several, st.sampled_from([(0.7, 0.14), (0.5, 0.8), (0.3, 0.0), (0.9, 0.2), (1.0, 0.0)]), st.integers(0, 3))
def test_della_by_brute_force(grafts: list[Graft], settings: tuple[float, float], seed: int) -> None:
    keep, epsilon = settings
    wanted = naive_della(grafts, keep, epsilon, seed)
    assert changed(combine(grafts, rule="della", keep=keep, epsilon=epsilon, seed=seed)) == pytest.approx(
        wanted, rel=1e-5
    )


def test_della_ranks_row_by_row() -> None:
    """Window as wide as it may be: in each row of two the smaller entry (almost) never stays, and the larger always."""
    g = graft({("v", 0): 1.0, ("v", 1): -2.0, ("v", 2): 9.0, ("v", 3): 8.0})
    kept = {
        key for seed in range(20) for key in numbers(combine([g], rule="della", keep=0.5, epsilon=0.999999, seed=seed))
    }
    assert kept == {("v", 1), ("v", 2)}


def wide(deltas: Any) -> Graft:
    """A graft over one long parameter."""
    scope = Scope.of("layers", {"w": (len(deltas),)})
    return Graft.between({"w": np.zeros(len(deltas), np.float32)}, {"w": np.float32(deltas)}, Region.full(scope))


def test_della_keeps_larger_entries_more_often_and_every_entry_in_expectation() -> None:
    size = 40_000
    g = wide(np.random.default_rng(0).permutation(np.arange(1, size + 1)))
    thinned = combine([g], rule="della", keep=0.5, epsilon=0.6)
    above = np.abs(g.delta("w")) > size / 2
    stays = np.isin(np.arange(size), thinned.region.sites["w"])
    assert stays.mean() == pytest.approx(0.5, abs=0.01)
    assert stays[above].mean() == pytest.approx(0.5 + 0.6 / 4, abs=0.02)
    assert stays[~above].mean() == pytest.approx(0.5 - 0.6 / 4, abs=0.02)
    assert thinned.delta("w").sum() == pytest.approx(g.delta("w").sum(), rel=0.02)


@given(several)
def test_della_without_drops_is_ties_without_trimming(grafts: list[Graft]) -> None:
    without = combine(grafts, rule="della", keep=1.0, epsilon=0.0)
    assert numbers(without) == pytest.approx(numbers(combine(grafts, rule="ties", keep=1.0)), rel=1e-6)


@given(several, shares | st.none())
def test_stitch_by_brute_force(grafts: list[Graft], keep: float | None) -> None:
    wanted = naive_stitch([numbers(g) for g in grafts], keep)
    assert numbers(combine(grafts, rule="stitch", keep=keep)) == pytest.approx(wanted, rel=1e-6)


def test_stitch_by_hand() -> None:
    """Entries 0, 1, 2 and 4 meet. Trimmed to 3 of 10 only entry 2 does: A keeps 5, −4, 3 and B 6, 4, 5."""
    assert numbers(combine([A, B], rule="stitch")) == {
        ("w", 0): 2, ("w", 1): -3, ("w", 2): 4.5, ("w", 3): 2, ("w", 4): 2.5, ("w", 5): 5, ("w", 9): 3,
    }  # fmt: skip
    assert numbers(combine([A, B], rule="stitch", keep=0.3)) == {
        ("w", 0): 5, ("w", 1): -4, ("w", 2): 4.5, ("w", 4): 4, ("w", 5): 5,
    }  # fmt: skip


def test_stitch_counts_an_entry_that_changes_nothing() -> None:
    """A region that holds an entry has a say in it, also where its change is 0, or −0 after a negation."""
    still = graft({("w", 0): 0.0}, ROW)
    for g in (still, -still):
        assert numbers(combine([row(4), g], rule="stitch")) == {("w", 0): 2}


@given(grafts_of_one_base(), grafts_of_one_base())
def test_what_is_stitched_stays_as_it_is_where_nothing_meets(g: Graft, h: Graft) -> None:
    assert combine([g], rule="stitch") == g
    apart = h.outside(g.region)
    assert combine([g, apart], rule="stitch") == total([g, apart])
    if g.form == apart.form == "exact" and g.scale == apart.scale:
        assert combine([g, apart], rule="stitch").form == "exact"


def naive_ties(grafts: list[Dense], keep: float) -> Dense:
    count = round(keep * TWO.size)
    trimmed = []
    for deltas in grafts:
        order = sorted(entries(), key=lambda key, deltas=deltas: (-abs(deltas.get(key, 0.0)), key))
        trimmed.append({key: deltas.get(key, 0.0) for key in order[:count]})
    merged = {}
    for key in entries():
        found = [deltas.get(key, 0.0) for deltas in trimmed]
        agreeing = [delta for delta in found if delta * sum(found) > 0]
        if agreeing:
            merged[key] = sum(agreeing) / len(agreeing)
    return merged


def naive_breadcrumbs(grafts: list[Dense], keep: float, drop: float) -> Dense:
    merged = dict.fromkeys(entries(), 0.0)
    for deltas in grafts:
        for name, shape in TWO.shapes.items():
            own = sorted((key for key in deltas if key[0] == name), key=lambda key, d=deltas: (-abs(d[key]), key))
            out = round(drop * len(own))
            for key in own[out : out + round(keep * int(np.prod(shape)))]:
                merged[key] += deltas[key]
    return {key: delta for key, delta in merged.items() if delta}


def naive_tall(grafts: list[Dense], lam: float, consensus: int) -> Dense:
    merged = {}
    for key in entries():
        found = [deltas.get(key, 0.0) for deltas in grafts]
        claims = sum(abs(delta) >= lam * abs(sum(found) - delta) for delta in found)
        if claims >= consensus and sum(found):
            merged[key] = sum(found)
    return merged


@given(several, shares)
def test_ties_by_brute_force(grafts: list[Graft], keep: float) -> None:
    wanted = naive_ties([numbers(g) for g in grafts], keep)
    assert changed(combine(grafts, rule="ties", keep=keep)) == pytest.approx(wanted, rel=1e-6)


@given(several, st.sampled_from([0.2, 0.5, 0.75]), st.sampled_from([0.0, 0.1, 0.25]))
def test_breadcrumbs_by_brute_force(grafts: list[Graft], keep: float, drop: float) -> None:
    wanted = naive_breadcrumbs([numbers(g) for g in grafts], keep, drop)
    assert changed(combine(grafts, rule="breadcrumbs", keep=keep, drop=drop)) == pytest.approx(wanted, rel=1e-6)


@given(several, st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.integers(1, 2))
def test_tall_by_brute_force(grafts: list[Graft], lam: float, consensus: int) -> None:
    wanted = naive_tall([numbers(g) for g in grafts], lam, consensus)
    assert changed(combine(grafts, rule="tall", lam=lam, consensus=consensus)) == pytest.approx(wanted, rel=1e-6)


# Rules that thin → the rule that joins what is left of the grafts.
JOINED: dict[str, tuple[str, dict[str, Any]]] = {
    "ties": ("ties", {"keep": 1.0}),
    "della": ("ties", {"keep": 1.0}),
    "dare": ("sum", {}),
    "breadcrumbs": ("sum", {}),
    "tall": ("sum", {}),
    "stitch": ("union", {"conflict": "mean"}),
}


@pytest.mark.parametrize("rule", JOINED)
def test_a_rule_joins_what_it_leaves_of_each_graft(rule: str) -> None:
    """What a rule takes of a graft is a graft of its own: thinning them one by one and joining them is the rule."""
    options = {"keep": 0.3} if rule in ("ties", "stitch") else {"keep": 0.5} if rule == "dare" else {}
    other, how = JOINED[rule]

    @given(st.lists(grafts_of_one_base(), min_size=2, max_size=4, unique_by=lambda g: g.digest))
    def law(grafts: list[Graft]) -> None:
        parts = thinned(grafts, rule=rule, **options)
        wanted = changed(combine(grafts, rule=rule, **options))
        assert changed(combine(parts, rule=other, **how)) == pytest.approx(wanted, rel=1e-5)
        assert all(set(numbers(part)) <= set(numbers(g)) for part, g in zip(parts, grafts, strict=True))
        if rule != "tall":  # its masks compare the grafts with each other
            assert parts == tuple(combine([g], rule=rule, **options) for g in grafts)

    law()


def test_every_rule_thins_or_takes_grafts_as_they_are() -> None:
    assert set(JOINED) == THINNING
    for rule in RULES.keys() - THINNING:
        assert thinned([A, B], rule=rule) == (A, B)
    with pytest.raises(InputError, match="rule 'ties' has no option 'kepe'"):
        thinned([A, B], rule="ties", kepe=0.1)
    with pytest.raises(InputError, match="unknown rule 'tie'"):
        thinned([A, B], rule="tie")


def test_tall_leaves_of_each_graft_what_enough_of_them_claim() -> None:
    """As in the rule by hand: with λ = 0.5 both claim entry 1 alone."""
    a, b = row(4, 2, 3), row(1, 3, 0)
    assert [numbers(part) for part in thinned([a, b], rule="tall", lam=0.5)] == [{("w", 1): 2}, {("w", 1): 3}]


def test_thinned_grafts_keep_their_heads_and_provenance() -> None:
    g = graft({("w", 0): 1.0}, heads={"score.bias": np.ones(2, np.float32)}).with_info(task="a")
    h = graft({("w", 0): 2.0}).with_info(task="b")
    for rule in THINNING:
        first, second = thinned([g, h], rule=rule)
        assert (list(first.heads), list(second.heads)) == (["score.bias"], [])
        assert (first.info["task"], second.info["task"]) == ("a", "b")


@given(several)
def test_the_fast_sum_is_the_sum(grafts: list[Graft]) -> None:
    assert combine(grafts) == total(grafts)
    assert numbers(added(grafts)) == pytest.approx(numbers(total(grafts)), rel=1e-6)


@pytest.mark.parametrize("rule", MERGING)
def test_any_order_gives_the_same_bits(rule: str) -> None:
    @given(several)
    def law(grafts: list[Graft]) -> None:
        assert combine(grafts, rule=rule).digest == combine(grafts[::-1], rule=rule).digest

    law()


@pytest.mark.parametrize("rule", MERGING)
def test_sparse_grafts_are_merged_as_dense_ones_are(rule: str) -> None:
    """The two ways to line sites up, by table and by search, agree."""
    draw = np.random.default_rng(0)
    wide = Scope.of("layers", {"w": (500,)})
    few = [{("w", int(site)): float(draw.normal()) for site in draw.choice(40, 12, False)} for _ in range(3)]
    narrow = Scope.of("layers", {"w": (40,)})
    # A whole number of entries is kept either way, so that the two scopes ask for the same.
    keep = (0.2, 8 / 500) if rule in ("ties", "breadcrumbs", "stitch") else None
    dense = combine([graft(d, narrow) for d in few], rule=rule, **({"keep": keep[0]} if keep else {}))
    sparse = combine([graft(d, wide) for d in few], rule=rule, **({"keep": keep[1]} if keep else {}))
    if rule != "dare":  # which entries are drawn depends on seed and content alone, not on the scope
        assert len(changed(dense)) > 0
    assert numbers(sparse) == numbers(dense)


@pytest.mark.parametrize(
    ("rule", "options", "message"),
    [
        ("ties", {"keep": 0.0}, "keep must lie above 0 and be at most 1, found 0.0"),
        ("dare", {"keep": 1.5}, "keep must lie above 0"),
        ("dare", {"seed": -1}, "seed must be at least 0; found -1"),
        ("della", {"keep": 0.0}, "keep must lie above 0 and be at most 1, found 0.0"),
        ("della", {"seed": -1}, "seed must be at least 0; found -1"),
        ("della", {"keep": 0.05}, r"below 2 · keep = 0.1 and at most 2 · \(1 − keep\) = 1.9, so that .*; found 0.14"),
        ("della", {"keep": 0.07}, "below 2 · keep = 0.14"),
        ("della", {"keep": 0.95}, r"at most 2 · \(1 − keep\) = 0.1, .*; found 0.14"),
        ("della", {"epsilon": -0.1}, "epsilon must be at least 0"),
        ("della", {"epsilon": float("nan")}, "found nan"),
        ("stitch", {"keep": 2.0}, "keep must lie above 0 and be at most 1, found 2.0"),
        ("stitch", {"epsilon": 0.1}, "the option 'epsilon' belongs to rule 'della', found rule 'stitch'"),
        ("breadcrumbs", {"keep": 0.9, "drop": 0.2}, r"drop must lie between 0 and 1 − keep = 0.1, found 0.2"),
        ("breadcrumbs", {"drop": -0.1}, "drop must lie between"),
        ("tall", {"lam": -1.0}, "lam must be a number from 0 up"),
        ("tall", {"consensus": 3}, "between 1 and the number of grafts, 2; found 3"),
        ("ties", {"kepe": 0.1}, "rule 'ties' has no option 'kepe'; did you mean 'keep'"),
        ("wise", {"lamda": 0.1}, "rule 'wise' has no option 'lamda'; it has none"),
        ("ties", {"drop": 0.1}, "the option 'drop' belongs to rule 'breadcrumbs', found rule 'ties'"),
    ],
)
def test_wrong_options_are_refused(rule: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        combine([A, B], rule=rule, **options)


@pytest.mark.parametrize("rule", MERGING)
def test_grafts_of_another_base_are_refused(rule: str) -> None:
    options = {} if rule in ("tall", "wise") else {"keep": 1.0 if rule != "breadcrumbs" else 0.9}
    options |= {"epsilon": 0.0} if rule == "della" else {}
    site = Region(ROW, {"w": [0, 1]})
    base, tuned = np.zeros(10, np.float32), np.full(10, 2, np.float32)
    here = Graft.between({"w": base}, {"w": tuned}, site)
    with pytest.raises(WrongBase, match="w: the grafts disagree about the base's number at 2 shared sites"):
        combine([here, Graft.between({"w": base + 1}, {"w": tuned}, site)], rule=rule, **options)
    half = Graft.between({"w": base.astype(np.float16)}, {"w": tuned.astype(np.float16)}, site)
    with pytest.raises(WrongBase, match="float16, float32 numbers; combine grafts of one format"):
        combine([here, half], rule=rule, **options)


def test_provenance_and_heads_come_through_every_rule() -> None:
    head = {"score.bias": np.ones(2, np.float32)}
    g = graft({("w", 0): 1.0}, heads=head).with_info(base="B", task="a", num_labels=2)
    h = graft({("w", 0): 2.0}).with_info(base="B", task="b")
    for rule in RULES:
        if rule == "union":
            continue
        merged = combine([g, h], rule=rule)
        assert merged.heads["score.bias"].tolist() == [1, 1]
        assert dict(merged.info) == {"base": "B", "num_labels": 2}
