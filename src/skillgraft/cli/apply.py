"""skillgraft apply"""

from __future__ import annotations

from typing import Annotated

import typer

from skillgraft.cli import naming, output
from skillgraft.cli.arguments import Base, Head, Json, NamedGrafts, NoSync, Out
from skillgraft.errors import listed


def run(
    base: Base,
    grafts: NamedGrafts,
    out: Out,
    scale: Annotated[
        list[str] | None,
        typer.Option(
            metavar="N|NAME=N", help="Times how much (-1 takes a skill out); NAME=N for one; may be repeated."
        ),
    ] = None,
    head: Head = None,
    no_sync: NoSync = False,
    json: Json = False,
) -> None:
    """Write a copy of BASE with grafts on it; several are added up.

    \b
    Examples
      skillgraft apply BASE skill.safetensors -o GRAFTED
      skillgraft apply BASE a.safetensors b.safetensors --scale 0.5 -o BOTH
      skillgraft apply BASE films=a.safetensors news=b.safetensors --scale films=0.5 --scale news=-1 -o CHANGED
    """
    from skillgraft.folders.apply import apply
    from skillgraft.folders.given import Named

    given = [naming.named(each) for each in grafts]
    factors = naming.each_scaled(given, scale or [])
    with output.progress("applying") as progress:
        chosen = [Named(each.path, each.shown) for each in given]
        outcome = apply(base, *chosen, out=out, scale=factors, head=head, sync=not no_sync, progress=progress)
    lines = [f"{out}: {output.amounts(outcome)} written"]
    lines += [f"whole tensors: {listed(outcome.whole, most=20)}"] if outcome.whole else []
    lines += output.digest_lines(outcome.digests)
    lines += [f"left out, weights in another format: {', '.join(outcome.left_out)}"] if outcome.left_out else []
    output.show(output.outcome(outcome), as_json=json, lines=lines)
