"""docs/report.md tells the truth: its code runs, and its names exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from skillgraft.report import value_sheets

DOCUMENT = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", DOCUMENT, flags=re.DOTALL))
def test_the_code_runs(runs: Path, tmp_path: Path, code: str) -> None:
    (tmp_path / "runs").symlink_to(runs)
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert len(list(tmp_path.iterdir())) > 1


def test_the_functions_exist() -> None:
    named = re.findall(r"`(\w+_sheet)`", DOCUMENT)
    assert len(named) == 11
    assert all(callable(getattr(value_sheets, name)) for name in named)
