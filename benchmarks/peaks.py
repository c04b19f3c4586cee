"""Peak anonymous memory of a job in a process of its own.

Mapped files do not count: the system takes those pages back whenever it wants. The job's process is started afresh (a forked one
would begin with this one's memory); this one reads its RssAnon from /proc every 5 ms.
"""

from __future__ import annotations

import multiprocessing
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from measuring import MEGABYTE
from skillgraft.errors import RunError

_SAMPLE_SECONDS = 0.005


@dataclass(frozen=True)
class Peak:
    """Anonymous memory of one job in MB: after its imports, and at its highest."""

    baseline: float
    peak: float


def peak_of(job: Callable[..., object], *arguments: Any) -> Peak:
    """Run `job(*arguments)`, a function at the top of its module; importing that module is not part of the job."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_run, args=(theirs, job, *arguments))
    child.start()
    theirs.close()
    try:
        ours.recv()
        baseline = peak = _anonymous(child.pid)
        ours.send("go")
        while not ours.poll(_SAMPLE_SECONDS):
            peak = max(peak, _anonymous(child.pid))
        ours.recv()
    except EOFError:
        raise RunError(f"{job.__name__} failed; its own message stands above") from None
    finally:
        child.join()
    return Peak(baseline, peak)


def peak_of_command(program: Sequence[str]) -> float:
    """The highest anonymous memory in MB of a command while it runs; a command that fails is an error."""
    with subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child:
        peak = 0.0
        while child.poll() is None:
            peak = max(peak, _anonymous(child.pid))
            time.sleep(_SAMPLE_SECONDS)
        if child.returncode:
            found = child.stderr.read().decode(errors="replace") if child.stderr else ""
            raise RunError(f"{program[0]} failed with exit code {child.returncode}: {found[-500:]}")
    return peak


def _run(parent: Connection, job: Callable[..., object], *arguments: Any) -> None:
    """The child: says when its imports are done, waits, works, says when it has finished."""
    parent.send("ready")
    parent.recv()
    job(*arguments)
    parent.send("done")


def _anonymous(process: int | None) -> float:
    """RssAnon of a process in MB."""
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    line = next((line for line in status.splitlines() if line.startswith("RssAnon")), "RssAnon: 0 kB")
    return int(line.split()[1]) * 1024 / MEGABYTE
