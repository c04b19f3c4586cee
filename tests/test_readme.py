"""The documents tell the truth: their code runs, their tables and trees are those of the program."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import skillgraft
from skillgraft.cli.main import app

from .model_folders import real_model, same_weights

ROOT = Path(__file__).parents[1]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
README, CLI = (ROOT / "README.md").read_text(encoding="utf-8"), (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
SOURCE = Path(skillgraft.__file__).parent
VERBS = {each.name or "" for each in (*app.registered_commands, *app.registered_groups)}


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders that the README speaks of: a tiny base and two fine-tunes of it."""
    folder = tmp_path_factory.mktemp("models")
    base = real_model("BertForSequenceClassification", folder / "BASE")
    for seed, name in enumerate(("TUNED", "OTHER"), start=1):
        real_model("BertForSequenceClassification", folder / name, base=base, seed=seed)
    return folder


@pytest.fixture
def folder(models: Path, tmp_path: Path) -> Path:
    for model in models.iterdir():
        (tmp_path / model.name).symlink_to(model)
    return tmp_path


def test_the_shell_commands_run(folder: Path) -> None:
    lines = [line for block in blocks(README, "sh") for line in block.splitlines() if line.startswith("skillgraft ")]
    assert len(lines) >= 4
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        command = [sys.executable, "-m", "skillgraft", *words]
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stderr) == (0, ""), line
    assert same_weights(folder / "BACK", folder / "BASE")
    assert not same_weights(folder / "GRAFTED", folder / "BASE")


def test_the_python_code_runs(folder: Path) -> None:
    """Every block is a program of its own, run in the order of the page, in one folder."""
    code = blocks(README, "python")
    assert len(code) >= 3
    for block in code:
        ended = subprocess.run([sys.executable, "-c", block], cwd=folder, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
    assert same_weights(folder / "BACK", folder / "BASE")


def tree(text: str) -> set[str]:
    """The paths that an indented tree names, relative to its root; a folder ends with a slash."""
    paths, above = set(), {0: ""}
    for line in text.splitlines()[1:]:
        name, depth = line.split()[0], (len(line) - len(line.lstrip())) // 2
        paths.add(above[depth - 1] + name)
        above[depth] = above[depth - 1] + name
    return paths


def test_the_tree_is_the_real_one() -> None:
    (shown,) = blocks(CONTRIBUTING, "text")
    files = {path.relative_to(SOURCE) for path in SOURCE.rglob("*.py") if path.name != "__init__.py"}
    folders = {f"{parent}/" for path in files for parent in path.parents if str(parent) != "."}
    real = {str(path) for path in files} | folders | {"__init__.py", "tasks/catalogue/"}
    assert tree(shown) == real, "CONTRIBUTING.md: bring the tree under `The source` up to date"


def test_every_line_of_the_tree_has_a_phrase() -> None:
    (shown,) = blocks(CONTRIBUTING, "text")
    assert [line for line in shown.splitlines()[1:] if len(line.split()) < 2] == []


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 160


def test_the_table_of_verbs_is_complete() -> None:
    table = README.split("## Verbs")[1].split("\n## ")[0]
    cells = re.findall(r"^\|(.+?)\|", table, flags=re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(cells))) == VERBS


def test_the_command_line_page_has_every_verb_and_its_example() -> None:
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", CLI, flags=re.DOTALL | re.MULTILINE))
    assert sections.keys() >= VERBS
    for verb in VERBS:
        assert f"skillgraft {verb}" in sections[verb], verb
        assert "JSON fields: `" in sections[verb], verb


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/cli.md"])
def test_files_that_a_page_names_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for name in re.findall(r"`((?:docs|tests)/[\w./-]+\.\w+)`", text):
        assert (ROOT / name).exists(), name
