"""skillgraft export"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from skillgraft.cli import output
from skillgraft.cli.arguments import GraftFile, Json, Out
from skillgraft.errors import InputError


class Format(StrEnum):
    """What a graft can become."""

    patch = "patch"
    checkpoint = "checkpoint"


def run(
    graft: GraftFile,
    to: Annotated[Format, typer.Option(help="patch: sparse weight update; checkpoint: a model folder.")],
    out: Out,
    base: Annotated[
        Path | None, typer.Option(metavar="BASE", help="The base; a patch then has its tensor names.")
    ] = None,
    json: Json = False,
) -> None:
    """Write a graft for other programs.

    \b
    Examples
      skillgraft export skill.safetensors --to patch --base BASE -o patch.safetensors
      skillgraft export skill.safetensors --to checkpoint --base BASE -o GRAFTED
    """
    from skillgraft.folders.apply import apply
    from skillgraft.interop.export import export_patch

    loaded = output.load_graft(graft)
    if to is Format.patch:
        export_patch(loaded, out, base=base)
    elif base is None:
        raise InputError("a checkpoint needs the base that the graft goes on: add --base BASE")
    else:
        apply(base, graft, out=out)
    facts = {"out": str(out), "to": to.value, "entries": len(loaded), "heads": list(loaded.heads)}
    output.show(facts, as_json=json, lines=[f"{out}: {len(loaded):,} entries as a {to.value}"])
