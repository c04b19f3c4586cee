"""What is inside a graft, and how grafts relate: plain dictionaries, ready for JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from skillgraft.graft import Graft
from skillgraft.region import Region


def describe_region(region: Region) -> dict[str, Any]:
    """Size, density and the distribution over layers and kinds."""
    return {
        "entries": len(region),
        "density": region.density,
        "scope": region.scope.label,
        "scope_entries": region.scope.size,
        "by_layer": {layer or "outside the layers": count for layer, count in region.by_layer().items()},
        "by_kind": region.by_kind(),
    }


def describe(graft: Graft) -> dict[str, Any]:
    """Everything about a graft but its numbers."""
    return {
        **describe_region(graft.region),
        "form": graft.form,
        "scale": graft.scale,
        "norm": graft.norm,
        "heads": {name: list(head.shape) for name, head in graft.heads.items()},
        "base_fingerprint": graft.base_fingerprint,
        "digest": graft.digest,
        "made": dict(graft.info),
    }


def compare(grafts: Mapping[str, Graft]) -> dict[str, Any]:
    """Coverage, jaccard and cosine of every pair. coverage[a][b]: how much of b's region a contains."""
    names = list(grafts)
    measures: dict[str, Callable[[Graft, Graft], float]] = {
        "coverage": lambda a, b: a.region.coverage(of=b.region),
        "jaccard": lambda a, b: a.region.jaccard(b.region),
        "cosine": lambda a, b: a.cosine(b),
    }
    tables = {key: _table(list(grafts.values()), measure) for key, measure in measures.items()}
    return {"grafts": names, "entries": [len(graft) for graft in grafts.values()], **tables}


def _table(grafts: Sequence[Graft], measure: Callable[[Graft, Graft], float]) -> list[list[float]]:
    return [[measure(a, b) for b in grafts] for a in grafts]
