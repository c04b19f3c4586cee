"""Peak anonymous memory of apply and extract on folders of 2 GB and 6 GB that hold tensors of 1 GB.

Two such tensors are in each folder: the embedding table, outside the scope, and a stack of experts inside it. Mapped files do not
count: the system takes those pages back whenever it wants. Each job runs in a process of its own; this one reads RssAnon from
/proc every 5 ms. Peaks include Python and numpy themselves (the baseline, in the details). "The same at both sizes" means
that the peak at 6 GB is at most 40 MB, a tenth of the bar, above the peak at 2 GB: the graft itself has three times the entries.
"""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from folders import Layout, decoder, random_graft, write_folder
from measuring import GIGABYTE, MEGABYTE, Figure, Measured, Settings, command, work_folder
from skillgraft import graft_file
from skillgraft.errors import RunError
from skillgraft.extraction import extract
from skillgraft.surgery import Named, apply

_DENSITY = 1e-4
_GRAFT = "skill.safetensors"
_SAMPLE_SECONDS = 0.005


@dataclass(frozen=True)
class Peak:
    """Anonymous memory of one job in MB: before it began, and at its highest."""

    baseline: float
    peak: float


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
        extracting = _peak_of("extract", base, tuned)
        shutil.rmtree(tuned)  # makes room for the output of apply
        return {"apply": _peak_of("apply", base, folder / "out"), "extract": extracting}


def _layout(settings: Settings, nbytes: int) -> Layout:
    if settings.small:
        return decoder(settings.scaled(nbytes), hidden=512, vocabulary=24_000, experts=48)
    return decoder(nbytes, hidden=2048, vocabulary=131_072, experts=64)


def _extract(base: Path, tuned: Path) -> None:
    extract(base, tuned, budget=_DENSITY)


def _apply(base: Path, out: Path) -> None:
    apply(base, [Named(graft_file.load(base.parent / _GRAFT), _GRAFT)], out)


_JOBS: dict[str, Callable[[Path, Path], None]] = {"apply": _apply, "extract": _extract}


def _run(job: str, base: Path, other: Path, parent: Connection) -> None:
    """The child: says when its imports are done, waits, works, says when it has finished."""
    parent.send("ready")
    parent.recv()
    _JOBS[job](base, other)
    parent.send("done")


def _peak_of(job: str, base: Path, other: Path) -> Peak:
    context = multiprocessing.get_context("spawn")  # a forked child would start with this process's memory
    ours, theirs = context.Pipe()
    child = context.Process(target=_run, args=(job, base, other, theirs))
    child.start()
    theirs.close()
    try:
        ours.recv()
        baseline = peak = _anonymous(child.pid)
        ours.send("go")
        while not ours.poll(_SAMPLE_SECONDS):
            peak = max(peak, _anonymous(child.pid))
        ours.recv()
    except EOFError:
        raise RunError(f"{job} on {base} failed; its own message stands above") from None
    finally:
        child.join()
    return Peak(baseline, peak)


def _anonymous(process: int | None) -> float:
    """RssAnon of a process in MB."""
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    line = next((line for line in status.splitlines() if line.startswith("RssAnon")), "RssAnon: 0 kB")
    return int(line.split()[1]) * 1024 / MEGABYTE


if __name__ == "__main__":
    command("memory", measure)
