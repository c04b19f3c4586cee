"""docs/localize.md tells the truth: its code runs, its tables name what there is."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

from skillgraft import TrainingPlan, finetune, localize_live
from skillgraft.cli.localize import METHODS, run
from tests.test_docs_tasks import first_cells, write_example

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "localize.md").read_text(encoding="utf-8")
CLI = (DOCS / "cli.md").read_text(encoding="utf-8").split("## localize\n")[1].split("\n## ")[0]


def test_the_code_runs(tmp_path: Path) -> None:
    folder = write_example(tmp_path)
    plan = TrainingPlan(optimizer="adamw", lr=3e-3, batch_size=4, steps=30, checkpoint_every=10)
    finetune(folder / "BASE", [folder / "reviews.toml"], out=folder / "TUNED", plan=plan)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    printed = []
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        command = [sys.executable, "-c", code]
        ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        printed.append(ended.stdout.splitlines())
    with_graft, without = (float(line.split()[0]) for line in printed[0])
    assert with_graft < without / 2
    assert any(line.startswith("step-000010 ") for line in printed[1])


def test_every_argument_is_described() -> None:
    described = set(re.findall(r"`(\w+)[(`]", " ".join(re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE))))
    named = {name for name in inspect.signature(localize_live).parameters if name != "asked"}
    assert named <= described


def test_every_option_of_the_command_is_described() -> None:
    options = {name.replace("_", "-") for name in inspect.signature(run).parameters}
    options -= {"base", "tuned", "out", "json", "task", "method", "snapshot-seconds"}
    assert options <= set(re.findall(r"--([a-z0-9-]+)", CLI))
    described = first_cells(CLI.split("| method |")[1].split("| option |")[0])
    assert described == set(re.findall(r"[a-z]+(?:-[a-z]+)*(?=[,.;])", METHODS.replace("from BASE alone: ", "")))
