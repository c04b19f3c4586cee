"""skillgraft combine"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skillgraft.cli import naming, output
from skillgraft.cli.arguments import (
    MACHINE,
    ROWS_200,
    Head,
    Json,
    MachineAsked,
    NamedGrafts,
    Out,
    Points,
    RowsAsked,
    sharing,
)
from skillgraft.errors import InputError, listed

if TYPE_CHECKING:
    from skillgraft.tasks.data import Data
    from skillgraft.values.graft import Graft
    from skillgraft.values.stream import GraftStream

AUTO = "auto"


@sharing(data=ROWS_200, run_as=MACHINE)
def run(
    grafts: NamedGrafts,
    out: Out,
    rule: Annotated[
        str, typer.Option(help="sum, union, ties, dare, breadcrumbs, tall, wise, della or stitch.")
    ] = "sum",
    conflict: Annotated[
        str | None, typer.Option(help="union: where grafts overlap, refuse (default), first, largest, mean.")
    ] = None,
    keep: Annotated[
        float | None,
        typer.Option(help="ties, dare (0.1), breadcrumbs (0.2), della (0.7), stitch (all): share to keep."),
    ] = None,
    trim: Annotated[
        str | None, typer.Option(help="ties: the share is that of the scope (default) or of each tensor.")
    ] = None,
    drop: Annotated[float | None, typer.Option(help="breadcrumbs: share of largest changes to drop (0.1).")] = None,
    epsilon: Annotated[float | None, typer.Option(help="della: width of the probabilities' window (0.14).")] = None,
    lam: Annotated[float | None, typer.Option(help="tall: λ of the masks (0.2).")] = None,
    consensus: Annotated[int | None, typer.Option(help="tall: grafts that must claim an entry (2).")] = None,
    draw_seed: Annotated[int | None, typer.Option(help="dare, della: seed that draws the entries (0).")] = None,
    scale: Annotated[
        list[str] | None,
        typer.Option(
            metavar="N|NAME=N|auto",
            help="Times how much, after the rule; auto searches. NAME=N for one graft, before the rule; may be repeated.",
        ),
    ] = None,
    inside: Annotated[Path | None, typer.Option(metavar="R", help="Keep only the entries in this region.")] = None,
    outside: Annotated[
        Path | None, typer.Option(metavar="R", help="Keep only the entries outside this region.")
    ] = None,
    head: Head = None,
    base: Annotated[
        str | None, typer.Option(metavar="BASE", help="auto, packed grafts: model folder or hub name.")
    ] = None,
    task: Annotated[list[str] | None, typer.Option(metavar="T", help="auto: the tasks, in the grafts' order.")] = None,
    per_task_scales: Annotated[bool, typer.Option("--per-task-scales", help="auto: one scale for each graft.")] = False,
    points: Points = 21,
    jobs: Annotated[int, typer.Option(help="auto: scales tried side by side; they share the cores.")] = 1,
    on: Annotated[str | None, typer.Option(metavar="ray|ray://…", help="auto: scales tried on a Ray cluster.")] = None,
    json: Json = False,
    *,
    data: RowsAsked,
    run_as: MachineAsked,
) -> None:
    """Make one graft of several: add, subtract, unite, merge.

    `--scale auto` finds the scale that serves all tasks.

    \b
    Examples
      skillgraft combine a.safetensors b.safetensors -o both.safetensors
      skillgraft combine a.safetensors --scale -1 -o minus-a.safetensors
      skillgraft combine a.safetensors b.safetensors --scale a=0.5 --scale b=-1 -o mixed.safetensors
      skillgraft combine a.safetensors b.safetensors --rule union --conflict largest -o either.safetensors
      skillgraft combine a.safetensors b.safetensors --scale auto --base BASE --task sst2 --task trec -o ab.safetensors
    """
    from skillgraft.compose.rules import check_rule, combined
    from skillgraft.files import atomic, graft_file
    from skillgraft.files.graft_stream import save_stream
    from skillgraft.values.info import FORMATS
    from skillgraft.values.joining import restricted
    from skillgraft.values.naming import scales_of
    from skillgraft.values.stream import Digest

    atomic.check_target(out)
    named = {
        "conflict": conflict, "keep": keep, "trim": trim, "drop": drop, "epsilon": epsilon, "lam": lam, "consensus": consensus,
        "seed": draw_seed,
    }  # fmt: skip
    options = {name: value for name, value in named.items() if value is not None}
    check_rule(rule, options)
    given = [naming.named(each) for each in grafts]
    plain, by_name = naming.scales(scale or [])
    factor = 1.0 if plain is None else None if plain == AUTO else naming.number(plain, also=f" or {AUTO}")
    factors = scales_of([each.shown for each in given], by_name)
    if factor is not None and (task or per_task_scales or jobs != 1 or on):
        raise InputError(f"--task, --per-task-scales, --jobs and --on are for --scale auto, found --scale {factor:g}")
    if factor is None and by_name:
        raise InputError(
            f"--scale auto finds the scale: leave out those of {listed(by_name)}, or give all scales as numbers"
        )
    asked: dict[str, Any] = {"rule": rule, **options}
    if factor is None:
        if inside or outside:
            raise InputError("--scale auto does not restrict: restrict each graft first, with combine G --inside R")
        parts = [output.load_graft(each.path) for each in given]
        asked |= {
            "head": output.load_graft(head) if head else None,
            "per_task_scales": per_task_scales,
            "points": points,
            "jobs": jobs,
            "on": on,
        }
        result = _searched(parts, base, task, data, asked, run_as)
        recipe = _recipe(rule, options, [part.digest for part in parts])
        search = result.info["recipe"]["search"]
        chosen = search["best"]["scale"]
        recipe |= {**result.info["recipe"], "scale": chosen}
        more, lines = {"scale": chosen, "search": search, "format": FORMATS["scales"]}, _table(search)
        graft = result.stream()
    else:
        streams = [_opened(each.path, base) for each in given]
        digests = [Digest() for _ in streams]
        watched = [own * digest.watching(stream) for own, digest, stream in zip(factors, digests, streams, strict=True)]
        with output.progress("combining"):
            joint = combined(watched, head=_opened(head, base) if head else None, **asked)
            joint = restricted(joint, graft_file.load_region(inside)) if inside else joint
            joint = restricted(joint, graft_file.load_region(outside), inside=False) if outside else joint
            recipe = _recipe(
                rule, options, [digest.of(stream) for digest, stream in zip(digests, streams, strict=True)]
            ) | {"scale": factor, **({"scales": factors} if by_name else {})}
            graft, more, lines = factor * joint, {"scale": (factor * joint).scale}, []
            more |= {"scales": {each.shown: own for each, own in zip(given, factors, strict=True)}} if by_name else {}
    made = graft.with_info(scores=None, recipe=recipe, command=output.command_line())
    with output.progress("combining") as progress:
        written = Digest()
        save_stream(written.watching(made), out, progress=progress)
    digest = written.of(made)
    facts = {"out": str(out), "entries": len(made), "density": made.density, "form": made.form}
    facts["digest"] = digest
    lines = [*lines, *output.digest_lines({out.name: digest})]
    first = f"{out}: {len(made):,} entries, density {made.density:.2e}, {made.form} form"
    output.show({**facts, "rule": rule, **more}, as_json=json, lines=[first, *lines])


def _opened(path: str | Path, base: str | None) -> GraftStream:
    """A graft as a stream; a packed one with the base's numbers."""
    from skillgraft.folders.checkpoint import Checkpoint
    from skillgraft.values.graft import stream_of

    stream = stream_of(path)
    return stream.based(Checkpoint.open(base)) if stream.packed and base else stream


