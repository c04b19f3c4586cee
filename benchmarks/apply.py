"""Putting a 10⁻⁴ graft on a 2 GB sharded folder, beside `cp -r` of that folder; and what the whole command adds.

Everything is in the page cache. Outputs go to the same disk and are removed after each run; what the disk still has to write is
written before the next clock starts, so that nobody pays for somebody else's pages. `cp` leaves its output to the page
cache, as `apply` does with `--no-sync`; `apply` as it is waits for the disk and stands beside `cp -r` followed by `sync -f`.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

from folders import decoder, random_graft, write_folder
from measuring import GIGABYTE, Figure, Measured, Settings, command, interleaved, median_ratio, work_folder
from skillgraft.errors import RunError
from skillgraft.files import graft_file
from skillgraft.folders import apply as surgery
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.values.graft import Graft
from skillgraft.values.numbers import same_bits

_DENSITY = 1e-4


def measure(settings: Settings) -> Measured:
    """ratio: apply / cp -r; durable: the same, both on the disk; command_adds: seconds of the command beyond apply's own, the
    median of paired differences.
    """
    hidden, vocabulary = (512, 8_000) if settings.small else (2048, 32_000)
    layout = decoder(settings.scaled(2 * GIGABYTE), hidden=hidden, vocabulary=vocabulary)
    with work_folder(settings, needed_bytes=3 * layout.nbytes) as folder:
        base, out = write_folder(folder / "base", layout), folder / "out"
        graft = random_graft(base, density=_DENSITY)
        file = folder / "skill.safetensors"
        graft_file.save(graft, file)
        program = [
            str(Path(sys.executable).parent / "skillgraft"),
            "apply",
            str(base),
            str(file),
            "--no-sync",
            "-o",
            str(out),
        ]

        def fresh() -> None:
            shutil.rmtree(out, ignore_errors=True)
            os.sync()

        seconds = interleaved(
            {
                "cp": lambda: _copy(base, out),
                "apply": lambda: surgery.apply(base, file, out=out, sync=False),
                "durable": lambda: surgery.apply(base, file, out=out),
                "command": lambda: subprocess.run(program, check=True, capture_output=True),
                "cp_and_sync": lambda: _copy(base, out, durable=True),
            },
            rounds=settings.rounds,
            between=fresh,
        )
        fresh()
        surgery.apply(base, file, out=out)
        _check_applied(out, graft)
    return _measured(seconds, entries=len(graft), nbytes=layout.nbytes)


def _copy(base: Path, out: Path, *, durable: bool = False) -> None:
    subprocess.run(["cp", "-r", str(base), str(out)], check=True)
    if durable:
        subprocess.run(["sync", "-f", str(out)], check=True)


def _check_applied(out: Path, graft: Graft) -> None:
    """A benchmark of a job that was not done would be worth nothing."""
    result = Checkpoint.open(out)
    for name, at in graft.region.sites.items():
        if not same_bits(result.at(name, at), graft.written(name)):
            raise RunError(f"{out}: {name} does not hold the graft's numbers")


def _measured(seconds: dict[str, list[float]], *, entries: int, nbytes: int) -> Measured:
    median = {name: statistics.median(found) for name, found in seconds.items()}
    added = statistics.median(whole - inner for whole, inner in zip(seconds["command"], seconds["apply"], strict=True))
    return Measured(
        {
            "ratio": Figure(
                median_ratio(seconds["apply"], seconds["cp"]),
                f"apply --no-sync {median['apply']:.2f} s, cp -r {median['cp']:.2f} s ({nbytes / GIGABYTE:.2f} GB)",
            ),
            "durable": Figure(
                median_ratio(seconds["durable"], seconds["cp_and_sync"]),
                f"apply {median['durable']:.2f} s, cp -r + sync -f {median['cp_and_sync']:.2f} s",
            ),
            "command_adds": Figure(added, f"command {median['command']:.2f} s"),
        },
        {"seconds": seconds, "entries": entries, "bytes": nbytes},
    )


if __name__ == "__main__":
    command("apply", measure)
