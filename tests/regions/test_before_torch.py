"""What needs no model is refused before torch is imported: in a tenth of a second, not in three."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HEAVY = ("torch", "transformers", "accelerate", "peft")
RUN = """
import json, sys
from skillgraft.cli.main import main
heavy, sys.argv = json.loads(sys.argv[1]), ["skillgraft", *sys.argv[2:]]
try:
    main()
except SystemExit as ended:
    print(json.dumps({"code": ended.code, "imported": [name for name in heavy if name in sys.modules]}))
"""


def run_alone(folder: Path, *words: object) -> tuple[dict[str, Any], str]:
    """The command in an interpreter of its own: how it ended, which heavy packages it imported, and its error."""
    command = [sys.executable, "-c", RUN, json.dumps(HEAVY), *map(str, words)]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return json.loads(ended.stdout), ended.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("BASE",), "the method 'budgeted' compares BASE with TUNED: give the fine-tuned folder as well"),
        (("BASE", "--method", "lerned"), "unknown method 'lerned'; did you mean 'learned'"),
        (
            ("BASE", "TUNED", "--method", "lowest-fischer"),
            "unknown method 'lowest-fischer'; did you mean 'lowest-fisher'",
        ),
        (("BASE", "TUNED", "--method", "lowest-fisher"), "the method 'lowest-fisher' looks at BASE alone"),
        (("BASE", "TUNED"), "a skill is a task's: give --task"),
        (("BASE", "TUNED", "--density", 2), "a density is a share of the scope"),
        (("BASE", "TUNED", "--density", 0.1, "--entries", 5), "not both; found 0.1 and 5"),
        (("BASE", "TUNED", "--curve", "--paper-curve"), "ask for one at a time"),
        (("BASE", "TUNED", "--task", "sst-2"), "did you mean 'sst2'"),
        (("BASE", "TUNED", "--task", "reviews", "--shots", 4, "--train-rows", 8), "exclude each other"),
    ],
)
def test_a_wrong_call_is_refused_before_torch_is_imported(
    tmp_path: Path, words: tuple[object, ...], message: str
) -> None:
    ended, error = run_alone(tmp_path, "localize", *words, "-o", "x")
    assert message in error
    assert ended == {"code": 2, "imported": []}


def test_an_output_that_is_there_too(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("mine")
    ended, error = run_alone(tmp_path, "localize", "BASE", "TUNED", "-o", "x")
    assert "exists already" in error
    assert ended == {"code": 2, "imported": []}


def test_this_would_notice_torch(tmp_path: Path) -> None:
    """A call that can only be refused by whoever knows the methods' own settings."""
    words = ("localize", "BASE", "TUNED", "--task", "reviews", "--keep", 1.5, "-o", "x")
    ended, error = run_alone(tmp_path, *words)
    assert "a share to keep lies between 0 and 1" in error
    assert ended["code"] == 2
    assert "torch" in ended["imported"]
