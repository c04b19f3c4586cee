"""skillgraft localize"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skillgraft.cli import output
from skillgraft.cli.arguments import (
    MACHINE,
    ROWS,
    Base,
    Convert,
    Density,
    Entries,
    Json,
    MachineAsked,
    MixedPrecisionName,
    Out,
    RowsAsked,
    ScopeName,
    SnapshotSeconds,
    sharing,
)
from skillgraft.cli.hints import hints
from skillgraft.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from skillgraft.tasks.data import Data

_WIDTH = 20  # of a full bar
CURVE = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
# Known here too, so that a wrong call is refused before torch is imported; a test compares them with the tables.
OF_TUNED = ("budgeted", "learned", "movement", "random", "attribution")
OF_BASE = ("lowest-fisher", "highest-fisher", "lowest-magnitude", "highest-magnitude", "random-region")
_search_option = partial(typer.Option, rich_help_panel="The search")
_learned_option = partial(typer.Option, rich_help_panel="Learned regions")
_fisher_option = partial(typer.Option, rich_help_panel="Fisher information")
DEFAULT = "budgeted"
METHODS = f"{', '.join(OF_TUNED)}; from BASE alone: {', '.join(OF_BASE)}."


@sharing(data=ROWS, run_as=MACHINE)
def run(
    base: Base,
    out: Out,
    tuned: Annotated[
        Path | None, typer.Argument(metavar="[TUNED]", help="Fine-tuned model folder or LoRA adapter.")
    ] = None,
    task: Annotated[str | None, typer.Option(metavar="T", help="Catalogue name or TOML file.")] = None,
    method: Annotated[str, typer.Option(help=METHODS)] = DEFAULT,
    density: Density = None,
    entries: Entries = None,
    keep: Annotated[
        float | None, typer.Option(help="The fewest entries that keep this share of TUNED's score.")
    ] = None,
    keep_gain: Annotated[
        float | None, typer.Option(help="The fewest entries that keep this share of TUNED's gain over BASE.")
    ] = None,
    match: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Without labels: a text file or task; learns TUNED's answers.")
    ] = None,
    control: Annotated[
        list[str] | None, typer.Option(metavar="C", help="A task or text file to answer as BASE does; may be repeated.")
    ] = None,
    curve: Annotated[bool, typer.Option("--curve", help="Also the scores of other budgets, 1e-5 to 1e-2.")] = False,
    paper_curve: Annotated[
        bool, typer.Option("--paper-curve", help="The same with a search from each density's γ_base (P1).")
    ] = False,
    scope: ScopeName = "layers",
    max_rank: Annotated[
        int | None,
        typer.Option(
            "--max-rank", help="With --scope matrices: rows and columns of a matrix at most, for `export --to lora`."
        ),
    ] = None,
    start: Annotated[str | None, _learned_option(help="γ_base, as a density (1e-5), empty, or a region file.")] = None,
    reference: Annotated[
        str | None, _search_option(help="Outside the region: base (default), or zero (P1's lottery test).")
    ] = None,
    scale: Annotated[
        str | None, _search_option(help="Times how much of TUNED's change the graft carries (1), or auto.")
    ] = None,
    labels: Annotated[
        str | None, _search_option(help="Learn from true labels (default), or from TUNED's predictions: tuned.")
    ] = None,
    control_strength: Annotated[
        str | None, _search_option(help="What KL to BASE's answers on controls weighs, or auto (default).")
    ] = None,
    candidates: Annotated[
        float | None, _search_option(help="Search among this share, that moved most (0.05; learned: all).")
    ] = None,
    checkpoint_activations: Annotated[
        bool, _search_option("--checkpoint-activations", help="Less memory: activations are computed again.")
    ] = False,
    steps: Annotated[int | None, _search_option(help="Steps of the search (40; learned: 100).")] = None,
    lr: Annotated[float | None, _learned_option(help="Learning rate of the mask (found; P1: 1e7).")] = None,
    l1: Annotated[float | None, _learned_option(help="Strength of an L1 term on the mask (0).")] = None,
    init: Annotated[str | None, _learned_option(help="Constant, or uniform as in the authors' code.")] = None,
    look_every: Annotated[
        int | None, _search_option(help="Compare regions every so many steps (learned: 4; else none).")
    ] = None,
    patience: Annotated[int | None, _learned_option(help="Stop after so many looks without a better.")] = None,
    rounds: Annotated[int | None, _fisher_option(help="Lowest-fisher: rounds (4).")] = None,
    damp: Annotated[float | None, _fisher_option(help="Lowest-fisher: what dropped weights count (0.1).")] = None,
    samples: Annotated[int | None, _fisher_option(help="Labels drawn per row (1).")] = None,
    batch_size: Annotated[int | None, _search_option(help="Rows of one step (24; learned: 1024).")] = None,
    convert: Convert = False,
    *,
    data: RowsAsked,
    run_as: MachineAsked,
    mixed_precision: MixedPrecisionName = None,
    snapshot_seconds: SnapshotSeconds = 60.0,
    json: Json = False,
) -> None:
    """Find where TUNED keeps a skill; or a region of BASE alone.

    P1's own search is --method learned.

    \b
    Examples
      skillgraft localize BASE TUNED --task sst2 --shots 64 --density 1e-4 -o skill.safetensors
      skillgraft localize BASE TUNED --task sst2 --shots 64 --keep 0.95 --scale auto -o smallest.safetensors
      skillgraft localize BASE TUNED --task bash.toml --control notes.txt --density 1e-3 -o g.safetensors
      skillgraft localize BASE TUNED --match notes.txt --density 1e-3 --scale 16 -o g.safetensors
      skillgraft localize BASE --task sst2 --train-rows 256 --method lowest-fisher --density 0.1 -o region.safetensors
    """
    from skillgraft.files import atomic
    from skillgraft.folders.movement import check_budget
    from skillgraft.tasks.data import as_rows, as_task

    # What needs no model is refused before torch is imported, which takes seconds.
    atomic.check_target(out)
    check_budget(density, entries)
    if curve and paper_curve:
        raise InputError("--curve and --paper-curve are two curves: ask for one at a time")
    _check_method(method, tuned, task, match)
    for each in [*([as_task(task)] if task else []), *map(as_rows, [*([match] if match else []), *(control or [])])]:
        data.split(each)
    own = _given(steps=steps, lr=lr, l1=l1, init=init, look_every=look_every, patience=patience, candidates=candidates)
    own |= _given(rounds=rounds, damp=damp, samples=samples, density=density, entries=entries)
    run_as = {**run_as, "snapshot_seconds": snapshot_seconds}
    if method in OF_BASE:
        _refuse(
            method, start=start, keep=keep, max_rank=max_rank, curve=curve or None, paper_curve=paper_curve or None,
            reference=reference,
            scale=scale, labels=labels, batch_size=batch_size, convert=convert or None, mixed_precision=mixed_precision,
            keep_gain=keep_gain, match=match, control=control or None, control_strength=control_strength,
            checkpoint_activations=checkpoint_activations or None,
        )  # fmt: skip
        _region(base, task, out, method, scope, data, own, run_as, as_json=json)
        return
    if method != "learned":
        _refuse(method, start=start)
    asked = {
        "scope": scope, "convert": convert, "match": match, "controls": control or [],
        "checkpoint_activations": checkpoint_activations,
        **_given(keep=keep, reference=reference, labels=labels, batch_size=batch_size, mixed_precision=mixed_precision),
        **_given(keep_gain=keep_gain, max_rank=max_rank),
        **{n: _number_or(text) for n, text in _given(start=start, scale=scale, control_strength=control_strength).items()},
        "densities": CURVE if curve or paper_curve else (), "curve": "paper" if paper_curve else "nested", **own,
    }  # fmt: skip
    assert tuned is not None
    _graft(base, tuned, task, out, method, data, asked, run_as, as_json=json)


def _check_method(method: str, tuned: Path | None, task: str | None, match: str | None) -> None:
    """Whether TUNED and a task are there, as the method needs them."""
    if method not in (*OF_TUNED, *OF_BASE):
        raise InputError(f"unknown method {method!r}; {did_you_mean(method, (*OF_TUNED, *OF_BASE))}")
    if method in OF_BASE and tuned is not None:
        raise InputError(f"the method {method!r} looks at BASE alone: leave {tuned} out")
    if method in OF_TUNED and tuned is None:
        raise InputError(f"the method {method!r} compares BASE with TUNED: give the fine-tuned folder as well")
    if method in OF_TUNED and task is None and match is None:
        raise InputError(
            "a skill is a task's: give --task, a catalogue name or a TOML file; without labels give --match, a text file"
        )
    if task is not None and match is not None:
        raise InputError("--task learns from labels, --match from TUNED's answers on any rows: give one of them")


def _graft(
    base: Path,
    tuned: Path,
    task: str | None,
    out: Path,
    method: str,
    data: Data,
    asked: dict[str, Any],
    run_as: Mapping[str, Any],
    *,
    as_json: bool,
) -> None:
    from skillgraft.regions.localize import localize
    from skillgraft.regions.search import CURVES
    from skillgraft.values.info import FORMATS

    with output.running("localizing", **run_as) as runtime:
        located = localize(base, tuned, task=task, method=method, data=data, out=out, runtime=runtime, **asked)
    if not output.is_main_process():
        return
    graft, size, scores = located.graft, out.stat().st_size, located.scores
    readout = _readout(base, task or asked["match"], data)
    next_commands = list(hints(located, command=sys.argv[1:], out=out))
    facts = {
        "format": FORMATS["localization"], "out": str(out), "entries": len(graft),
        "density": graft.region.density, "method": method, **readout, "bytes": size,
        "scale": graft.scale, "digest": graft.digest,
        "validation": scores, "curve": list(located.curve), "curve_kind": located.curve_kind if located.curve else None,
        "by_layer": graft.region.by_layer(), "by_kind": graft.region.by_kind(),
        "search": graft.info["recipe"].get("search"), "trials": list(located.trials), "match": located.match or None,
        "next": next_commands,
    }  # fmt: skip
    head = f"{out}: {len(graft):,} entries, density {graft.region.density:.2e}, {output.human_bytes(size)}"
    head += f", {graft.scale:g} × the change" if graft.scale != 1.0 else ""
    table = output.score_table("validation", scores) if scores else _match(located.match)
    lines = [
        head,
        *output.digest_lines({out.name: graft.digest}),
        _readout_line(readout),
        *table,
        *_trials(located.trials),
    ]
    lines += output.region_bars(graft.region)
    if located.curve:
        lines += ["", f"curve: {CURVES[located.curve_kind]}", *_curve(located.curve, scores)]
    lines += [line for hint in next_commands for line in ("", f"{hint['why']}:", f"  {hint['command']}")]
    output.show(facts, as_json=as_json, lines=lines)


def _readout(base: Path, rows: str, data: Data) -> dict[str, str]:
    """How answers were read off the model, and why so."""
    from skillgraft.folders.hub import located
    from skillgraft.readouts.readouts import why_readout
    from skillgraft.tasks.data import as_rows

    name, why = why_readout(located(base), as_rows(rows), data.readout)
    return {"readout": name, "readout_why": why}


def _readout_line(readout: Mapping[str, str]) -> str:
    return f"readout: {readout['readout']} ({readout['readout_why']})"


def _match(found: Mapping[str, Any]) -> list[str]:
    """How near to tuned's answers a graft is, where there are no labels."""
    rows = [
        ("base", f"{found['base']:.4f}", "0.0"),
        ("graft", f"{found['graft']:.4f}", f"{100 * (found['share'] or 0):.1f}"),
    ]
    return output.columns(rows, header=[f"validation ({found['rows']} rows)", "KL to TUNED", "gone, %"])


