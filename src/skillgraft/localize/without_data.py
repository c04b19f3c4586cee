"""Regions from the base's numbers alone, without rows and without a tuned model: by size, or at random (P2's comparisons).

They read folders lazily, one parameter at a time, and need no model code. `seed` decides the random one and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from skillgraft.checkpoint import Tensors
from skillgraft.dtypes import widen
from skillgraft.localize.ranking import Ranking
from skillgraft.localize.sensitivity import DENSITY, Sensed, share_of
from skillgraft.region import Scope

Array = npt.NDArray[np.floating[Any]]


def highest_magnitude(base: Tensors, *, scope: str = "layers", density: float = DENSITY) -> Sensed:
    """The entries with the largest |base|; of equal ones the first by name and index."""
    return _best(base, scope, density, lambda name: _sizes(base, name))


def lowest_magnitude(base: Tensors, *, scope: str = "layers", density: float = DENSITY) -> Sensed:
    """The entries with the smallest |base|; of equal ones the first by name and index."""
    return _best(base, scope, density, lambda name: -_sizes(base, name))


def random_region(base: Tensors, *, scope: str = "layers", density: float = DENSITY, seed: int = 0) -> Sensed:
    """Entries drawn at random, all with the same chance; the same under a seed."""
    draw = np.random.default_rng(seed)
    return _best(base, scope, density, lambda name: draw.random(base.shapes[name]))


def _best(base: Tensors, scope: str, density: float, score: Callable[[str], Array]) -> Sensed:
    chosen = Scope.select(scope, base.shapes)
    count = share_of(chosen, density)
    return Sensed(Ranking(chosen, score, lambda name: np.zeros(chosen.shapes[name], np.float32), most=count).top(count))


def _sizes(base: Tensors, name: str) -> Array:
    numbers = base.flat(name)
    return np.abs(numbers if numbers.dtype == np.float64 else widen(numbers))
