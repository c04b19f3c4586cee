"""Run the benchmarks, each in a process of its own, and write `results.md`.

python benchmarks/run.py                   all of them
python benchmarks/run.py apply switch      some: the other rows of the page stay
python benchmarks/run.py --list            what there is
python benchmarks/run.py --small           a smoke test: prints the table, writes only where --results says
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import results
from machine import facts
from measuring import add_settings
from skillgraft.errors import did_you_mean
from table import BENCHMARKS

_HERE = Path(__file__).parent


def main() -> int:
    """Exit code 0 if every benchmark ran to its end, whatever its figures say; 1 otherwise."""
    given = _arguments()
    if given.list:
        width = max(map(len, BENCHMARKS)) + 2
        print("\n".join(f"{name:{width}}{benchmark.about}" for name, benchmark in BENCHMARKS.items()))
        return 0
    names = given.names or [name for name, each in BENCHMARKS.items() if not each.needs or each.needs in os.environ]
    found = {name: _run(name, given) for name in names}
    runs = {name: run for name, run in found.items() if run is not None}
    print(results.table(runs), end="")
    page = given.results or (None if given.small else _HERE / "results.md")
    if page is not None and runs:
        results.write(page, results.merged(page.with_suffix(".json"), runs))
        _say(f"written: {page}")
    return 0 if len(runs) == len(names) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run the benchmarks and write results.md.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="which ones; all by default")
    parser.add_argument("--list", action="store_true", help="list the benchmarks and stop")
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="the page to write (default: results.md beside this file)"
    )
    add_settings(parser)
    given = parser.parse_args()
    for name in given.names:
        if name not in BENCHMARKS:
            parser.error(f"no benchmark is called {name!r}; {did_you_mean(name, BENCHMARKS)}")
    return given


def _run(name: str, given: argparse.Namespace) -> dict[str, Any] | None:
    """One benchmark's output with date and machine, or None after saying that it failed."""
    _say(f"{name}: {BENCHMARKS[name].about} …")
    program = [sys.executable, str(_HERE / f"{name}.py"), "--json", "--workdir", str(given.workdir)]
    start = time.perf_counter()
    child = subprocess.run(program + ["--small"] * given.small, stdout=subprocess.PIPE, text=True, check=False)
    elapsed = time.perf_counter() - start
    if child.returncode:
        _say(f"{name}: failed with exit code {child.returncode} after {elapsed:.0f} s")
        return None
    _say(f"{name}: done in {elapsed:.0f} s")
    size = "small" if given.small else "full"
    return {**json.loads(child.stdout), "date": date.today().isoformat(), "size": size, "machine": facts()}


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
