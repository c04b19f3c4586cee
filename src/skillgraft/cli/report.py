"""skillgraft report"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skillgraft.cli import output
from skillgraft.cli.arguments import Json, Out


def run(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...", help="Folders and files: grafts, regions, predictions, results, models, JSON."
        ),
    ],
    out: Out,
    title: Annotated[str, typer.Option(help="The page's title.")] = "skillgraft report",
    json: Json = False,
) -> None:
    """Write one HTML page about everything in these folders.

    It has scores, calibration, curves, where entries live, and provenance. The page needs no network and shows its tables
    without JavaScript too. What cannot be read is listed on it.

    \b
    Examples
      skillgraft report runs -o page.html
      skillgraft report skill.safetensors scores.json predictions --title "Two skills" -o page.html
    """
    from skillgraft.report.page import report

    page = report(paths, out, title=title)
    found = page.found
    asides = {
        name: [{"file": each.name, "why": each.why} for each in files]
        for name, files in (("unread", found.unread), ("unused", found.unused))
    }
    kinds = sorted({each.kind for each in found.artefacts})
    counts = {kind: len(found.of(kind)) for kind in kinds}
    size = out.stat().st_size
    lines = [f"{out}: {found.in_words()}; {output.human_bytes(size)}"]
    lines += [f"could not be read: {each.name}: {each.why}" for each in found.unread]
    lines += [f"not used: {len(found.unused)} other files"] if found.unused else []
    facts = {"out": str(out), "bytes": size, "found": counts, "sections": list(page.sections), **asides}
    output.show(facts, as_json=json, lines=lines)
