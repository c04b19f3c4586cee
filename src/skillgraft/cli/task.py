"""skillgraft task"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skillgraft.cli import output
from skillgraft.cli.arguments import Json
from skillgraft.cli.panels import PanelCommand

app = typer.Typer(
    no_args_is_help=True,
    help="""Make a task file for your own data.

\b
Example
  skillgraft task init reviews.csv -o reviews.toml""",
)


@app.callback()
def _several() -> None:
    """Keeps `init` a word of its own."""


@app.command("init", cls=PanelCommand)
def init(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="CSV, TSV, JSONL, Parquet, or a folder of images by label.")
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="The task file to write; must not exist.")] = Path(
        "task.toml"
    ),
    name: Annotated[str | None, typer.Option(help="What to call the task (by default after the data).")] = None,
    json: Json = False,
) -> None:
    """Write a task file for DATA: guess columns, labels, delimiter and readout, and say what was chosen and why.

    \b
    Example
      skillgraft task init reviews.csv -o reviews.toml
    """
    from skillgraft.files import atomic
    from skillgraft.tasks.examples import read_examples
    from skillgraft.tasks.init import guess_task
    from skillgraft.tasks.task_file import load_task

    atomic.check_target(out)
    guess = guess_task(data, beside=out.parent, name=name)
    with atomic.new_file(out) as temporary:
        temporary.write_text(guess.text, encoding="utf-8")
    task = load_task(out)
    rows = {split: len(read_examples(task, split)) for split in ("train", "test")}
    commands = _commands(out)
    facts = {
        "out": str(out), "name": task.name, "kind": task.kind, "labels": list(task.labels), "rows": rows, "why": guess.why,
        "next": commands,
    }  # fmt: skip
    classes = f", {len(task.labels)} classes" if task.labels else ""
    head = f"{out}: task {task.name!r}, {rows['train']:,} training rows and {rows['test']:,} test rows{classes}"
    lines = [head, *(f"  {line}" for line in guess.why), "", "next, with the model to tune in the place of BASE:"]
    output.show(facts, as_json=json, lines=[*lines, *(f"  {command}" for command in commands)])


def _commands(task: Path) -> list[str]:
    return [
        f"skillgraft finetune BASE --task {task} --optimizer adamw --lr 1e-4 --steps 200 --batch-size 8 -o TUNED",
        f"skillgraft localize BASE TUNED --task {task} --density 1e-3 -o skill.safetensors",
        f"skillgraft evaluate BASE --task {task} --tuned TUNED --graft skill.safetensors",
    ]
