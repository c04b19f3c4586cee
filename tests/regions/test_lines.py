"""A search within few rows and columns: whatever the method, the graft has that rank, and its numbers are tuned's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skillgraft import Data, export_lora
from skillgraft.errors import InputError
from skillgraft.folders.checkpoint import MemoryTensors
from skillgraft.folders.movement import most_moved
from skillgraft.regions.lines import within_lines
from skillgraft.values.cover import ranks
from skillgraft.values.region import Scope
from tests.model_folders import DENSE, QUERY, body, moved
from tests.regions.films import Films

SHAPES = {QUERY: (4, 4), DENSE: (4, 6)}


def pair(seed: int = 0) -> tuple[MemoryTensors, MemoryTensors, Scope]:
    before = {name: body()[name] for name in SHAPES}
    return MemoryTensors(before), MemoryTensors(moved(before, share=0.9, seed=seed)), Scope.of("matrices", SHAPES)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_outside_the_lines_tuned_is_the_base(most: int) -> None:
    base, tuned, scope = pair()
    searched = within_lines(base, tuned, scope, most=most)
    changed = {n: np.flatnonzero(searched.flat(n) != base.flat(n)) for n in SHAPES}
    assert all(rank <= most for rank in ranks(most_moved(base, searched, scope, 8)).values())
    for name, at in changed.items():
        assert (searched.flat(name)[at] == tuned.flat(name)[at]).all()
        assert (searched.flat(name, 5, 11) == searched.flat(name)[5:11]).all()
    assert sum(map(len, changed.values())) < sum(int((tuned.flat(n) != base.flat(n)).sum()) for n in SHAPES)


def test_the_heaviest_lines_are_taken() -> None:
    before = {QUERY: np.zeros((4, 4), np.float32)}
    after = {QUERY: np.zeros((4, 4), np.float32)}
    after[QUERY][2], after[QUERY][:, 1], after[QUERY][0, 0] = 3, 2, 1
    scope = Scope.of("matrices", {QUERY: (4, 4)})
    searched = within_lines(MemoryTensors(before), MemoryTensors(after), scope, most=2)
    wanted = after[QUERY].copy()
    wanted[0, 0] = 0
    assert (searched.flat(QUERY).reshape(4, 4) == wanted).all()


def test_what_cannot_be_is_refused() -> None:
    base, tuned, scope = pair()
    with pytest.raises(InputError, match=r"16 entries do not fit on the 1 heaviest .* which hold (10|12|8)"):
        within_lines(base, tuned, scope, most=1, count=16)
    with pytest.raises(InputError, match="max_rank is 1 or more, found 0"):
        within_lines(base, tuned, scope, most=0)
    wide = Scope.of("layers", {**SHAPES, "encoder.layer.0.attention.self.query.bias": (4,)})
    with pytest.raises(InputError, match=r"the scope 'layers' holds encoder.*: use scope='matrices'"):
        within_lines(MemoryTensors(body()), MemoryTensors(body()), wide, most=1)


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "movement", "entries": 40},
        {"method": "budgeted", "entries": 40, "steps": 3},
        {"method": "learned", "entries": 40, "steps": 3, "lr": 1e5, "start": 1e-3},
        {"method": "attribution", "entries": 40, "points": 1},
        {"method": "movement", "keep": 0.5},
    ],
    ids=lambda settings: settings["method"] + ("-keep" if "keep" in settings else ""),
)
def test_every_method_stays_within_the_rank(settings: dict[str, Any], films: Films, tmp_path: Path) -> None:
    graft = films.graft(scope="matrices", max_rank=2, data=Data(shots=8), **settings)
    assert max(ranks(graft.region).values()) <= 2
    if "entries" in settings:
        assert max(ranks(films.graft(scope="matrices", data=Data(shots=8), **settings).region).values()) > 2
    assert graft.info["recipe"]["max_rank"] == 2
    made = export_lora(graft.without_heads(), films.base, tmp_path / "adapter", max_rank=2)
    assert made.entries + sum(int((graft.change[n] == graft.before[n]).sum()) for n in graft.region) == len(graft)
    exact = films.graft(scope="matrices", method="movement", density=1.0, data=Data(shots=8))
    for name, at in graft.region.sites.items():
        assert (graft.change[name] == exact.change[name][np.searchsorted(exact.region.sites[name], at)]).all()


def test_it_is_for_matrices_and_for_what_moved(films: Films) -> None:
    with pytest.raises(InputError, match="use scope='matrices'"):
        films.graft(max_rank=4, entries=10, method="movement")
    with pytest.raises(InputError, match="a random region does not look at"):
        films.graft(max_rank=4, entries=10, method="random", scope="matrices")
