"""How results are shown: one JSON object, or a few aligned lines; progress on stderr.

Without a terminal progress is a line every ten seconds. `--quiet` shows no progress, `--verbose` also what libraries tell.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skillgraft.values.escaping import plain_json, terminal
from skillgraft.values.printing import SCORE_COLUMNS as SCORE_COLUMNS
from skillgraft.values.printing import answer_lines as answer_lines
from skillgraft.values.printing import columns as columns
from skillgraft.values.printing import counted
from skillgraft.values.printing import human_bytes as human_bytes
from skillgraft.values.printing import score_cells as score_cells
from skillgraft.values.printing import score_table as score_table

if TYPE_CHECKING:
    from skillgraft.folders.apply import WrittenFolder
    from skillgraft.folders.movement import Progress
    from skillgraft.opening.runtime import Runtime
    from skillgraft.values.graft import Graft
    from skillgraft.values.region import Region


LINE_SECONDS = 10.0  # between two lines of progress


@dataclass
class _Volume:
    """How much the command tells, as its flags say."""

    quiet: bool = False
    verbose: bool = False


_volume = _Volume()


def set_volume(*, quiet: bool, verbose: bool) -> None:
    """What `--quiet` and `--verbose` say, for the rest of this command."""
    _volume.quiet, _volume.verbose = quiet, verbose


def show(result: Mapping[str, Any], *, as_json: bool, lines: Sequence[str] = ()) -> None:
    """Print the result for a machine or for a person. Names come from files: nothing in them reaches the terminal as it is."""
    print(plain_json(result) if as_json else "\n".join(map(terminal, lines)))


def command_line() -> str:
    """The command that made an artefact; folders of this machine shortened to their names."""
    return shlex.join(["skillgraft", *map(_without_folders, sys.argv[1:])])


def _without_folders(word: str) -> str:
    from skillgraft.tasks.task import AS

    option, sign, value = word.partition("=")  # --out=DIR/g, films=DIR/g; but DIR/lr=0.1/g is a path
    if not sign or "/" in option or os.path.exists(word):
        option, sign, value = "", "", word
    names = (Path(part).name if "/" in part else part for part in value.split(AS))
    return f"{option}{sign}{AS.join(names)}"


def check_tables(tables: Mapping[str, Path | None]) -> None:
    """Before any work: the files for tables can be written, and are not one."""
    from skillgraft.errors import InputError
    from skillgraft.files import atomic

    files = [path for path in tables.values() if path is not None]
    if len(set(files)) < len(files):
        raise InputError(f"--csv and --latex would both write {files[0]}: give each a file of its own")
    for path in files:
        atomic.check_target(path)


def load_graft(path: str | Path) -> Graft:
    from skillgraft.values.graft import Graft

    return Graft.load(path)


def only_our_progress() -> None:
    """Switch off the progress bars that transformers shows for every file it reads or writes."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    if _volume.verbose:
        logging.set_verbosity_info()


Steps = Callable[[int, int, Mapping[str, Any]], None]  # done, of how many, what there is to show


@contextmanager
def progress(title: str) -> Iterator[Progress]:
    """Progress of work that has nothing to show but how much is done."""
    with _steps(title) as shown:
        yield lambda done, total: shown(done, total, {})


@contextmanager
def _steps(title: str) -> Iterator[Steps]:
    """A bar with time left on stderr; where that is no terminal, a line every ten seconds; with `--quiet` nothing."""
    if _volume.quiet or not sys.stderr.isatty():
        yield _nothing if _volume.quiet else _Lines(title)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    look = (
        TextColumn(title),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[facts]}"),
        TimeRemainingColumn(),
    )
    with Progress(*look, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, facts="")
        yield lambda done, total, facts: bar.update(task, completed=done, total=total, facts=_in_words(facts))


def _nothing(_done: int, _total: int, _facts: Mapping[str, Any]) -> None:
    """No progress is wanted."""


@dataclass
class _Lines:
    """Progress for a file or a pipe: `localizing: 12 of 40, loss 0.5123, 1:20 left`."""

    title: str
    began: float = field(default_factory=lambda: time.monotonic())
    last: float = field(default_factory=lambda: time.monotonic())

    def __call__(self, done: int, total: int, facts: Mapping[str, Any]) -> None:
        now = time.monotonic()
        if now - self.last < LINE_SECONDS:
            return
        self.last = now
        left = (now - self.began) * (total - done) / done if done else None
        parts = [f"{done:,} of {total:,}", _in_words(facts), f"{_clock(left)} left" if left is not None else ""]
        print(f"{self.title}: {', '.join(filter(None, parts))}", file=sys.stderr, flush=True)


def _in_words(facts: Mapping[str, Any]) -> str:
    loss = facts.get("loss")
    return f"loss {loss:.4f}" if isinstance(loss, float) else ""


def _clock(seconds: float) -> str:
    """1:20 or 2:03:07."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@contextmanager
def plain_log() -> Iterator[None]:
    """Warnings of a long-running verb as lines on stderr, each with its time."""
    import logging

    log = logging.getLogger("skillgraft")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s: %(message)s"))
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def outcome(written: WrittenFolder) -> dict[str, Any]:
    """What apply and remove did, for machines."""
    return {
        "out": str(written.path),
        "entries": written.entries,
        "whole_tensors": list(written.whole),
        "left_out": list(written.left_out),
        "digests": dict(written.digests),
    }


def amounts(written: WrittenFolder) -> str:
    """`633 entries and 1 whole tensor`."""
    return f"{counted(written.entries, 'entry', 'entries')} and {counted(len(written.whole), 'whole tensor')}"


def digest_lines(digests: Mapping[str, str]) -> list[str]:
    """Which grafts these are: names can be given to anything, a digest to one content only."""
    return [f"digest of {file}: {digest}" for file, digest in digests.items()]


@contextmanager
def running(title: str, **options: Any) -> Iterator[Runtime]:
    """How the verb's call runs: on the device and in the format that were asked for, with a progress bar."""
    from skillgraft.opening.runtime import Runtime

    only_our_progress()
    with _steps(title) as shown:
        yield Runtime(progress=shown, command=command_line(), **options)


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
