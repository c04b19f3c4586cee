"""skillgraft demo"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from skillgraft.cli import output
from skillgraft.cli.arguments import Json


def run(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Where everything goes.")] = Path("demo"),
    base: Annotated[str | None, typer.Option(metavar="BASE", help="Another model folder than the bundled one.")] = None,
    json: Json = False,
) -> None:
    """See the whole idea on a real model in a few minutes.

    It tunes, localizes, grafts, combines, forgets, and writes a report.

    \b
    Example
      skillgraft demo -o demo

    A small sentence encoder and three starter tasks come with the package; nothing is downloaded. Run again, it takes seconds.
    """
    from skillgraft.papers.demo import demo

    output.only_our_progress()
    with output.progress("demo") as bar:
        made = demo(out, base=base, on_step=lambda _step, done, total: bar(done, total))
    sizes = {str(path): path.stat().st_size for path in made.grafts.values()}
    (scores, *_) = made.result.sheets
    cells = {row: {task: scores.cells[row, task].value for task in scores.columns} for row in scores.rows}
    table = [(row, *(f"{100 * (value or 0.0):.1f}" for value in cells[row].values())) for row in scores.rows]
    named = ["--name", "MiniLM"] if base is None else []
    studio = shlex.join(["skillgraft", "studio", made.base, "--skills", str(made.skills), *named])
    lines = [
        *output.columns(table, header=["accuracy", *scores.columns]),
        "",
        *output.columns([(path, output.human_bytes(size)) for path, size in sizes.items()]),
        "",
        f"report: {made.page}",
        f"{studio}: try it",
    ]
    facts = {"scores": cells, "grafts": sizes, "report": str(made.page), "studio": studio}
    output.show(facts, as_json=json, lines=lines)
