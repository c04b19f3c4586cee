"""How long `import skillgraft` and `skillgraft --help` take, as whole processes, nothing subtracted."""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

from measuring import Figure, Measured, Settings, command, interleaved

_PROCESSES = 10
_COMMANDS = {
    "import": [sys.executable, "-c", "import skillgraft"],
    "help": [str(Path(sys.executable).parent / "skillgraft"), "--help"],
    "bare python": [sys.executable, "-c", ""],
}


def measure(settings: Settings) -> Measured:
    """import and help: median seconds of ten processes each; an empty Python process stands beside them for information."""
    jobs = {name: lambda program=program: _run(program) for name, program in _COMMANDS.items()}
    seconds = interleaved(jobs, rounds=2 if settings.small else _PROCESSES)
    bare = statistics.median(seconds["bare python"])
    figures = {
        name: Figure(statistics.median(seconds[name]), f"lowest {min(seconds[name]):.3f} s; Python alone {bare:.3f} s")
        for name in ("import", "help")
    }
    return Measured(figures, {"seconds": seconds})


def _run(program: list[str]) -> None:
    subprocess.run(program, check=True, capture_output=True)


if __name__ == "__main__":
    command("startup", measure)
