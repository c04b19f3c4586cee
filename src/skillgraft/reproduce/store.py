"""What steps made, on disk: one folder per step, complete or not there, found again by the step's key.

STORE/tune-3f0c…/            artefacts and step.json (what made them, how long it took)
STORE/tune-3f0c….work/       unfinished: the next run goes on there
STORE/.locks/tune-3f0c…      held by the process that works on it
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skillgraft import atomic
from skillgraft.reproduce.step import Step
from skillgraft.versions import versions

RECORD = "step.json"
LOCKS = ".locks"


@dataclass(frozen=True)
class Store:
    """A folder of steps' artefacts. Several processes may use one."""

    folder: Path

    def path(self, step: Step) -> Path:
        return self.folder / f"{step.job}-{step.key[:16]}"

    def has(self, step: Step) -> bool:
        return (self.path(step) / RECORD).is_file()

    def record(self, step: Step) -> dict[str, Any]:
        """What is written about a finished step: its settings, its seconds, the versions."""
        found: dict[str, Any] = json.loads((self.path(step) / RECORD).read_text(encoding="utf-8"))
        return found

    @contextmanager
    def making(self, step: Step) -> Iterator[Path]:
        """Yields the folder to fill; what an interrupted run left in it is still there. On success it takes its place."""
        target = self.path(step)
        work = target.with_name(f"{target.name}.work")
        with atomic.locked(self.folder / LOCKS / target.name):
            if self.has(step):  # another process was faster
                yield work
                return
            work.mkdir(parents=True, exist_ok=True)
            began = time.monotonic()
            yield work
            about = {
                "job": step.job, "key": step.key, "settings": dict(step.settings),
                "needs": {role: needed.key for role, needed in step.needs.items()},
                "seconds": round(time.monotonic() - began, 2), "versions": versions(),
            }  # fmt: skip
            (work / RECORD).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
            work.rename(target)
