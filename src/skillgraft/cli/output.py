"""How results are shown: one JSON object, or a few aligned lines; progress on stderr."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skillgraft.report.numbers import human_bytes as human_bytes
from skillgraft.values.printing import SCORE_COLUMNS as SCORE_COLUMNS
from skillgraft.values.printing import columns as columns
from skillgraft.values.printing import score_cells as score_cells
from skillgraft.values.printing import score_table as score_table

if TYPE_CHECKING:
    from skillgraft.folders.apply import WrittenFolder
    from skillgraft.folders.movement import Progress
    from skillgraft.opening.runtime import Runtime
    from skillgraft.values.graft import Graft
    from skillgraft.values.region import Region


def show(result: Mapping[str, Any], *, as_json: bool, lines: Sequence[str]) -> None:
    """Print the result for a machine or for a person."""
    print(json.dumps(result, ensure_ascii=False, default=str) if as_json else "\n".join(lines))


def command_line() -> str:
    """The command that made an artefact; folders of this machine shortened to their names."""
    return shlex.join(["skillgraft", *map(_without_folders, sys.argv[1:])])


def _without_folders(word: str) -> str:
    from skillgraft.tasks.asking import AS

    option, sign, value = word.partition("=") if word.startswith("--") else ("", "", word)
    names = (Path(part).name if "/" in part else part for part in value.split(AS))
    return f"{option}{sign}{AS.join(names)}"


def load_graft(path: Path) -> Graft:
    from skillgraft.values.graft import Graft

    return Graft.load(path)


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


def outcome(written: WrittenFolder) -> dict[str, Any]:
    """What apply and remove did, for machines."""
    return {
        "out": str(written.path),
        "entries": written.entries,
        "whole_tensors": list(written.whole),
        "left_out": list(written.left_out),
    }


@contextmanager
def running(title: str, **options: Any) -> Iterator[Runtime]:
    """How the verb's call runs: on the device and in the format that were asked for, with a progress bar."""
    from skillgraft.opening.runtime import Runtime

    only_our_progress()
    with progress(title) as bar:
        yield Runtime(progress=lambda done, total, _facts: bar(done, total), command=command_line(), **options)


def is_main_process() -> bool:
    """Whether this is the process that prints, when several run."""
    return os.environ.get("RANK", "0") == "0"


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
