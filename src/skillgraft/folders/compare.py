"""How grafts relate: plain dictionaries, ready for JSON; grafts of any size, read side by side once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import reduce
from typing import Any

import numpy as np

from skillgraft.folders.movement import Progress, silent
from skillgraft.values.graft import GraftLike, stream_of
from skillgraft.values.region import Scope
from skillgraft.values.stream import Floats, GraftStream, Stretch, aligned, joined_names


def compare(grafts: Mapping[str, GraftLike], *, progress: Progress = silent) -> dict[str, Any]:
    """Coverage, jaccard and cosine of every pair. coverage[a][b]: how much of b's region a contains."""
    given = [stream_of(graft) for graft in grafts.values()]
    scope = reduce(Scope.join, (graft.scope for graft in given))  # refuses grafts of different models
    shared, dots = np.zeros((len(given), len(given)), np.int64), np.zeros((len(given), len(given)))
    done, size = 0, scope.size
    for name in joined_names(given):
        for here in aligned(given, name):
            present = [(row, each, given[row].delta(each)) for row, each in enumerate(here) if each is not None]
            for place, (row, mine, delta) in enumerate(present):
                for other, theirs, their_delta in present[place:]:
                    count, dot = _meeting(mine, delta, theirs, their_delta)
                    shared[row, other] += count
                    dots[row, other] += dot
        done += math.prod(scope.shapes[name])
        progress(done, size)
    shared, dots = np.maximum(shared, shared.T), np.triu(dots) + np.triu(dots, 1).T
    facts = {"entries": [len(graft) for graft in given], "digests": [graft.digest for graft in given]}
    return {"grafts": list(grafts), **facts, **_tables(given, shared, dots)}


def _meeting(mine: Stretch, delta: Floats, theirs: Stretch, their_delta: Floats) -> tuple[int, float]:
    """How many sites two stretches share, and the inner product of their deltas there."""
    if mine is theirs or (mine.full and theirs.full):
        return len(mine), float(delta @ their_delta)
    ours, others = mine.mask, theirs.mask
    common = ours & others
    return int(np.count_nonzero(common)), float(delta[common[ours]] @ their_delta[common[others]])


def _tables(grafts: list[GraftStream], shared: Any, dots: Floats) -> dict[str, list[list[float]]]:
    sizes, norms = [len(graft) for graft in grafts], np.sqrt(np.diag(dots))
    every = range(len(grafts))

    def jaccard(a: int, b: int) -> float:
        either = sizes[a] + sizes[b] - int(shared[a, b])
        return int(shared[a, b]) / either if either else 1.0

    def cosine(a: int, b: int) -> float:
        lengths = float(norms[a] * norms[b])
        return float(dots[a, b]) / lengths if lengths else 0.0

    return {
        "coverage": [[int(shared[a, b]) / sizes[b] if sizes[b] else 0.0 for b in every] for a in every],
        "jaccard": [[jaccard(a, b) for b in every] for a in every],
        "cosine": [[cosine(a, b) for b in every] for a in every],
    }
