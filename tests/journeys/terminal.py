"""The terminal of a new user: commands as they are typed, each a process of its own, in one folder."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Terminal:
    """`terminal("skillgraft diff BASE TUNED")` gives what it prints; another exit code than 0 must be expected."""

    folder: Path

    def __call__(self, line: str, *, code: int = 0) -> str:
        ended = self._ran(line)
        assert ended.returncode == code, f"$ {line}\n{ended.stdout}{ended.stderr}"
        assert "Traceback" not in ended.stderr, ended.stderr
        return ended.stdout + ended.stderr

    def json(self, line: str) -> dict[str, Any]:
        """What the command prints with --json: one object and nothing else."""
        ended = self._ran(f"{line} --json")
        assert ended.returncode == 0, f"$ {line}\n{ended.stdout}{ended.stderr}"
        found = json.loads(ended.stdout)
        assert isinstance(found, dict)
        return found

    def _ran(self, line: str) -> subprocess.CompletedProcess[str]:
        first, *words = shlex.split(line)
        assert first == "skillgraft"
        return subprocess.run(
            [sys.executable, "-m", "skillgraft", *words], cwd=self.folder, env={**os.environ, "HF_HUB_OFFLINE": "1"},
            capture_output=True, text=True, check=False, timeout=900,
        )  # fmt: skip

    def digest(self, name: str) -> str:
        """`sha256sum NAME/model.safetensors`."""
        return sha256((self.folder / name / "model.safetensors").read_bytes()).hexdigest()

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")
