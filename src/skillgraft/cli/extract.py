"""skillgraft extract"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skillgraft.cli import output
from skillgraft.cli.arguments import Base, Json, Out
from skillgraft.errors import listed


def run(
    base: Base,
    tuned: Annotated[
        Path, typer.Argument(metavar="TUNED", help="Folder of the fine-tuned model, or of a LoRA adapter.")
    ],
    out: Out,
    budget: Annotated[float | None, typer.Option(help="How many entries: a density (1e-4) or a count (8500).")] = None,
    region: Annotated[
        Path | None, typer.Option(metavar="R", help="Take exactly this region (a region or graft file).")
    ] = None,
    scope: Annotated[
        str | None, typer.Option(help="layers (default), upper:layers, biases, all, or a name pattern.")
    ] = None,
    convert: Annotated[bool, typer.Option("--convert", help="Round TUNED to BASE's number format.")] = False,
    json: Json = False,
) -> None:
    """Lift a skill out of a fine-tuned model, into a graft file.

    \b
    Examples
      skillgraft extract BASE TUNED -o skill.safetensors                 all that changed: apply gives TUNED bit for bit
      skillgraft extract BASE TUNED --budget 1e-4 -o skill.safetensors   the 0.01 % of the layers that moved most
      skillgraft extract BASE ADAPTER --budget 8500 -o skill.safetensors
    """
    from skillgraft import atomic, graft_file
    from skillgraft.extraction import extract

    atomic.check_target(out)
    wanted = graft_file.load_region(region) if region else None
    with output.progress("comparing") as progress:
        graft = extract(base, tuned, budget=budget, region=wanted, scope=scope, convert=convert, progress=progress)
    graft_file.save(graft.with_info(command=output.command_line()), out)
    outside = graft.info.get("outside_scope", {})
    size = out.stat().st_size
    result = {
        "out": str(out),
        "entries": len(graft),
        "density": graft.region.density,
        "scope": graft.region.scope.label,
        "bytes": size,
        "heads": list(graft.heads),
        "removed": graft.info.get("removed", []),
        "outside_scope": outside,
        "base_fingerprint": graft.base_fingerprint,
    }
    lines = [
        f"{out}: {len(graft):,} entries, density {graft.region.density:.2e} of {graft.region.scope.label!r}, "
        f"{output.human_bytes(size)}"
    ]
    if graft.heads:
        lines.append(f"heads that travel whole: {listed(graft.heads)}")
    if outside:
        lines.append(f"left out, changed outside the scope: {sum(outside.values()):,} entries in {listed(outside)}")
    output.show(result, as_json=json, lines=lines)
