"""docs/tutorial.md tells the truth: its commands and its code run as they stand, one after the other."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.model_folders import same_weights
from tests.test_docs_tasks import write_example

PAGE = (Path(__file__).parents[1] / "docs" / "tutorial.md").read_text(encoding="utf-8")


@pytest.mark.long
def test_the_page_runs_from_top_to_bottom(tmp_path: Path) -> None:
    place = write_example(tmp_path)
    blocks = re.findall(r"```(sh|python)\n(.*?)```", PAGE, re.DOTALL)
    assert {language for language, _ in blocks} == {"sh", "python"}
    for language, text in blocks:
        commands = (
            [["-c", text]] if language == "python" else [["-m", *shlex.split(line)] for line in text.splitlines()]
        )
        for command in commands:
            ended = subprocess.run([sys.executable, *command], cwd=place, capture_output=True, text=True, check=False)
            assert ended.returncode == 0, (command, ended.stderr)
    assert same_weights(place / "BACK", place / "BASE")
    assert not same_weights(place / "GRAFTED", place / "BASE")
    assert "<table" in (place / "page.html").read_text(encoding="utf-8")
