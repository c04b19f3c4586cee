"""skillgraft upload"""

from __future__ import annotations

from typing import Annotated

import typer

from skillgraft.cli import output
from skillgraft.cli.arguments import GraftFile, Json


def run(
    graft: GraftFile,
    name: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="The repository; made if it is not there.")],
    private: Annotated[bool, typer.Option("--private", help="A new repository is private.")] = False,
    licence: Annotated[
        str | None, typer.Option("--licence", "--license", help="For the card: mit, apache-2.0 …")
    ] = None,
    message: Annotated[str | None, typer.Option("--message", help="What the revision's history says.")] = None,
    json: Json = False,
) -> None:
    """Put a graft on the Hugging Face Hub, with a card.

    The card has the base, digest, scores, licence, and how to use the graft.

    \b
    Example
      skillgraft upload skill.safetensors me/sst2-skill --licence mit
    """
    from skillgraft.folders.hub import upload

    loaded = output.load_graft(graft)
    address = upload(loaded, name, private=private, licence=licence, message=message)
    facts = {"out": address, "name": name, "entries": len(loaded), "digest": loaded.digest}
    output.show(facts, as_json=json, lines=[f"{address}: {len(loaded):,} entries"])
