"""The exact top 10⁻⁴ of two 2 GB folders, beside one numpy subtraction of the same files.

The subtraction is what anyone must pay: mapped views of both, chunks of 64 MB, one buffer for all differences, nothing kept.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from folders import decoder, write_folder
from measuring import GIGABYTE, Figure, Measured, Settings, command, interleaved, median_ratio, work_folder
from skillgraft.errors import RunError
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.folders.extract import extract
from skillgraft.values.graft import Graft

_DENSITY = 1e-4
_CHUNK = 64 * 1024 * 1024 // 4  # entries
Floats = npt.NDArray[np.float32]


def measure(settings: Settings) -> Measured:
    """ratio: extract / subtraction."""
    hidden, vocabulary = (512, 8_000) if settings.small else (2048, 32_000)
    layout = decoder(settings.scaled(2 * GIGABYTE), hidden=hidden, vocabulary=vocabulary)
    with work_folder(settings, needed_bytes=2 * layout.nbytes) as folder:
        base = write_folder(folder / "base", layout)
        tuned = write_folder(folder / "tuned", layout, tuned=True)
        seconds = interleaved(
            {"extract": lambda: extract(base, tuned, density=_DENSITY), "subtraction": lambda: _subtract(base, tuned)},
            rounds=settings.rounds,
        )
        graft = extract(base, tuned, density=_DENSITY)
        _check_topmost(base, tuned, graft)
    median = {name: statistics.median(found) for name, found in seconds.items()}
    sizes = f"2 × {layout.nbytes / GIGABYTE:.2f} GB"
    absolute = f"extract {median['extract']:.2f} s, subtraction {median['subtraction']:.2f} s ({sizes})"
    return Measured(
        {"ratio": Figure(median_ratio(seconds["extract"], seconds["subtraction"]), absolute)},
        {"seconds": seconds, "entries": len(graft), "bytes": layout.nbytes},
    )


def _subtract(base: Path, tuned: Path) -> None:
    before, after = Checkpoint.open(base), Checkpoint.open(tuned)
    room = np.empty(_CHUNK, np.float32)
    for name in before.shapes:
        for old, new in _chunks(before, after, name):
            np.subtract(new, old, out=room[: len(new)])


def _chunks(before: Checkpoint, after: Checkpoint, name: str) -> Iterator[tuple[Floats, Floats]]:
    for low in range(0, math.prod(before.shapes[name]), _CHUNK):
        yield before.mapped(name)[low : low + _CHUNK], after.mapped(name)[low : low + _CHUNK]


def _check_topmost(base: Path, tuned: Path, graft: Graft) -> None:
    """By brute force: fewer than `budget` entries moved more than the least of the chosen, at least `budget` moved as much."""
    before, after = Checkpoint.open(base), Checkpoint.open(tuned)
    least = min(float(np.abs(graft.delta(name)).min()) for name in graft.region)
    more = as_much = 0
    for name in graft.region.scope.shapes:
        for old, new in _chunks(before, after, name):
            movement = np.abs(new.astype(np.float64) - old)
            more += int(np.count_nonzero(movement > least))
            as_much += int(np.count_nonzero(movement >= least))
    if not more < len(graft) <= as_much:
        raise RunError(f"{len(graft)} entries were taken; {more} moved more than the least of them, {as_much} as much")


if __name__ == "__main__":
    command("extract", measure)
