"""skillgraft localize"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skillgraft.cli import output
from skillgraft.cli.arguments import Base, Json, MaxLength, Out, ReadoutName, Seed, Shots
from skillgraft.errors import InputError

if TYPE_CHECKING:
    from skillgraft.localize.skill import Rows

CURVE = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
METHODS = "learned, movement, random, attribution; from BASE alone: lowest-fisher, highest-fisher."


def run(
    base: Base,
    out: Out,
    task: Annotated[str, typer.Option("--task", metavar="T", help="Catalogue name or TOML file.")],
    tuned: Annotated[
        Path | None, typer.Argument(metavar="[TUNED]", help="Fine-tuned model folder or LoRA adapter.")
    ] = None,
    method: Annotated[str, typer.Option(help=METHODS)] = "learned",
    budget: Annotated[float | None, typer.Option(help="How many entries: a density (1e-4) or a count (8500).")] = None,
    keep: Annotated[
        float | None, typer.Option(help="The fewest entries that keep this share of TUNED's score.")
    ] = None,
    curve: Annotated[bool, typer.Option("--curve", help="Also the scores at densities from 1e-5 to 1e-2.")] = False,
    scope: Annotated[str, typer.Option(help="layers, biases, all, or a name pattern.")] = "layers",
    start: Annotated[str, typer.Option(help="Learned: γ_base, as a density, empty, or a region file.")] = "1e-5",
    reference: Annotated[
        str, typer.Option(help="What is outside the region: base, or zero (P1's lottery test).")
    ] = "base",
    labels: Annotated[
        str, typer.Option(help="Learn from the true labels or from what TUNED says: true, tuned.")
    ] = "true",
    steps: Annotated[int | None, typer.Option(help="Learned: steps on the mask (100).")] = None,
    lr: Annotated[float | None, typer.Option(help="Learned: learning rate of the mask (1e7).")] = None,
    init: Annotated[str | None, typer.Option(help="Learned: constant, or uniform as in the authors' code.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Lowest-fisher: rounds (4).")] = None,
    damp: Annotated[float | None, typer.Option(help="Lowest-fisher: what dropped weights count (0.1).")] = None,
    samples: Annotated[int | None, typer.Option(help="Fisher: labels drawn per row (1).")] = None,
    shots: Shots = None,
    rows: Annotated[int | None, typer.Option(help="Rows to learn from, in natural proportion.")] = None,
    seed: Seed = 0,
    batch_size: Annotated[int, typer.Option(help="Rows of one step on the mask.")] = 1024,
    readout: ReadoutName = "auto",
    max_length: MaxLength = None,
    json: Json = False,
) -> None:
    """Find where TUNED keeps a task's skill and cut it out as a graft; or a region of BASE to train in.

    \b
    Examples
      skillgraft localize BASE TUNED --task sst2 --shots 64 --budget 1e-4 -o skill.safetensors
      skillgraft localize BASE TUNED --task sst2 --shots 64 --keep 0.95 -o smallest.safetensors
      skillgraft localize BASE --task sst2 --rows 256 --method lowest-fisher --budget 0.1 -o region.safetensors
    """
    from skillgraft import atomic
    from skillgraft.localize.skill import Rows

    atomic.check_target(out)
    output.only_our_progress()
    data = Rows(shots, rows, seed, batch_size, max_length, readout, labels)
    if method.endswith("-fisher"):
        fisher = _given(rounds=rounds, damp=damp, samples=samples)
        _region(base, tuned, task, out, method, budget, scope, data, fisher, json=json)
        return
    if tuned is None:
        raise InputError(f"the method {method!r} compares BASE with TUNED: give the fine-tuned folder as well")
    asked = {
        "scope": scope,
        "start": _start(start),
        "budget": budget,
        "keep": keep,
        "densities": CURVE if curve else (),
    }
    asked |= {"reference": "zero" if reference == "zero" else "base", **_given(steps=steps, lr=lr, init=init)}
    _graft(base, tuned, task, out, method, data, asked, json=json)


def _graft(
    base: Path, tuned: Path, task: str, out: Path, method: str, data: Rows, asked: dict[str, Any], *, json: bool
) -> None:
    from skillgraft import graft_file
    from skillgraft.localize.skill import localize_skill

    with output.steps("localizing") as on_step:
        watched: dict[str, Any] = {"on_step": on_step} if method == "learned" else {}
        located = localize_skill(base, tuned, task, name=method, data=data, **asked, **watched)
    graft = located.graft.with_info(command=output.command_line())
    graft_file.save(graft, out)
    scores = graft.info["scores"]["validation"]
    size = out.stat().st_size
    facts = {
        "out": str(out), "entries": len(graft), "density": graft.region.density, "method": method, "bytes": size,
        "validation": scores, "curve": list(located.curve), "by_layer": graft.region.by_layer(),
        "by_kind": graft.region.by_kind(),
    }  # fmt: skip
    head = f"{out}: {len(graft):,} entries, density {graft.region.density:.2e}, {output.human_bytes(size)}"
    lines = [head, *output.score_table("validation", scores), *output.region_bars(graft.region)]
    if located.curve:
        points = [(f"{point['density']:g}", point["entries"], *output.score_cells(point)) for point in located.curve]
        lines += ["", *output.columns(points, header=["density", "entries", *output.SCORE_COLUMNS])]
    output.show(facts, as_json=json, lines=lines)


def _region(
    base: Path,
    tuned: Path | None,
    task: str,
    out: Path,
    method: str,
    budget: float | None,
    scope: str,
    data: Rows,
    options: dict[str, Any],
    *,
    json: bool,
) -> None:
    from skillgraft.graft_file import save_region
    from skillgraft.localize.from_base import localize_base

    if tuned is not None:
        raise InputError(f"the method {method!r} looks at BASE alone: leave {tuned} out")
    options |= _given(density=budget)
    with output.progress("localizing") as progress:
        options |= {"on_round": progress} if method == "lowest-fisher" else {}
        sensed, fingerprint, info = localize_base(base, task, name=method, scope=scope, data=data, **options)
    region = sensed.region
    save_region(region, out, base_fingerprint=fingerprint, info=info.updated(command=output.command_line()))
    facts = {
        "out": str(out), "entries": len(region), "density": region.density, "method": method,
        "by_layer": region.by_layer(), "by_kind": region.by_kind(), **sensed.facts,
    }  # fmt: skip
    head = f"{out}: a region of {len(region):,} entries, density {region.density:.2e}"
    output.show(facts, as_json=json, lines=[head, *output.region_bars(region)])


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _start(text: str) -> float | str:
    """A number is a density (or count); anything else is `empty` or a file."""
    try:
        return float(text)
    except ValueError:
        return text
