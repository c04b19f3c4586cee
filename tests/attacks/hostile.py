"""Grafts as a stranger might make them: valid files whose content outside the tensors wants more than a graft may."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.values.graft import Graft
from skillgraft.values.info import Info
from skillgraft.values.numbers import Array
from skillgraft.values.region import Region, Scope


def graft_of_nothing(heads: Mapping[str, Array] | None = None, **items: Any) -> Graft:
    """No entry and no known base: only whole tensors and metadata."""
    scope = Scope.of("all", {"encoder.layer.0.attention.self.query.weight": (4, 4)})
    return Graft(Region(scope, {}), {}, {}, heads=heads or {}, base_fingerprint="0" * 64, info=Info(**items))


def with_power(graft: Graft, heads: Mapping[str, Array] | None = None, **items: Any) -> Graft:
    """A real graft with more in it than extract would write."""
    return replace(graft, heads=dict(heads or graft.heads), info=graft.info.updated(**items))


def names_of(path: Any) -> set[str]:
    """The full names of a folder's tensors."""
    return {place.raw for place in Checkpoint.open(path).places.values()}
