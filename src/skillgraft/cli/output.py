"""How results are shown: one JSON object, or a few aligned lines; progress on stderr."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skillgraft.report.numbers import human_bytes as human_bytes

if TYPE_CHECKING:
    from skillgraft.graft import Graft
    from skillgraft.movement import Progress
    from skillgraft.region import Region
    from skillgraft.surgery import Outcome


def show(result: Mapping[str, Any], *, as_json: bool, lines: Sequence[str]) -> None:
    """Print the result for a machine or for a person."""
    print(json.dumps(result, ensure_ascii=False, default=str) if as_json else "\n".join(lines))


def columns(rows: Sequence[Sequence[object]], *, header: Sequence[str] = ()) -> list[str]:
    """Rows as aligned lines; numbers to the right."""
    table = (
        [list(map(str, header)), *([str(cell) for cell in row] for row in rows)]
        if header
        else [[str(cell) for cell in row] for row in rows]
    )
    widths = [max(len(row[place]) for row in table) for place in range(len(table[0]))] if table else []
    right = [all(_is_number(row[place]) for row in table[bool(header) :]) for place in range(len(widths))]
    return [
        "  ".join(cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(row, widths, right, strict=True)).rstrip()
        for row in table
    ]


def _is_number(text: str) -> bool:
    return text.replace(",", "").replace(".", "").replace("-", "").replace("e", "").replace("%", "").isdigit()


def command_line() -> str:
    """The command that made an artefact; folders of this machine shortened to their names."""
    return shlex.join(["skillgraft", *map(_without_folders, sys.argv[1:])])


def _without_folders(word: str) -> str:
    option, sign, value = word.partition("=") if word.startswith("--") else ("", "", word)
    return f"{option}{sign}{Path(value).name if '/' in value else value}"


def load_graft(path: Path) -> Graft:
    from skillgraft.graft_file import load

    return load(path)


def only_our_progress() -> None:
    """Switch off the progress bars that transformers shows for every file it reads or writes."""
    from transformers.utils import logging

    logging.disable_progress_bar()


@contextmanager
def progress(title: str) -> Iterator[Progress]:
    """A progress bar with time left on stderr; silent where stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield _silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    look = (TextColumn(title), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*look, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _silent(done: int, total: int) -> None:
    """No progress: stderr goes to a file or a pipe."""


def outcome(written: Outcome) -> dict[str, Any]:
    """What apply and remove did, for machines."""
    return {
        "out": str(written.path),
        "entries": written.entries,
        "whole_tensors": list(written.whole),
        "left_out": list(written.left_out),
    }


@contextmanager
def steps(title: str) -> Iterator[Callable[[int, int, Mapping[str, Any]], None]]:
    """A progress bar for training: the loss beside it."""
    with progress(title) as bar:
        yield lambda done, total, _entry: bar(done, total)


def is_main_process() -> bool:
    """Whether this is the process that prints, when several run."""
    return os.environ.get("RANK", "0") == "0"


SCORE_COLUMNS = ("score", "ECE", "NLL", "agreement", "share kept", "relative gain")


def score_table(title: str, models: Mapping[str, Any]) -> list[str]:
    """Models as rows: score, calibration, agreement with tuned, what is kept of it; the majority class below."""
    first = next(iter(models.values()))
    rows = [(name, *score_cells(one)) for name, one in models.items()]
    header = [f"{title} ({first['n']} rows)", first["metric"], *SCORE_COLUMNS[1:]]
    return [*columns(rows, header=header), f"majority class: {100 * first['majority']:.1f}"]


def score_cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    """One model's cells, in the order of SCORE_COLUMNS; shares and rates in percent, with intervals."""
    percents = [_percent(one.get(key)) for key in ("score", "ece", "agreement", "share_kept", "relative_gain")]
    return (*percents[:2], f"{one['nll']['value']:.3f}", *percents[2:])


def _percent(found: Any) -> str:
    if not found or found.get("value") is None:
        return "-"
    value = f"{100 * found['value']:.1f}"
    return f"{value} [{100 * found['low']:.1f}, {100 * found['high']:.1f}]" if found.get("low") is not None else value


def region_bars(region: Region) -> list[str]:
    """Where a region lives, at a glance: by kind and by layer."""
    return ["", *_bars(region.by_kind()), "", *_bars(region.by_layer())]


def _bars(counts: Mapping[str, int], *, width: int = 40) -> list[str]:
    most = max(counts.values(), default=0) or 1
    rows = [
        (name or "outside the layers", f"{count:,}", "█" * round(width * count / most))
        for name, count in counts.items()
    ]
    return columns(rows)
