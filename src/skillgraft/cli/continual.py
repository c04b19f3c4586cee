"""skillgraft continual"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from skillgraft.cli import output
from skillgraft.cli.arguments import (
    MACHINE,
    ROWS,
    Convert,
    Density,
    Entries,
    Json,
    MachineAsked,
    RowsAsked,
    sharing,
)
from skillgraft.errors import InputError

if TYPE_CHECKING:
    from skillgraft.compose.continual import Learning
    from skillgraft.compose.store import ContinualStore
    from skillgraft.opening.runtime import Progress, Runtime
    from skillgraft.tasks.data import Data


@sharing(data=ROWS, run_as=MACHINE)
def run(
    action: Annotated[
        Literal["add", "use", "list"], typer.Argument(help="add a task, use (write) its model, list all.")
    ],
    store: Annotated[Path, typer.Argument(metavar="STORE", help="Folder of the store; add makes it.")],
    base: Annotated[
        Path | None, typer.Argument(metavar="BASE", help="add, use: folder of the pre-trained model.")
    ] = None,
    task: Annotated[
        str | None, typer.Option("--task", metavar="T", help="add: catalogue name or TOML file; use: its name.")
    ] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="use: where to write; must not exist.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd or adamw.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of the task's own fine-tune.")] = None,
    steps: Annotated[int | None, typer.Option(help="Its steps.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows of one step of training.")] = None,
    inside_lr: Annotated[float | None, typer.Option(help="Learning rate inside the region (--lr).")] = None,
    inside_steps: Annotated[int | None, typer.Option(help="Steps inside the region (--steps).")] = None,
    train_seed: Annotated[int | None, typer.Option(help="Order of rows, dropout, fresh heads.")] = None,
    tuned: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A fine-tune of BASE on T that exists already.")
    ] = None,
    convert: Convert = False,
    density: Density = None,
    entries: Entries = None,
    start: Annotated[str | None, typer.Option(help="γ_base: a density (1e-5), empty, or a region file.")] = None,
    scope: Annotated[
        str | None, typer.Option(help="layers, matrices, biases, all, upper:layers, or a name pattern.")
    ] = None,
    mask_steps: Annotated[int | None, typer.Option(help="Steps on the mask (100).")] = None,
    mask_lr: Annotated[float | None, typer.Option(help="Learning rate of the mask (found; P1: 1e7).")] = None,
    mask_batch_size: Annotated[int | None, typer.Option(help="Rows of one step on the mask (1024).")] = None,
    json: Json = False,
    *,
    data: RowsAsked,
    run_as: MachineAsked,
) -> None:
    """Learn tasks one after the other, forgetting none.

    Each task has a region of its own.

    \b
    Examples
      skillgraft continual add STORE BASE --task sst2 --shots 64 --lr 0.02 --steps 200 --density 1e-3
      skillgraft continual list STORE
      skillgraft continual use STORE BASE --task sst2 -o FOR_SST2
    """
    if action == "list":
        _list(store, json=json)
        return
    if base is None or task is None:
        raise InputError(f"continual {action} needs STORE, BASE and --task T; see skillgraft continual --help")
    if action == "use":
        _use(store, base, task, out, json=json)
        return
    if out is not None:
        raise InputError("continual add writes into STORE alone: leave out -o, which is for continual use")
    from skillgraft.folders.movement import check_budget

    check_budget(density, entries)
    chosen = {"optimizer": optimizer, "lr": lr, "steps": steps, "batch_size": batch_size, "seed": train_seed}
    inside = {"lr": inside_lr, "steps": inside_steps}
    search = {
        "density": density, "entries": entries, "start": _number(start), "scope": scope, "steps": mask_steps,
        "lr": mask_lr, "batch_size": mask_batch_size,
    }  # fmt: skip
    plans = [_given(each) for each in (chosen, inside, search)]
    existing = {"tuned": tuned, "convert": convert}
    _add(store, base, task, existing, plans, data, run_as, as_json=json)


def _add(
    store: Path,
    base: Path,
    task: str,
    existing: Mapping[str, Any],
    plans: list[dict[str, Any]],
    data: Data,
    run_as: Mapping[str, Any],
    *,
    as_json: bool,
) -> None:
    from skillgraft.tasks.data import as_task
    from skillgraft.training.plan import TrainingPlan

    # What needs no model is refused before torch is imported, which takes seconds.
    chosen, inside, search = plans
    plan = TrainingPlan().with_changes(**chosen)
    loaded = as_task(task)
    data.split(loaded)

    from skillgraft.compose.continual import Learning, add

    learning = Learning(plan, plan.with_changes(**inside) if inside else None, search, data)
    with output.running("learning", **run_as) as runtime:
        stages = _stages(learning, existing["tuned"], runtime)
        after = add(store, base, loaded, learning=learning, on_stage=stages, runtime=runtime, **existing)
    facts = _facts(after)[-1]
    lines = [f"{store}: {facts['task']} is task {len(after.kept)}", *_table([facts]), *_digests([facts])]
    output.show({"store": str(store), **facts}, as_json=as_json, lines=lines)


def _use(store: Path, base: Path, task: str, out: Path | None, *, json: bool) -> None:
    from skillgraft.compose.store import ContinualStore
    from skillgraft.tasks import load_task

    if out is None:
        raise InputError("continual use writes a model folder: say where, with -o")
    name = load_task(task).name if task.endswith(".toml") else task
    known = ContinualStore.open(store)
    outcome = known.use(base, name, out)
    grafts = list(known.tasks[: known.tasks.index(name) + 1])
    line = f"{out}: the model for {name}; {outcome.entries:,} entries of {', '.join(grafts)} on {base}"
    output.show(
        {**output.outcome(outcome), "task": name, "grafts": grafts},
        as_json=json,
        lines=[line, *output.digest_lines(outcome.digests)],
    )


def _list(store: Path, *, json: bool) -> None:
    from skillgraft.compose.store import ContinualStore

    known = ContinualStore.open(store)
    tasks = _facts(known)
    total = {"entries": sum(one["entries"] for one in tasks), "bytes": sum(one["bytes"] for one in tasks)}
    head = f"{store}: {len(tasks)} tasks on {known.base}, {total['entries']:,} entries, {output.human_bytes(total['bytes'])}"
    facts = {
        "store": str(store),
        "base": known.base,
        "base_fingerprint": known.base_fingerprint,
        **total,
        "tasks": tasks,
    }
    output.show(facts, as_json=json, lines=[head, *_table(tasks), *_digests(tasks)] if tasks else [head])


def _digests(tasks: list[dict[str, Any]]) -> list[str]:
    return output.digest_lines({each["file"]: each["digest"] for each in tasks})


def _facts(store: ContinualStore) -> list[dict[str, Any]]:
    """Every task of a store, its graft read and checked."""
    return [
        {
            "task": kept.task,
            "file": kept.file,
            "digest": kept.digest,
            "entries": len(named.graft),
            "density": named.graft.region.density,
            "bytes": (store.path / kept.file).stat().st_size,
            "heads": sorted(named.graft.heads),
            "validation": named.graft.info.get("scores", {}).get("validation", {}),
        }
        for kept, named in zip(store.kept, store.grafts(), strict=True)
    ]


def _table(tasks: list[dict[str, Any]]) -> list[str]:
    header = ["task", "entries", "density", "bytes", "base", "tuned", "store"]
    rows = [
        (
            one["task"],
            f"{one['entries']:,}",
            f"{one['density']:.2e}",
            output.human_bytes(one["bytes"]),
            *(_score(one["validation"].get(model)) for model in ("base", "tuned", "graft")),
        )
        for one in tasks
    ]
    return [*output.columns(rows, header=header), "base, tuned, store: scores on validation rows, in percent"]


def _score(model: Mapping[str, Any] | None) -> str:
    return f"{100 * model['score']['value']:.1f}" if model else "-"


def _stages(learning: Learning, tuned: Path | None, runtime: Runtime) -> Callable[[str], Progress]:
    """One progress bar over all stages: their steps are added up."""
    inside = learning.plan_inside.steps
    sizes = {"fine-tuning": 0 if tuned else learning.plan.steps, "localizing": learning.search.get("steps", 100)}
    sizes["inside"] = inside

    def stage(name: str) -> Progress:
        before = sum(list(sizes.values())[: list(sizes).index(name)])
        return lambda done, _total, facts: runtime.progress(before + done, sum(sizes.values()), facts)

    return stage


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _number(text: str | None) -> float | str | None:
    """A number is a density (or count); anything else is `empty` or a file."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text
