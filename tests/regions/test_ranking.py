"""The best entries, collected block by block, are those of one big sort."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillgraft.regions import ranking as module
from skillgraft.regions.ranking import Ranking
from skillgraft.values.region import Scope

LEVELS = st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 2.0])


@st.composite
def cases(draw: st.DrawFn) -> tuple[Scope, dict[str, Any], dict[str, Any], int]:
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    scope = Scope.of("all", {f"p{number}": (size,) for number, size in enumerate(sizes)})
    few = {name: draw(st.lists(LEVELS, min_size=size, max_size=size)) for name, (size,) in scope.shapes.items()}
    moved = {
        name: draw(st.lists(st.integers(0, 2), min_size=size, max_size=size)) for name, (size,) in scope.shapes.items()
    }
    scores = {name: np.array(numbers, np.float32) for name, numbers in few.items()}
    return scope, scores, {n: np.array(m, np.float32) for n, m in moved.items()}, draw(st.integers(1, 50))


@given(cases(), st.integers(1, 7))
def test_every_prefix_is_that_of_a_sort(case: Any, block: int) -> None:
    """Few levels make many ties; small blocks make it throw away candidates again and again."""
    scope, scores, movements, most = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK", block)
        found = Ranking(scope, scores.__getitem__, movements, most=most)
    entries = [
        (-scores[name][at], -movements[name][at], name, at)
        for name, (size,) in scope.shapes.items()
        for at in range(size)
    ]
    wanted = sorted(entries)[:most]
    for budget in range(1, len(wanted) + 1):
        region = found.top(budget)
        chosen = {(name, int(at)) for name, sites in region.sites.items() for at in sites}
        assert chosen == {(name, at) for *_, name, at in wanted[:budget]}


def test_ties_go_to_movement_then_name_then_index() -> None:
    scope = Scope.of("all", {"a": (3,), "b": (3,)})
    scores = {name: np.zeros(3, np.float32) for name in scope.shapes}
    movements = {"a": np.array([1, 2, 1], np.float32), "b": np.array([2, 1, 1], np.float32)}
    ranking = Ranking(scope, scores, movements, most=6)
    order = [next((n, int(at[0])) for n, at in (ranking.top(k + 1) - ranking.top(k)).sites.items()) for k in range(6)]
    assert order == [("a", 1), ("b", 0), ("a", 0), ("a", 2), ("b", 1), ("b", 2)]


def test_only_as_much_is_held_as_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK", 100)
    held = []
    offer = module._Best.offer

    def watched(self: Any, *given: Any) -> None:
        offer(self, *given)
        held.append(self.held)

    monkeypatch.setattr(module._Best, "offer", watched)
    scope = Scope.of("all", {"w": (5000,)})
    rising = {"w": np.arange(5000, dtype=np.float32)}  # the worst case: every block is better than all before
    region = Ranking(scope, rising, rising, most=30).top(30)
    assert region.sites["w"].tolist() == list(range(4970, 5000))
    assert max(held) <= 30 + 100
