"""Peak anonymous memory of apply and extract on folders of 2 GB and 6 GB that hold tensors of 1 GB.

Two such tensors are in each folder: the embedding table, outside the scope, and a stack of experts inside it. Each job runs in a
process of its own (`peaks`). Peaks include Python and numpy themselves (the baseline, in the details). "The same at both sizes"
means that the peak at 6 GB is at most 40 MB, a tenth of the bar, above the peak at 2 GB: the graft itself has three times the
entries.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from folders import Layout, decoder, random_graft, write_folder
from measuring import GIGABYTE, Figure, Measured, Settings, command, work_folder
from peaks import Peak, peak_of
from skillgraft.files import graft_file
from skillgraft.folders.apply import apply
from skillgraft.folders.extract import extract

_DENSITY = 1e-4
_GRAFT = "skill.safetensors"
_JOBS = ("apply", "extract")


def measure(settings: Settings) -> Measured:
    """For each job: the larger of its two peaks, and how far the peak at 6 GB is above the one at 2 GB."""
    peaks = {size: _at_size(settings, size * GIGABYTE) for size in (2, 6)}
    figures = {}
    for job in _JOBS:
        low, high = peaks[2][job], peaks[6][job]
        absolute = (
            f"{low.peak:.0f} MB at 2 GB, {high.peak:.0f} MB at 6 GB, of which {low.baseline:.0f} MB after imports"
        )
        figures[job] = Figure(max(low.peak, high.peak), absolute)
        figures[f"{job}_growth"] = Figure(high.peak - low.peak, "")
    details = {f"{job} at {size} GB": vars(found[job]) for size, found in peaks.items() for job in _JOBS}
    return Measured(figures, details)


def _at_size(settings: Settings, nbytes: int) -> dict[str, Peak]:
    layout = _layout(settings, nbytes)
    with work_folder(settings, needed_bytes=2 * layout.nbytes + GIGABYTE // 10) as folder:
        base = write_folder(folder / "base", layout)
        tuned = write_folder(folder / "tuned", layout, tuned=True)
        graft_file.save(random_graft(base, density=_DENSITY), folder / _GRAFT)
        extracting = peak_of(_extract, base, tuned)
        shutil.rmtree(tuned)  # makes room for the output of apply
        return {"apply": peak_of(_apply, base, folder / "out"), "extract": extracting}


def _layout(settings: Settings, nbytes: int) -> Layout:
    if settings.small:
        return decoder(settings.scaled(nbytes), hidden=512, vocabulary=24_000, experts=48)
    return decoder(nbytes, hidden=2048, vocabulary=131_072, experts=64)


def _extract(base: Path, tuned: Path) -> None:
    extract(base, tuned, density=_DENSITY)


def _apply(base: Path, out: Path) -> None:
    apply(base, base.parent / _GRAFT, out=out)


if __name__ == "__main__":
    command("memory", measure)
