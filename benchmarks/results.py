"""The results on paper: `results.json` keeps the last run of each benchmark, `results.md` shows it as a table.

Running some benchmarks replaces their rows and leaves the others; rows from another machine or other versions are dropped,
because they cannot stand in one table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from table import BENCHMARKS, Bar

Runs = dict[str, dict[str, Any]]  # benchmark → figures, details, date, load_before, size, machine

_HEAD = """# Speed and memory

`make bench` writes this page. Ratios are of medians, measured side by side, in one run, on a shared machine: jobs of seconds
take turns, switches run in series of 100. Absolute times are for information only. `load` is the machine's load average
when the run began.

"""
_COLUMNS = ("job", "measured", "bar", "holds", "compared with", "absolute, for information", "run")


def merged(path: Path, fresh: Runs) -> Runs:
    """The fresh runs and those of the same machine and size that `path` holds for other benchmarks."""
    old: Runs = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    now = next(iter(fresh.values()))
    alike = {name: run for name, run in old.items() if (run["machine"], run["size"]) == (now["machine"], now["size"])}
    joined = {**alike, **fresh}
    return {name: joined[name] for name in BENCHMARKS if name in joined and _complete(name, joined[name])}


def _complete(name: str, run: Mapping[str, Any]) -> bool:
    """A kept run may be older than one of its benchmark's bars."""
    return all(bar.figure in run["figures"] for bar in BENCHMARKS[name].bars)


def write(page: Path, runs: Runs) -> None:
    """Write the page and, beside it, the numbers it is made of."""
    page.parent.mkdir(parents=True, exist_ok=True)
    numbers = json.dumps(runs, indent=1, ensure_ascii=False)
    page.with_suffix(".json").write_text(numbers + "\n", encoding="utf-8")
    page.write_text(_HEAD + table(runs) + _machine(runs), encoding="utf-8")


def table(runs: Runs) -> str:
    """One line per bar, in the order of the table of benchmarks."""
    lines = [_line(_COLUMNS), _line(["---"] * len(_COLUMNS))]
    for name, run in runs.items():
        lines += [_line(_cells(bar, run)) for bar in BENCHMARKS[name].bars]
    return "\n".join(lines) + "\n"


def _cells(bar: Bar, run: Mapping[str, Any]) -> Iterator[str]:
    figure = run["figures"][bar.figure]
    yield bar.job
    yield f"{figure['value']:.3g} {bar.unit}"
    yield bar.stated()
    yield "(small run)" if run["size"] == "small" else "yes" if bar.holds(figure["value"]) else "**no**"
    yield bar.compared_with
    yield figure["absolute"] or "—"
    yield f"{run['date']}, load {run['load_before']:.1f}"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _machine(runs: Runs) -> str:
    known = next(iter(runs.values()))["machine"]
    return "\nMachine: " + "; ".join(f"{what} {found}" for what, found in known.items()) + ".\n"