_TRIALS = {
    "scale": "g",
    "strength": "g",
    "entries": ",.0f",
    "loss": ".4f",
    "score": ".4f",
    "ece": ".4f",
    "gain": ".3f",
    "damage": ".3f",
}


def _trials(trials: Sequence[Mapping[str, float]]) -> list[str]:
    """Every scale and control strength that was tried. `ece` is what a larger scale's confidence costs."""
    if not trials:
        return []
    keys = [key for key in _TRIALS if any(key in trial for trial in trials)]
    rows = [tuple(format(trial[key], _TRIALS[key]) if key in trial else "-" for key in keys) for trial in trials]
    return ["", *output.columns(rows, header=["tried: " + keys[0], *keys[1:]])]


def _curve(points: Sequence[Mapping[str, Any]], scores: Mapping[str, Any]) -> list[str]:
    """A table with a picture in its last column: how far the score is on the way from base to tuned."""
    low, high = (scores[model]["score"]["value"] for model in ("base", "tuned"))
    table = []
    for point in points:
        share = (point["score"]["value"] - low) / (high - low) if high > low else 0.0
        bar = "█" * round(_WIDTH * min(max(share, 0.0), 1.0))
        table.append((f"{point['density']:g}", f"{point['entries']:,}", *output.score_cells(point), bar))
    return output.columns(table, header=["density", "entries", *output.SCORE_COLUMNS, "base → tuned"])


def _region(
    base: Path,
    task: str | None,
    out: Path,
    method: str,
    scope: str,
    data: Data,
    options: Mapping[str, Any],
    run_as: Mapping[str, Any],
    *,
    as_json: bool,
) -> None:
    from skillgraft.files.graft_file import save_region
    from skillgraft.regions.choose import choose

    with output.running("localizing", **run_as) as runtime:
        chosen = choose(base, task=task, method=method, scope=scope, data=data, runtime=runtime, **options)
    if not output.is_main_process():
        return
    region, readout = chosen.region, _readout(base, task, data) if task and method.endswith("fisher") else {}
    save_region(region, out, base_fingerprint=chosen.base_fingerprint, info=chosen.info)
    facts = {
        "out": str(out), "entries": len(region), "density": region.density, "method": method, **readout,
        "by_layer": region.by_layer(), "by_kind": region.by_kind(), **chosen.facts,
    }  # fmt: skip
    head = f"{out}: a region of {len(region):,} entries, density {region.density:.2e}"
    output.show(
        facts,
        as_json=as_json,
        lines=[head, *([_readout_line(readout)] if readout else []), *output.region_bars(region)],
    )


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
