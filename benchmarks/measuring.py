"""What every benchmark shares: its settings, what it hands back, interleaved timing, and its own small command line.

python benchmarks/apply.py            one line: the figures beside their bars
python benchmarks/apply.py --json     the figures and all details, for machines
python benchmarks/apply.py --small    a twentieth of the size: shows that it works, says nothing about speed
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from skillgraft.errors import InputError, RunError, SkillgraftError
from table import BENCHMARKS

MEGABYTE = 1_000_000
GIGABYTE = 1_000_000_000
_WARM_UP = 2


@dataclass(frozen=True)
class Settings:
    """Where to put files, and whether to run a twentieth of the size."""

    workdir: Path
    small: bool = False

    @property
    def rounds(self) -> int:
        """How often a job of seconds is timed."""
        return 3 if self.small else 9

    def scaled(self, amount: int) -> int:
        """An amount at full size, or its twentieth."""
        return amount // 20 if self.small else amount


@dataclass(frozen=True)
class Figure:
    """A number that has a bar, and the absolute times behind it, for information."""

    value: float
    absolute: str


@dataclass(frozen=True)
class Measured:
    """What a benchmark hands back: its figures, by the names of its bars, and everything else it saw."""

    figures: Mapping[str, Figure]
    details: Mapping[str, Any] = field(default_factory=dict)


def interleaved(
    jobs: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    between: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each job, one after the other within each round, so that all see the same noise of the machine.

    The order turns by one from round to round: nobody always follows the same neighbour. `between` runs before every job,
    outside the timing. The first rounds warm everything up and are not counted: memory that a virtual machine has not used
    before, for one, costs more than a copy does. `clock` may be `time.process_time` where others take most of the machine.
    """
    names = list(jobs)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for round_number in range(_WARM_UP + rounds):
        turn = round_number % len(names)
        for name in names[turn:] + names[:turn]:
            between()
            start = clock()
            jobs[name]()
            elapsed = clock() - start
            if round_number >= _WARM_UP:
                seconds[name].append(elapsed)
    return seconds


def median_ratio(ours: list[float], theirs: list[float]) -> float:
    """Ratio of the medians of two interleaved series."""
    return statistics.median(ours) / statistics.median(theirs)


@contextmanager
def work_folder(settings: Settings, *, needed_bytes: int) -> Iterator[Path]:
    """A temporary folder that is always removed; refused before any work if the disk has not the room."""
    if not settings.workdir.is_dir():
        raise InputError(f"--workdir {settings.workdir} is not a folder; name one that exists")
    free = shutil.disk_usage(settings.workdir).free
    if free < needed_bytes:
        raise RunError(
            f"{settings.workdir} has {free / GIGABYTE:.1f} GB free, {needed_bytes / GIGABYTE:.1f} GB are needed; "
            "name a folder on another disk with --workdir"
        )
    with tempfile.TemporaryDirectory(prefix="skillgraft-bench-", dir=settings.workdir) as folder:
        yield Path(folder)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """The options that one benchmark and all of them together understand."""
    parser.add_argument("--small", action="store_true", help="a twentieth of the size: a smoke test, not a measurement")
    parser.add_argument("--workdir", type=Path, default=Path(tempfile.gettempdir()), help="where temporary files go")


def command(name: str, measure: Callable[[Settings], Measured]) -> None:
    """A benchmark's own command line: one line of figures, or with --json everything."""
    parser = argparse.ArgumentParser(description=BENCHMARKS[name].about)
    add_settings(parser)
    parser.add_argument("--json", action="store_true", help="print figures and details as one JSON object")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the temporary folder goes, too
    load_before = os.getloadavg()[0]
    try:
        measured = measure(Settings(given.workdir, given.small))
    except SkillgraftError as error:
        sys.exit(f"error: {error}")
    if given.json:
        print(json.dumps({**asdict(measured), "load_before": round(load_before, 2)}, ensure_ascii=False))
    else:
        print(one_line(name, measured))


def one_line(name: str, measured: Measured) -> str:
    """`apply: ratio 1.12 × (≤ 1.3 × holds), command_adds 0.4 s (≤ 0.8 s holds)`."""
    parts = []
    for bar in BENCHMARKS[name].bars:
        value = measured.figures[bar.figure].value
        verdict = "holds" if bar.holds(value) else "FAILS"
        parts.append(f"{bar.figure} {value:.3g} {bar.unit} ({bar.stated()} {verdict})")
    return f"{name}: {', '.join(parts)}"
