"""skillgraft apply"""

from __future__ import annotations

from typing import Annotated

import typer

from skillgraft.cli import output
from skillgraft.cli.arguments import Base, GraftFiles, Head, Json, NoSync, Out
from skillgraft.errors import listed


def run(
    base: Base,
    grafts: GraftFiles,
    out: Out,
    scale: Annotated[float, typer.Option(help="Times how much; negative takes a skill out of the model.")] = 1.0,
    head: Head = None,
    no_sync: NoSync = False,
    json: Json = False,
) -> None:
    """Write a copy of BASE with grafts on it; several are added up.

    \b
    Examples
      skillgraft apply BASE skill.safetensors -o GRAFTED
      skillgraft apply BASE a.safetensors b.safetensors --scale 0.5 -o BOTH
    """
    from skillgraft.folders.apply import apply

    with output.progress("applying") as progress:
        outcome = apply(base, *grafts, out=out, scale=scale, head=head, sync=not no_sync, progress=progress)
    lines = [f"{out}: {outcome.entries:,} entries and {len(outcome.whole)} whole tensors written"]
    lines += [f"whole tensors: {listed(outcome.whole, most=20)}"] if outcome.whole else []
    lines += output.digest_lines(outcome.digests)
    lines += [f"left out, weights in another format: {', '.join(outcome.left_out)}"] if outcome.left_out else []
    output.show(output.outcome(outcome), as_json=json, lines=lines)
