"""Functions that take no time, and steps of them, for the tests of the engine. Run as a program, it works through a store.

python -m tests.papers.toys STORE NAME... runs the steps `slow NAME`, each of which writes three files and waits in between.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skillgraft.errors import InputError
from skillgraft.papers import Step, Store
from skillgraft.papers.run import run

PARTS = 3


@dataclass(frozen=True)
class Tuned:
    """A result that is a folder, as that of `finetune`."""

    path: Path


def add(*, number: float, others: Sequence[float] = (), seed: int = 0) -> float:
    """A number, added to others."""
    return number + sum(others) + seed


def fail(*, why: str) -> float:
    raise InputError(why)


def crash() -> float:
    raise ZeroDivisionError("a bug")


def slow(*, word: str, out: Path, reuse: bool, seconds: float = 0.2) -> Tuned:
    """Three parts, of which those are left alone that an interrupted run has written; `log` tells which were."""
    assert reuse
    out.mkdir(exist_ok=True)
    for part in range(PARTS):
        if not (out / f"part-{part}").exists():
            with (out / "log").open("a", encoding="utf-8") as log:
                log.write(f"{part}\n")
            time.sleep(seconds)
            (out / f"part-{part}").write_text(word, encoding="utf-8")
    return Tuned(out)


def files(*, folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def added(number: float, *others: Step, **rest: Any) -> Step:
    return Step(add, {"number": number, **({"others": list(others)} if others else {}), **rest})


def slow_step(word: str) -> Step:
    return Step(slow, {"word": word})


if __name__ == "__main__":
    failures = run([slow_step(word) for word in sys.argv[2:]], Store(Path(sys.argv[1])))
    sys.exit(len(failures))
