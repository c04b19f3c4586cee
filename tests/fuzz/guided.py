"""Fuzzing that follows the code that it reaches (atheris, libFuzzer): `make fuzz SECONDS=600` gives each target its share.

    python -m tests.fuzz.guided graft --seconds 60 --corpus WORK

New inputs are kept in the work folder, to go on from; the seeds in `corpus/` stay as they are. A crash leaves its input in
the work folder, too: make a test of it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import redirect_stderr
from functools import cache
from importlib import import_module
from io import StringIO
from pathlib import Path
from types import ModuleType

# What readers import when they are called.
LATE = ("skillgraft.live.bottleneck", "skillgraft.opening.adapters", "skillgraft.papers.run", "skillgraft.serve.server")


@cache
def load() -> ModuleType:
    """Everything that is to be followed, instrumented as it is imported: once, and not for each target."""
    import atheris

    with atheris.instrument_imports(include=["skillgraft"]), redirect_stderr(StringIO()):
        from . import room, run, targets  # noqa: F401

        for name in LATE:
            import_module(name)
    room.talking()  # made here, and not in each process again
    return targets


def fuzz(name: str, seconds: int, work: Path) -> None:
    """One target, in this process, which libFuzzer ends."""
    import atheris

    targets = load()
    from . import run

    target = targets.TARGETS[name]
    corpus = work / name
    corpus.mkdir(parents=True, exist_ok=True)
    for seed, content in targets.seeds(name).items():
        if not (corpus / seed).exists():
            (corpus / seed).write_bytes(content)

    def one(content: bytes) -> None:
        if content:
            targets.outcome(target, run.lay_out(target, content))

    limits = [
        f"-max_total_time={seconds}",
        f"-timeout={run.HANG_SECONDS}",
        "-rss_limit_mb=1500",
        "-max_len=65536",
        "-verbosity=0",
    ]
    atheris.Setup([sys.argv[0], *limits, f"-artifact_prefix={work}/{name}-", "-print_final_stats=1", str(corpus)], one)
    atheris.Fuzz()


def beside(name: str, seconds: int, work: Path) -> bool:
    """One target in a process of its own; whether it ended without a crash."""
    process = os.fork()
    if not process:
        try:
            fuzz(name, seconds, work)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Coverage-guided fuzzing of one target, or of each in turn.")
    parser.add_argument("target", nargs="?", help="a row of tests/fuzz/targets.py; each in turn by default")
    parser.add_argument("--seconds", type=int, default=600, help="time in all; each target gets a second at least")
    parser.add_argument("--work", type=Path, default=Path("fuzz-work"), help="what is found, to go on from")
    given = parser.parse_args()
    targets, work = load(), given.work.resolve()
    names = [given.target] if given.target else list(targets.TARGETS)
    failed, end = [], time.monotonic() + given.seconds  # imports, a minute where the machine is busy, come on top
    for place, name in enumerate(names):
        share = max(1, round((end - time.monotonic()) / (len(names) - place)))
        print(f"== {name}: {share} s", flush=True)
        if not beside(name, share, work):
            failed.append(name)
    print(f"crashes in: {', '.join(failed)}; see {given.work}" if failed else "no crashes")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
