"""Which rows each step trains on: a pure function of seed and step, so that a resumed run sees the same rows.

Every task's rows are read in one endless stream of shuffled epochs. With several tasks, each step takes its whole batch from one
task, drawn at random (P1 §5.1: batches from a randomly chosen dataset).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

Rows = np.ndarray[tuple[int], np.dtype[np.int64]]


class BatchOrder:
    """The rows of every step. `step(s)` gives (task number, row numbers)."""

    def __init__(
        self, sizes: Sequence[int], *, batch_size: int, steps: int, seed: int, proportional: bool = False
    ) -> None:
        self.sizes = tuple(sizes)
        self.batch_size, self.seed = batch_size, seed
        weights = np.array(sizes if proportional else [1] * len(sizes), float)
        draw = np.random.default_rng((seed, 0))
        self.tasks = draw.choice(len(sizes), size=steps, p=weights / weights.sum())
        # How many batches a task had before each step: where in its stream the step reads on.
        self.earlier = np.zeros(steps, np.int64)
        for task in range(len(sizes)):
            mine = np.flatnonzero(self.tasks == task)
            self.earlier[mine] = np.arange(len(mine))

    def step(self, step: int) -> tuple[int, Rows]:
        task = int(self.tasks[step])
        size = self.sizes[task]
        first = int(self.earlier[step]) * self.batch_size
        places = np.arange(first, first + self.batch_size)
        rows = [_epoch(self.seed, task, int(place // size), size)[place % size] for place in places]
        return task, np.array(rows, np.int64)

    @property
    def steps_per_epoch(self) -> int:
        return max(1, -(-sum(self.sizes) // self.batch_size))


@lru_cache(maxsize=8)
def _epoch(seed: int, task: int, epoch: int, size: int) -> Rows:
    return np.random.default_rng((seed, 1, task, epoch)).permutation(size)
