"""skillgraft combine"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skillgraft.cli import output
from skillgraft.cli.arguments import GraftFiles, Head, Json, Out


def run(
    grafts: GraftFiles,
    out: Out,
    rule: Annotated[str, typer.Option(help="sum or union.")] = "sum",
    conflict: Annotated[
        str, typer.Option(help="Where grafts of a union overlap: refuse, first, largest, mean.")
    ] = "refuse",
    scale: Annotated[float, typer.Option(help="Times how much, after the rule; -1 negates.")] = 1.0,
    inside: Annotated[Path | None, typer.Option(metavar="R", help="Keep only the entries in this region.")] = None,
    outside: Annotated[
        Path | None, typer.Option(metavar="R", help="Keep only the entries outside this region.")
    ] = None,
    head: Head = None,
    json: Json = False,
) -> None:
    """Make one graft of several: add, subtract, unite, restrict.

    \b
    Examples
      skillgraft combine a.safetensors b.safetensors -o both.safetensors
      skillgraft combine a.safetensors --scale -1 -o minus-a.safetensors
      skillgraft combine a.safetensors b.safetensors --rule union --conflict largest -o either.safetensors
      skillgraft combine a.safetensors --outside b.safetensors -o a-without-b.safetensors
    """
    from skillgraft import atomic, graft_file
    from skillgraft.compose.rules import combine

    atomic.check_target(out)
    parts = [output.load_graft(path) for path in grafts]
    result = combine(parts, rule=rule, conflict=conflict, head=output.load_graft(head) if head else None)
    if inside:
        result = result & graft_file.load_region(inside)
    if outside:
        result = result.outside(graft_file.load_region(outside))
    result = result if scale == 1.0 else scale * result
    recipe = {"rule": rule, "conflict": conflict, "scale": scale, "grafts": [part.digest for part in parts]}
    graft_file.save(result.with_info(recipe=recipe, command=output.command_line()), out)
    facts = {"out": str(out), "entries": len(result), "density": result.region.density, "form": result.form}
    lines = [f"{out}: {len(result):,} entries, density {result.region.density:.2e}, {result.form} form"]
    output.show({**facts, "rule": rule, "scale": result.scale}, as_json=json, lines=lines)
