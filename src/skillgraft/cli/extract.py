"""skillgraft extract"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from skillgraft.cli import output
from skillgraft.cli.arguments import Base, Convert, Density, Entries, Json, Out, Tuned
from skillgraft.errors import listed


def run(
    base: Base,
    tuned: Tuned,
    out: Out,
    density: Density = None,
    entries: Entries = None,
    region: Annotated[
        Path | None, typer.Option(metavar="R", help="Take exactly this region (a region or graft file).")
    ] = None,
    scope: Annotated[
        str | None, typer.Option(help="layers (default), upper:layers, biases, all, or a name pattern.")
    ] = None,
    convert: Convert = False,
    pack: Annotated[
        bool,
        typer.Option(
            "--pack", help="Compressed: the bits that differ alone. The base's numbers are needed to read it."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Lift a skill out of a fine-tuned model, into a graft file.

    \b
    Examples
      skillgraft extract BASE TUNED -o skill.safetensors                  all that changed: apply gives TUNED bit for bit
      skillgraft extract BASE TUNED --density 1e-4 -o skill.safetensors   the 0.01 % of the layers that moved most
      skillgraft extract BASE ADAPTER --entries 8500 -o skill.safetensors
      skillgraft extract BASE TUNED --pack -o skill.safetensors           all that changed, in a fraction of the bytes
    """
    from skillgraft.files import atomic, graft_file
    from skillgraft.files.graft_stream import save_stream
    from skillgraft.folders.extract import extracted
    from skillgraft.folders.movement import check_budget
    from skillgraft.values.stream import Digest

    atomic.check_target(out)
    check_budget(density, entries)
    wanted = graft_file.load_region(region) if region else None
    asked: dict[str, Any] = {
        "density": density,
        "entries": entries,
        "region": wanted,
        "scope": scope,
        "convert": convert,
    }
    with output.progress("comparing") as progress:
        graft = extracted(base, tuned, progress=progress, **asked).with_info(command=output.command_line())
    with output.progress("writing") as progress, graft.steady():
        written = Digest()
        save_stream(written.watching(graft), out, pack=pack, progress=progress, proved=graft.check_unchanged)
    digest = written.of(graft)
    outside = graft.info.get("outside_scope", {})
    size = out.stat().st_size
    result = {
        "out": str(out),
        "entries": len(graft),
        "density": graft.density,
        "scope": graft.scope.label,
        "bytes": size,
        "heads": list(graft.heads),
        "removed": graft.info.get("removed", []),
        "outside_scope": outside,
        "base_fingerprint": graft.base_fingerprint,
        "digest": digest,
    }
    lines = [
        f"{out}: {len(graft):,} entries, density {graft.density:.2e} of {graft.scope.label!r}, "
        f"{output.human_bytes(size)}"
    ]
    if graft.heads:
        lines.append(f"heads that travel whole: {listed(graft.heads)}")
    if outside:
        lines.append(f"left out, changed outside the scope: {sum(outside.values()):,} entries in {listed(outside)}")
    lines += output.digest_lines({out.name: digest})
    output.show(result, as_json=json, lines=lines)
