"""Mutations by the thousand, counted and resumable: every case is told by its number, so that a finding can be made again.

    python -m tests.fuzz.run --cases 50000 --state fuzz.json        # each target up to so many; goes on where it was
    python -m tests.fuzz.run graft task --seconds 600
    python -m tests.fuzz.run graft --case 1234                      # one case again, with its traceback

A finding (an error outside the project's tree, more than ten seconds, more than 500 MB) is written to `--findings`. The case
that is under way stands in STATE.now: where a process dies of an input, that is the one.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from functools import cache
from pathlib import Path
from types import FrameType

from skillgraft.files import atomic

from . import bundles
from .general import damage, damage_bundle
from .room import home
from .targets import TARGETS, Target, outcome, seeds

HANG_SECONDS = 10
MEMORY_BYTES = 500_000_000
_SAVE_EVERY = 200


class Hang(BaseException):
    """No error of the input's: a case that takes too long."""


def _hang(_signal: int, _frame: FrameType | None) -> None:
    raise Hang(f"more than {HANG_SECONDS} s of processor time")


def case(name: str, number: int) -> bytes:
    """The damaged input of that number."""
    target, rng = TARGETS[name], random.Random(f"{name} {number}")
    known = seeds(name)
    content = known[rng.choice(sorted(known))]
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        single = len(target.names) == 1
        content = damage(rng, target.names[0], content) if single else damage_bundle(target.names)(rng, content)
    return content


def lay_out(target: Target, content: bytes) -> Path:
    """The input as a folder of files."""
    folder = home() / "case"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    files = {target.names[0]: content} if len(target.names) == 1 else bundles.unpack(content, target.names)
    return bundles.write(files, folder)


def peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@cache
def at_rest_bytes() -> int:
    """What this process needs before it has read anything."""
    home()
    return peak_bytes()


def tried(name: str, content: bytes) -> str:
    """What came of it: "accepted", "refused", or the finding."""
    folder, before = lay_out(TARGETS[name], content), at_rest_bytes()
    signal.setitimer(signal.ITIMER_PROF, HANG_SECONDS)
    try:
        found = outcome(TARGETS[name], folder)
    except (Exception, Hang):
        return traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    grown = peak_bytes() - before
    if grown > MEMORY_BYTES:
        Path("/proc/self/clear_refs").write_text("5")  # the next case begins anew
        return f"{grown:,} bytes of memory"
    return "refused" if found else "accepted"


def run(names: list[str], *, cases: int, seconds: float, state: Path, findings: Path) -> dict[str, dict[str, int]]:
    """Go on with every target in turn until each has so many cases or time is up; the counts so far."""
    counts = json.loads(state.read_text()) if state.is_file() else {}
    now, end = state.with_suffix(".now"), time.monotonic() + seconds
    while time.monotonic() < end and any(_done(counts, name) < cases for name in names):
        for name in names:
            mine = counts.setdefault(name, {"accepted": 0, "refused": 0, "findings": 0})
            for number in range(_done(counts, name), min(_done(counts, name) + _SAVE_EVERY, cases)):
                now.write_text(f"{name} {number}\n")
                content = case(name, number)
                found = tried(name, content)
                if found not in ("accepted", "refused"):
                    findings.mkdir(parents=True, exist_ok=True)
                    (findings / f"{name}-{number}").write_bytes(content)
                    (findings / f"{name}-{number}.txt").write_text(found, errors="replace")
                mine[found if found in mine else "findings"] += 1
            with atomic.new_file(state, overwrite=True) as fresh:
                fresh.write_text(json.dumps(counts, indent=1))
    now.unlink(missing_ok=True)
    return counts


def _done(counts: dict[str, dict[str, int]], name: str) -> int:
    return sum(counts.get(name, {}).values())


def main() -> int:
    parser = argparse.ArgumentParser(description="Damaged inputs of every kind, counted; goes on where it was.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; all by default")
    parser.add_argument("--cases", type=int, default=10**9, help="cases of each target")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="time in all")
    parser.add_argument("--state", type=Path, default=Path("fuzz.json"), help="the counts, to go on from")
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"), help="where findings are written")
    parser.add_argument("--case", type=int, help="run this one again")
    given = parser.parse_args()
    names = given.targets or list(TARGETS)
    signal.signal(signal.SIGPROF, _hang)
    tempfile.tempdir = str(home())  # what readers make of inputs goes there, too
    if given.case is not None:
        print(tried(names[0], case(names[0], given.case)))
        return 0
    counts = run(names, cases=given.cases, seconds=given.seconds, state=given.state, findings=given.findings)
    for name in names:
        print(f"{name:10}", "  ".join(f"{kind} {count:,}" for kind, count in counts.get(name, {}).items()))
    print(f"{sum(sum(each.values()) for each in counts.values()):,} cases")
    return int(any(counts[name]["findings"] for name in names if name in counts))


if __name__ == "__main__":
    sys.exit(main())
