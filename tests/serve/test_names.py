"""Sums of skills as a person writes them: what parses, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillgraft.serve.names import MOST_TERMS, from_mapping, is_name, parse, written
from skillgraft.serve.refusals import Refused, unknown_skill

names = st.text("Ab0_.-", min_size=1, max_size=20).filter(is_name)
scales = st.one_of(st.just(1.0), st.floats(-1000, 1000).map(lambda scale: float(f"{scale:.4f}")))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(names, scales), min_size=1, max_size=6, unique_by=lambda term: term[0]))
def test_a_sum_and_its_mapping_are_one(terms: list[tuple[str, float]]) -> None:
    text = "+".join(f"{scale!r}*{name}" if scale != 1.0 else name for name, scale in terms)
    assert parse(text) == from_mapping(dict(terms)) == tuple(terms)


@settings(deadline=None, max_examples=50)
@given(st.text(max_size=40))
def test_any_text_is_a_sum_or_refused(text: str) -> None:
    try:
        terms = parse(text)
    except Refused:
        return
    assert all(is_name(name) for name, _ in terms)


@pytest.mark.parametrize(
    ("text", "terms", "shown"),
    [
        ("sst2", (("sst2", 1.0),), "sst2"),
        ("bash + 0.5*french", (("bash", 1.0), ("french", 0.5)), "bash+0.5*french"),
        ("bash+-0.5*french", (("bash", 1.0), ("french", -0.5)), "bash+-0.5*french"),
        ("2*2", (("2", 2.0),), "2*2"),
        ("1e-2*a-b.c_d", (("a-b.c_d", 0.01),), "0.01*a-b.c_d"),
    ],
)
def test_known_sums(text: str, terms: tuple[tuple[str, float], ...], shown: str) -> None:
    assert parse(text) == terms
    assert written(terms) == shown


@pytest.mark.parametrize(
    "text",
    ["", "+", "a+", "a++b", "a b", "a*b", "a*2", "inf*a", "nan*a", "1e400*a", "1e999999999*a", "2000*a", "0x2*a", "a+a",
     "../a", ".", "..", "a/b", "é", "a\n", "a" * 101, "+".join(f"a{i}" for i in range(MOST_TERMS + 1)), "１*a"],
)  # fmt: skip
def test_refused_sums(text: str) -> None:
    with pytest.raises(Refused):
        parse(text)


@pytest.mark.parametrize(
    "scale", [10**400, -(10**400), 1001, float("nan"), float("inf"), True, "1", None], ids=lambda scale: str(scale)[:8]
)
def test_refused_scales(scale: object) -> None:
    with pytest.raises(Refused, match="a number from -1000 to 1000"):
        from_mapping({"a": scale})


def test_an_unknown_name_has_the_nearest_ones() -> None:
    refused = unknown_skill("frensh", ["french", "bash", "trench"], "base")
    assert refused.status == 404
    assert "did you mean 'french' or 'trench'" in str(refused)
    assert "Held: french, bash, trench; the base is 'base'" in str(refused)
