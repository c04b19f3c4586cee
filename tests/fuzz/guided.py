"""Fuzzing that follows the code that it reaches (atheris, libFuzzer): `make fuzz SECONDS=600` gives each target its share.

    python -m tests.fuzz.guided graft --seconds 60 --corpus WORK

New inputs are kept in the work folder, to go on from; the seeds in `corpus/` stay as they are. A crash leaves its input in
the work folder, too: make a test of it.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path


def fuzz(name: str, seconds: int, work: Path) -> None:
    """One target, in this process, which libFuzzer ends."""
    import atheris

    with atheris.instrument_imports(include=["skillgraft"]):
        from . import room, run, targets
    target = targets.TARGETS[name]
    corpus = work / name
    corpus.mkdir(parents=True, exist_ok=True)
    for seed, content in targets.seeds(name).items():
        if not (corpus / seed).exists():
            (corpus / seed).write_bytes(content)
    room.home()

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


def main() -> int:
    parser = argparse.ArgumentParser(description="Coverage-guided fuzzing of one target, or of each in turn.")
    parser.add_argument("target", nargs="?", help="a row of tests/fuzz/targets.py; each in turn by default")
    parser.add_argument("--seconds", type=int, default=600, help="time in all")
    parser.add_argument("--work", type=Path, default=Path("fuzz-work"), help="what is found, to go on from")
    given = parser.parse_args()
    if given.target:
        fuzz(given.target, given.seconds, given.work.resolve())
        return 0
    from .room import home
    from .targets import TARGETS

    shutil.rmtree(home(), ignore_errors=True)
    share = str(max(1, given.seconds // len(TARGETS)))
    failed = []
    for name in TARGETS:
        print(f"== {name}: {share} s", flush=True)
        words = [sys.executable, "-m", "tests.fuzz.guided", name, "--seconds", share, "--work", str(given.work)]
        if subprocess.run(words, check=False).returncode:
            failed.append(name)
    print(f"crashes in: {', '.join(failed)}; see {given.work}" if failed else "no crashes")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