def _recipe(rule: str, options: Mapping[str, Any], digests: list[str]) -> dict[str, Any]:
    return {"rule": rule, "conflict": "refuse", **options, "grafts": digests}


def _searched(
    parts: Sequence[Graft],
    base: str | None,
    tasks: Sequence[str] | None,
    data: Data,
    asked: Mapping[str, Any],
    run_as: Mapping[str, Any],
) -> Graft:
    from skillgraft.tasks.data import load_tasks

    if not base or not tasks:
        found = "--scale auto needs a model and tasks to compare scales by"
        raise InputError(f"{found}: add --base BASE and --task T for each skill")
    # What is wrong is refused here, before torch is imported, which takes seconds; the rows are read again later.
    loaded = load_tasks(tasks)
    for each in loaded:
        data.needed(each, "validation")

    from skillgraft.compose.scales import own_grafts, search_scale

    own_grafts([each.name for each in loaded], parts)
    with output.running("combining", **run_as) as runtime:
        return search_scale(base, parts, tasks=loaded, data=data, runtime=runtime, **asked)


def _table(search: Mapping[str, Any]) -> list[str]:
    """Every point of a search over one scale; of a longer search the best one. Beside a rule that thins, the whole grafts."""
    best = search["best"]
    one_scale = not isinstance(best["scale"], list)
    rows = [
        (_scales(point["scale"]), *_percents(point), "best" if point == best else "")
        for point in (search["points"] if one_scale else [best])
    ]
    named = [*best["accuracy"], *(f"{task}, NLL less by" for task in best.get("improvement", {}))]
    table = output.columns(rows, header=["scale", *named, "normalised", ""])
    by_whole = search.get("whole", {}).get("normalised")
    beside = "normalised by the grafts' accuracy before they are thinned"
    return table if by_whole is None else [*table, f"{beside}: {100 * by_whole:.1f}"]


def _scales(scale: float | list[float]) -> str:
    return " ".join(f"{each:g}" for each in scale) if isinstance(scale, list) else f"{scale:g}"


def _percents(point: Mapping[str, Any]) -> list[str]:
    """Accuracies and the normalised mean in percent; improvements, which are nats, as they are."""
    improved = [f"{found:.3f}" for found in point.get("improvement", {}).values()]
    return [
        *(f"{100 * share:.1f}" for share in point["accuracy"].values()),
        *improved,
        f"{100 * point['normalised']:.1f}",
    ]
