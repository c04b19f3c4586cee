"""`skillgraft …` as the tests run it: in this process, or as processes of their own."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from skillgraft.cli import output
from skillgraft.cli.main import main


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one object on stdout; anything beside it is a failure."""
        assert self.err == ""
        assert self.out.count("\n") == 1
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found


Run = Callable[..., Ended]


def runner(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `skillgraft …` in this process, in that folder."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(output, "LINE_SECONDS", math.inf)  # however busy the machine is, stderr stays empty

    def run_here(*words: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["skillgraft", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        written = capsys.readouterr()
        return Ended(int(ended.value.code or 0), written.out, written.err)

    return run_here


def command(*words: object, processes: int = 1) -> list[str]:
    """`python -m skillgraft …`, launched by accelerate where several processes are wanted."""
    launch = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", str(processes), "--num_machines", "1",
              "--mixed_precision", "no", "--dynamo_backend", "no"] if processes > 1 else []  # fmt: skip
    return [sys.executable, *launch, "-m", "skillgraft", *map(str, words)]


def start(folder: Path, *words: object, processes: int = 1) -> subprocess.Popen[str]:
    """The command under way in that folder, in a process group of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(
        command(*words, processes=processes), cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
