"""docs/tasks.md tells the truth: its example runs as it stands, and its tables have every key, filter and kind of file."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from skillgraft.tasks.completions import COMPLETE_KEYS
from skillgraft.tasks.prompt import FILTERS, LIMIT
from skillgraft.tasks.sources import READERS
from skillgraft.tasks.task_file import TASK_KEYS
from skillgraft.tasks.wording import DESCRIBE_KEYS, PROMPT_KEYS
from tests.readouts import making

PAGE = (Path(__file__).parents[1] / "docs" / "tasks.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def first_cells(text: str) -> set[str]:
    """Everything in backticks in the first column of the tables."""
    return {name for row in re.findall(r"^\| (.*?) \|", text, re.MULTILINE) for name in re.findall(r"`([^`]+)`", row)}


def write_example(folder: Path) -> Path:
    """The page's files, and a tiny sentence encoder as BASE."""
    files = re.findall(r"^`([\w.]+)`:\n\n```\w+\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)
    assert [name for name, _ in files] == ["reviews.toml", "train.csv", "test.csv"]
    for name, content in files:
        (folder / name).write_text(content, encoding="utf-8")
    making.sentence_encoder(folder / "BASE")
    return folder


@pytest.mark.long
def test_the_example_runs(tmp_path: Path) -> None:
    place = write_example(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (shell,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    commands = [["-c", code], *(["-m", *shlex.split(line)] for line in shell.splitlines())]
    for command in commands:
        ended = subprocess.run([sys.executable, *command], cwd=place, capture_output=True, text=True, check=False)
        warned = [
            line for line in ended.stderr.splitlines() if not line.endswith(" left")
        ]  # progress, on a slow machine
        assert (ended.returncode, warned) == (0, []), command
    assert (place / "TUNED" / "model.safetensors").is_file()


def test_every_key_is_described() -> None:
    top, prompt, describe = re.split(r"^`\[.*$", section("Keys"), maxsplit=2, flags=re.MULTILINE)
    assert first_cells(top) - {"complete"} == set(TASK_KEYS)
    assert first_cells(section("Prompts that are completed")) == set(COMPLETE_KEYS)
    assert first_cells(prompt) == set(PROMPT_KEYS)
    assert first_cells(describe) == set(DESCRIBE_KEYS)


def test_every_filter_and_kind_of_file_is_described() -> None:
    assert {name.partition(":")[0] for name in first_cells(section("Templates"))} == {*FILTERS, LIMIT}
    named = first_cells(section("Sources"))
    assert all(any(name.endswith(ending.removesuffix(".gz")) for name in named) for ending in READERS)
