"""What is inside a graft, and how grafts relate: hand-computed."""

from __future__ import annotations

import json

import numpy as np
import pytest

from skillgraft import Graft, Region, Scope, compare
from skillgraft.values.info import Info

QUERY, BIAS, WORDS = "encoder.layer.0.query.weight", "encoder.layer.10.query.bias", "embeddings.word.weight"
SCOPE = Scope.of("all", {QUERY: (2, 2), BIAS: (4,), WORDS: (2, 1)})


def graft(sites: dict[str, list[int]], deltas: list[float]) -> Graft:
    region = Region(SCOPE, sites)
    before = {name: np.zeros(len(at), np.float32) for name, at in region.sites.items()}
    rest = iter(deltas)
    after = {name: np.array([next(rest) for _ in at], np.float32) for name, at in region.sites.items()}
    return Graft(region, before, after, base_fingerprint="ab" * 32, info=Info(task="sst2"))


def test_a_region_described() -> None:
    assert Region(SCOPE, {QUERY: [0, 3], WORDS: [1]}).describe() == {
        "entries": 3,
        "density": 0.3,
        "scope": "all",
        "scope_entries": 10,
        "by_layer": {"outside the layers": 1, "encoder.layer.0": 2, "encoder.layer.10": 0},
        "by_kind": {"bias": 0, "query": 2, "other": 1},
    }


def test_a_graft_described() -> None:
    g = graft({QUERY: [0, 3]}, [3.0, 4.0])
    g = Graft(g.region, g.before, g.change, heads={"score.bias": np.zeros(2)}, base_fingerprint="ab" * 32, info=g.info)
    found = (2.0 * g).describe()
    assert {key: found[key] for key in ("form", "scale", "norm", "heads", "base_fingerprint", "made")} == {
        "form": "exact",
        "scale": 2.0,
        "norm": 10.0,
        "heads": {"score.bias": [2]},
        "base_fingerprint": "ab" * 32,
        "made": {"task": "sst2"},
    }
    assert found["digest"] == (2.0 * g).digest
    assert json.loads(json.dumps(found)) == found


def test_pairs_compared() -> None:
    a = graft({QUERY: [0, 1, 2]}, [1.0, 2.0, 2.0])
    b = graft({QUERY: [2, 3]}, [3.0, 4.0])
    nothing = graft({}, [])
    found = compare({"a": a, "b": b, "nothing": nothing})
    assert found["grafts"] == ["a", "b", "nothing"]
    assert found["entries"] == [3, 2, 0]
    assert found["coverage"] == [[1, 1 / 2, 0], [1 / 3, 1, 0], [0, 0, 0]]
    assert found["jaccard"] == [[1, 1 / 4, 0], [1 / 4, 1, 0], [0, 0, 1]]
    assert found["cosine"] == [[1, pytest.approx(6 / 15), 0], [pytest.approx(6 / 15), 1, 0], [0, 0, 0]]
