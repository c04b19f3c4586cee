"""skillgraft localize"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skillgraft.cli import output
from skillgraft.cli.arguments import Base, Json, MaxLength, Out, ReadoutName, Seed, Shots
from skillgraft.errors import InputError

if TYPE_CHECKING:
    from skillgraft.localize.skill import Rows

_WIDTH = 20  # of a full bar
CURVE = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
METHODS = (
    "learned, budgeted, movement, random, attribution; from BASE alone: lowest-fisher, highest-fisher, "
    "lowest-magnitude, highest-magnitude, random-region."
)


def run(
    base: Base,
    out: Out,
    tuned: Annotated[
        Path | None, typer.Argument(metavar="[TUNED]", help="Fine-tuned model folder or LoRA adapter.")
    ] = None,
    task: Annotated[str | None, typer.Option(metavar="T", help="Catalogue name or TOML file.")] = None,
    method: Annotated[str, typer.Option(help=METHODS)] = "learned",
    budget: Annotated[float | None, typer.Option(help="How many entries: a density (1e-4) or a count (8500).")] = None,
    keep: Annotated[
        float | None, typer.Option(help="The fewest entries that keep this share of TUNED's score.")
    ] = None,
    curve: Annotated[bool, typer.Option("--curve", help="Also the scores of nested budgets, 1e-5 to 1e-2.")] = False,
    paper_curve: Annotated[
        bool, typer.Option("--paper-curve", help="The same with a search from each density's γ_base (P1).")
    ] = False,
    scope: Annotated[str, typer.Option(help="layers, upper:layers, biases, all, or a name pattern.")] = "layers",
    start: Annotated[
        str | None, typer.Option(help="Learned: γ_base, as a density (1e-5), empty, or a region file.")
    ] = None,
    reference: Annotated[
        str | None, typer.Option(help="Outside the region: base (default), or zero (P1's lottery test).")
    ] = None,
    amplify: Annotated[
        str | None, typer.Option(help="How many times TUNED's change the graft carries (1), or auto to find it.")
    ] = None,
    labels: Annotated[
        str | None, typer.Option(help="Learn from true labels (default), or from what TUNED says: tuned.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Learned: steps on the mask (100).")] = None,
    lr: Annotated[float | None, typer.Option(help="Learned: learning rate of the mask (1e7).")] = None,
    l1: Annotated[float | None, typer.Option(help="Learned: strength of an L1 term on the mask (0).")] = None,
    init: Annotated[str | None, typer.Option(help="Learned: constant, or uniform as in the authors' code.")] = None,
    look_every: Annotated[int | None, typer.Option(help="Learned: steps from look to look at the score (4).")] = None,
    patience: Annotated[int | None, typer.Option(help="Learned: stop after so many looks without a better.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Lowest-fisher: rounds (4).")] = None,
    damp: Annotated[float | None, typer.Option(help="Lowest-fisher: what dropped weights count (0.1).")] = None,
    samples: Annotated[int | None, typer.Option(help="Fisher: labels drawn per row (1).")] = None,
    shots: Shots = None,
    rows: Annotated[int | None, typer.Option(help="Rows to learn from, in natural proportion.")] = None,
    seed: Seed = 0,
    batch_size: Annotated[int | None, typer.Option(help="Rows of one step (1024; budgeted: 24).")] = None,
    readout: ReadoutName = "auto",
    max_length: MaxLength = None,
    snapshot_seconds: Annotated[float, typer.Option(hidden=True)] = 60.0,
    json: Json = False,
) -> None:
    """Find where TUNED keeps a task's skill and cut it out as a graft; or a region of BASE to train in.

    \b
    Examples
      skillgraft localize BASE TUNED --task sst2 --shots 64 --budget 1e-4 -o skill.safetensors
      skillgraft localize BASE TUNED --task sst2 --shots 64 --keep 0.95 -o smallest.safetensors
      skillgraft localize BASE TUNED --task sst2 --shots 64 --method budgeted --budget 1e-4 --amplify auto -o skill.safetensors
      skillgraft localize BASE --task sst2 --rows 256 --method lowest-fisher --budget 0.1 -o region.safetensors
      accelerate launch --cpu --num_processes 2 -m skillgraft localize BASE TUNED --task sst2 -o skill.safetensors
    """
    from skillgraft import atomic
    from skillgraft.tasks import load_task, training_split

    # What needs no model is refused before torch is imported, which takes seconds.
    atomic.check_target(out)
    if curve and paper_curve:
        raise InputError("--curve and --paper-curve are two curves: ask for one at a time")
    if task is not None:
        training_split(load_task(task), shots=shots, rows=rows, seed=seed)

    from skillgraft.localize.from_base import BASE_METHODS
    from skillgraft.localize.skill import Rows

    output.only_our_progress()
    data = Rows(shots, rows, seed, batch_size, max_length, readout, **_given(labels=labels))
    own = _given(steps=steps, lr=lr, l1=l1, init=init, look_every=look_every, patience=patience)
    own |= _given(rounds=rounds, damp=damp, samples=samples)
    if method in BASE_METHODS:
        _refuse(
            method, start=start, keep=keep, curve=curve or None, paper_curve=paper_curve or None, reference=reference,
            amplify=amplify, labels=labels, batch_size=batch_size,
        )  # fmt: skip
        _region(base, tuned, task, out, method, budget, scope, data, own, json=json)
        return
    if method != "learned":
        _refuse(method, start=start)
    if tuned is None:
        raise InputError(f"the method {method!r} compares BASE with TUNED: give the fine-tuned folder as well")
    if task is None:
        raise InputError("a skill is a task's: give --task, a catalogue name or a TOML file")
    asked = {
        "scope": scope, "budget": budget, "keep": keep, **_given(reference=reference),
        **{name: _number_or(text) for name, text in _given(start=start, amplify=amplify).items()},
        "densities": CURVE if curve or paper_curve else (), "curve": "paper" if paper_curve else "nested",
        "snapshot_seconds": snapshot_seconds, **own,
    }  # fmt: skip
    _graft(base, tuned, task, out, method, data, asked, json=json)


def _graft(
    base: Path, tuned: Path, task: str, out: Path, method: str, data: Rows, asked: dict[str, Any], *, json: bool
) -> None:
    from skillgraft.localize.curves import KINDS
    from skillgraft.localize.skill import localize_skill

    with output.steps("localizing") as on_step:
        watched: dict[str, Any] = {"on_step": on_step} if method == "learned" else {}
        located = localize_skill(
            base, tuned, task, name=method, data=data, out=out, command=output.command_line(), **asked, **watched
        )
    if not output.is_main_process():
        return
    graft, size = located.graft, out.stat().st_size
    scores = graft.info["scores"]["validation"]
    facts = {
        "out": str(out), "entries": len(graft), "density": graft.region.density, "method": method, "bytes": size,
        "scale": graft.scale,
        "validation": scores, "curve": list(located.curve), "curve_kind": asked["curve"] if located.curve else None,
        "by_layer": graft.region.by_layer(), "by_kind": graft.region.by_kind(),
        "search": graft.info["recipe"].get("search"),
    }  # fmt: skip
    head = f"{out}: {len(graft):,} entries, density {graft.region.density:.2e}, {output.human_bytes(size)}"
    head += f", {graft.scale:g} × the change" if graft.scale != 1.0 else ""
    lines = [head, *output.score_table("validation", scores), *output.region_bars(graft.region)]
    if located.curve:
        lines += ["", f"curve: {KINDS[asked['curve']]}", *_curve(located.curve, scores)]
    output.show(facts, as_json=json, lines=lines)


def _curve(points: Sequence[Mapping[str, Any]], scores: Mapping[str, Any]) -> list[str]:
    """A table with a picture in its last column: how far the score is on the way from base to tuned."""
    low, high = (scores[model]["score"]["value"] for model in ("base", "tuned"))
    table = []
    for point in points:
        way = (point["score"]["value"] - low) / (high - low) if high > low else 0.0
        bar = "█" * round(_WIDTH * min(max(way, 0.0), 1.0))
        table.append((f"{point['density']:g}", f"{point['entries']:,}", *output.score_cells(point), bar))
    return output.columns(table, header=["density", "entries", *output.SCORE_COLUMNS, "base → tuned"])


def _region(
    base: Path,
    tuned: Path | None,
    task: str | None,
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
    from skillgraft.localize.from_base import BASE_METHODS, localize_base

    if tuned is not None:
        raise InputError(f"the method {method!r} looks at BASE alone: leave {tuned} out")
    options |= _given(density=budget)
    with output.progress("localizing") as progress:
        options |= {"on_round": progress} if "on_round" in BASE_METHODS[method].options else {}
        sensed, fingerprint, info = localize_base(base, task, name=method, scope=scope, data=data, **options)
    if not output.is_main_process():
        return
    region = sensed.region
    save_region(region, out, base_fingerprint=fingerprint, info=info.updated(command=output.command_line()))
    facts = {
        "out": str(out), "entries": len(region), "density": region.density, "method": method,
        "by_layer": region.by_layer(), "by_kind": region.by_kind(), **sensed.facts,
    }  # fmt: skip
    head = f"{out}: a region of {len(region):,} entries, density {region.density:.2e}"
    output.show(facts, as_json=json, lines=[head, *output.region_bars(region)])


def _refuse(method: str, **options: Any) -> None:
    """Options that the method has no use for must not be given."""
    for name in _given(**options):
        raise InputError(f"the method {method!r} takes no {name!r}; leave out --{name.replace('_', '-')}")


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _number_or(text: str) -> float | str:
    """The number that a text says; other texts (`empty`, `auto`, a file) stay what they are."""
    try:
        return float(text)
    except ValueError:
        return text
