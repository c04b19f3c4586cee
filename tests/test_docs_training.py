"""docs/training.md, docs/concepts.md and the sections `finetune` and `evaluate` of docs/cli.md tell the truth."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from skillgraft import load
from skillgraft.cli.main import app
from skillgraft.training.plan import _CHOICES, RECIPES, TrainingPlan
from skillgraft.values.names import layer_of
from tests.compose.toy_tasks import place, tasks  # noqa: F401
from tests.test_docs_tasks import first_cells, write_example

# pytest passes fixtures by their names, which are imported here
# ruff: noqa: F811

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "training.md").read_text(encoding="utf-8")
CLI = (DOCS / "cli.md").read_text(encoding="utf-8")


def section(page: str, title: str) -> str:
    return page.split(f"## {title}\n")[1].split("\n## ")[0]


def started(place: Path, *words: str) -> str:
    ended = subprocess.run([sys.executable, *words], cwd=place, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.long
def test_the_python_code_runs_and_the_folder_is_as_described(tmp_path: Path) -> None:
    place = write_example(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    started(place, "-c", code)
    written = {path.name for path in (place / "TUNED").iterdir()}
    ours = first_cells(section(PAGE, "The output"))
    assert ours <= written
    others = {path.name for path in (place / "BASE").iterdir()} - ours
    assert written == ours | others
    found = json.loads(
        started(place, "-m", "skillgraft", "evaluate", "BASE", "--task", "reviews.toml", "--tuned", "TUNED", "--json")
    )
    models = found["tasks"]["reviews"]
    rows = section(CLI, "evaluate").split("JSON fields")[1].split("| error |")[0]
    compared = {"agreement", "share_kept", "relative_gain"}
    of_completions = {
        "cut_rows", "cut_tokens", "exact_match", "exact_match_kept", "perplexity", "token_accuracy", "tokens", "contains",
    }  # fmt: skip
    assert models["base"].keys() | compared | {"gain"} | of_completions == first_cells(rows)
    assert set(found) == set(re.findall(r"`(\w+)`", rows.split(". ")[0]))


@pytest.mark.long
def test_skills_that_add_up(place: Path, tasks: list[Path]) -> None:
    tiny = {"sst2": "films", "trec": "animals", "BASE": "encoder", "256": "20", "1536": "40", "250": "5"}
    (shell,) = re.findall(r"```sh\n(.*?)```", section(PAGE, "Skills that add up"), re.DOTALL)
    for word, ours in tiny.items():
        assert word in shell
        shell = shell.replace(word, ours)
    shell = re.sub(r"--task (\S+)", r"--task \1.toml", shell).replace("skillgraft ", f"{sys.executable} -m skillgraft ")
    assert {"films.toml", "animals.toml"} <= {file.name for file in tasks}
    ended = subprocess.run(["bash", "-ec", shell], cwd=place, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    both = load(place / "both.safetensors")
    assert {layer_of(name) for name in both.region} == {"encoder.layer.1"}


def test_the_settings_are_the_plans() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", section(PAGE, "Settings"), re.MULTILINE)
    assert dict(rows) == {name: str(value) for name, value in TrainingPlan().as_dict().items()}


def test_the_methods_and_recipes_are_all_there() -> None:
    assert first_cells(section(PAGE, "What trains and what is frozen")) == set(_CHOICES["method"])
    assert first_cells(section(PAGE, "Recipes")) == set(RECIPES)


@pytest.mark.parametrize("verb", ["finetune", "evaluate"])
def test_every_option_is_described(verb: str) -> None:
    command = typer.main.get_command(app).commands[verb]  # type: ignore[attr-defined]
    hidden_or_shared = {"--json", "--out", "-o", "--help"}
    options = {
        name
        for parameter in command.params
        if not getattr(parameter, "hidden", False)
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("-")
    }
    described = {name.split()[0] for name in first_cells(section(CLI, verb)) if name.startswith("--")}
    assert options - hidden_or_shared == described
