"""skillgraft remove"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skillgraft.cli import output
from skillgraft.cli.arguments import GraftFiles, Json, NoSync, Out


def run(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that `skillgraft apply` wrote.")],
    grafts: GraftFiles,
    out: Out,
    no_sync: NoSync = False,
    json: Json = False,
) -> None:
    """Write a copy of a grafted folder without these grafts.

    The old numbers come back bit for bit. Grafts that overlap come off only together.

    \b
    Example
      skillgraft remove GRAFTED skill.safetensors -o BACK
    """
    from skillgraft.folders.apply import remove

    with output.progress("removing") as progress:
        outcome = remove(folder, *grafts, out=out, sync=not no_sync, progress=progress)
    lines = [f"{out}: {output.amounts(outcome)} put back"]
    lines += output.digest_lines(outcome.digests)
    output.show(output.outcome(outcome), as_json=json, lines=lines)
