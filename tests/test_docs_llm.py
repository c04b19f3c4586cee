"""docs/llm.md tells the truth: its commands and its code run as they stand, on a tiny Llama."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.model_folders import same_weights
from tests.readouts import making

PAGE = (Path(__file__).parents[1] / "docs" / "llm.md").read_text(encoding="utf-8")


@pytest.mark.long
def test_the_page_runs_from_top_to_bottom(tmp_path: Path) -> None:
    making.llama(tmp_path / "BASE")
    ((name, rows),) = re.findall(r"^`([\w.]+)`:\n\n```text\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)
    (tmp_path / name).write_text(rows, encoding="utf-8")
    for language, text in re.findall(r"```(sh|python)\n(.*?)```", PAGE, re.DOTALL):
        commands = (
            [["-c", text]] if language == "python" else [["-m", *shlex.split(line)] for line in text.splitlines()]
        )
        for command in commands:
            ended = subprocess.run(
                [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=False
            )
            assert ended.returncode == 0, (command, ended.stderr)
    assert same_weights(tmp_path / "BACK", tmp_path / "BASE")
    assert not same_weights(tmp_path / "GRAFTED", tmp_path / "BASE")
    assert "Answers side by side" in (tmp_path / "page.html").read_text(encoding="utf-8")
