"""skillgraft localize"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from skillgraft.cli import output
from skillgraft.cli.arguments import Base, Json, MaxLength, Out, ReadoutName, Seed, Shots

CURVE = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)


def run(
    base: Base,
    tuned: Annotated[
        Path, typer.Argument(metavar="TUNED", help="Folder of the fine-tuned model, or of a LoRA adapter.")
    ],
    task: Annotated[str, typer.Option("--task", metavar="T", help="Catalogue name or TOML file.")],
    out: Out,
    method: Annotated[str, typer.Option(help="learned, movement, random or attribution.")] = "learned",
    budget: Annotated[float | None, typer.Option(help="How many entries: a density (1e-4) or a count (8500).")] = None,
    keep: Annotated[
        float | None, typer.Option(help="The fewest entries that keep this share of TUNED's score.")
    ] = None,
    curve: Annotated[bool, typer.Option("--curve", help="Also the scores at densities from 1e-5 to 1e-2.")] = False,
    scope: Annotated[str, typer.Option(help="layers, biases, all, or a name pattern.")] = "layers",
    start: Annotated[
        str, typer.Option(help="Where the learned mask starts: a density, empty, or a region file.")
    ] = "1e-5",
    reference: Annotated[
        str, typer.Option(help="What is outside the region: base, or zero (P1's lottery test).")
    ] = "base",
    labels: Annotated[
        str, typer.Option(help="Learn from the true labels or from what TUNED says: true, tuned.")
    ] = "true",
    steps: Annotated[int | None, typer.Option(help="Steps on the mask (learned; 100).")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of the mask (learned; 1e7).")] = None,
    init: Annotated[str | None, typer.Option(help="constant, or uniform as in the authors' code (learned).")] = None,
    shots: Shots = None,
    rows: Annotated[int | None, typer.Option(help="Rows to learn from, in natural proportion.")] = None,
    seed: Seed = 0,
    batch_size: Annotated[int, typer.Option(help="Rows of one step.")] = 1024,
    readout: ReadoutName = "auto",
    max_length: MaxLength = None,
    json: Json = False,
) -> None:
    """Find where TUNED keeps a task's skill and cut it out as a graft.

    \b
    Examples
      skillgraft localize BASE TUNED --task sst2 --shots 64 --budget 1e-4 -o skill.safetensors
      skillgraft localize BASE TUNED --task sst2 --shots 64 --keep 0.95 -o smallest.safetensors
      skillgraft localize BASE TUNED --task sst2 --shots 64 --method movement --budget 1e-4 --curve -o m.safetensors
    """
    from skillgraft import atomic, graft_file
    from skillgraft.localize.skill import Rows, localize_skill

    atomic.check_target(out)
    output.only_our_progress()
    options: dict[str, Any] = {"steps": steps, "lr": lr, "init": init}
    options = {name: value for name, value in options.items() if value is not None}
    with output.steps("localizing") as on_step:
        located = localize_skill(
            base,
            tuned,
            task,
            name=method,
            scope=scope,
            start=_start(start),
            budget=budget,
            keep=keep,
            densities=CURVE if curve else (),
            reference="zero" if reference == "zero" else "base",
            data=Rows(shots, rows, seed, batch_size, max_length, readout, labels),
            **options,
            **({"on_step": on_step} if method == "learned" else {}),
        )
    graft = located.graft.with_info(command=output.command_line())
    graft_file.save(graft, out)
    scores = graft.info["scores"]["validation"]
    facts = {
        "out": str(out), "entries": len(graft), "density": graft.region.density, "method": method,
        "bytes": out.stat().st_size, "validation": scores, "curve": list(located.curve),
        "by_layer": graft.region.by_layer(), "by_kind": graft.region.by_kind(),
    }  # fmt: skip
    head = f"{out}: {len(graft):,} entries, density {graft.region.density:.2e}, {output.human_bytes(facts['bytes'])}"
    lines = [head, *output.score_table("validation", scores), "", *output.bars(graft.region.by_kind())]
    lines += ["", *output.bars(graft.region.by_layer())]
    if located.curve:
        rows_of_curve = [(f"{p['density']:g}", p["entries"], *output.score_cells(p)) for p in located.curve]
        lines += ["", *output.columns(rows_of_curve, header=["density", "entries", *output.SCORE_COLUMNS])]
    output.show(facts, as_json=json, lines=lines)


def _start(text: str) -> float | str:
    """A number is a density (or count); anything else is `empty` or a file."""
    try:
        return float(text)
    except ValueError:
        return text
