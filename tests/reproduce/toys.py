"""Jobs that take no time, and drafts of them, for the tests of the harness. Run as a program, it works through steps in a store.

python -m tests.reproduce.toys STORE NAME... runs the steps `slow NAME`, each of which writes three files and waits in between.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from skillgraft.errors import InputError
from skillgraft.reproduce import Step, Store, jobs
from skillgraft.reproduce.jobs.job import Job
from skillgraft.reproduce.run import run

NUMBER = "number"
PARTS = 3


def add(out: Path, needs: Mapping[str, Path], *, number: float, seed: int = 0) -> None:
    """A number, added to those of all that is needed."""
    total = number + sum(value(step) for step in needs.values())
    (out / NUMBER).write_text(str(total + seed), encoding="utf-8")


def fail(_out: Path, _needs: Mapping[str, Path], *, why: str) -> None:
    raise InputError(why)


def crash(_out: Path, _needs: Mapping[str, Path]) -> None:
    raise ZeroDivisionError("a bug")


def slow(out: Path, _needs: Mapping[str, Path], *, name: str, seconds: float = 0.2) -> None:
    """Three parts, of which those are left alone that an interrupted run has written; `log` tells which were."""
    for part in range(PARTS):
        if not (out / f"part-{part}").exists():
            with (out / "log").open("a", encoding="utf-8") as log:
                log.write(f"{part}\n")
            time.sleep(seconds)
            (out / f"part-{part}").write_text(name, encoding="utf-8")
    (out / NUMBER).write_text(str(len(name)), encoding="utf-8")


def value(step: Path) -> float:
    return float((step / NUMBER).read_text(encoding="utf-8"))


TOYS: Mapping[str, Job] = MappingProxyType(
    {
        "add": Job(add, lambda settings: 100.0 * settings["number"]),
        "fail": Job(fail, lambda _settings: 1.0),
        "crash": Job(crash, lambda _settings: 1.0),
        "slow": Job(slow, lambda _settings: 1.0),
    }
)


def added(number: float, *needs: Step, **rest: Any) -> Step:
    return Step("add", {"number": number, **rest}, {f"part {place}": step for place, step in enumerate(needs)})


def slow_step(name: str) -> Step:
    return Step("slow", {"name": name})


if __name__ == "__main__":
    jobs.JOBS = TOYS
    failures = run([slow_step(name) for name in sys.argv[2:]], Store(Path(sys.argv[1])))
    sys.exit(len(failures))
