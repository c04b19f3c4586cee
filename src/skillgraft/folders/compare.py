"""How grafts relate: plain dictionaries, ready for JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from skillgraft.values.graft import Graft, GraftLike, graft_of


def compare(grafts: Mapping[str, GraftLike]) -> dict[str, Any]:
    """Coverage, jaccard and cosine of every pair. coverage[a][b]: how much of b's region a contains."""
    given = [graft_of(graft) for graft in grafts.values()]
    measures: dict[str, Callable[[Graft, Graft], float]] = {
        "coverage": lambda a, b: a.region.coverage(of=b.region),
        "jaccard": lambda a, b: a.region.jaccard(b.region),
        "cosine": lambda a, b: a.cosine(b),
    }
    tables = {key: _table(given, measure) for key, measure in measures.items()}
    facts = {"entries": [len(graft) for graft in given], "digests": [graft.digest for graft in given]}
    return {"grafts": list(grafts), **facts, **tables}


def _table(grafts: Sequence[Graft], measure: Callable[[Graft, Graft], float]) -> list[list[float]]:
    return [[measure(a, b) for b in grafts] for a in grafts]
