"""skillgraft download"""

from __future__ import annotations

from typing import Annotated

import typer

from skillgraft.cli import output
from skillgraft.cli.arguments import Json, Out


def run(
    name: Annotated[
        str, typer.Argument(metavar="OWNER/NAME", help="The repository; with @revision and :file where that matters.")
    ],
    out: Out,
    json: Json = False,
) -> None:
    """Fetch a graft from the Hugging Face Hub into a file.

    Verbs that read a graft take its hub name too.

    \b
    Example
      skillgraft download me/sst2-skill -o skill.safetensors
    """
    from skillgraft.folders.hub import download

    graft = download(name, out)
    facts = {"out": str(out), "name": name, "entries": len(graft), "bytes": out.stat().st_size, "digest": graft.digest}
    output.show(facts, as_json=json, lines=[f"{out}: {graft!r} for {graft.info.text('base') or 'an unnamed base'}"])
