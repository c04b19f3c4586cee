"""skillgraft finetune"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from skillgraft.cli import output
from skillgraft.cli.arguments import (
    MACHINES,
    ROWS,
    Json,
    MachineAsked,
    ModelName,
    Out,
    RowsAsked,
    SnapshotSeconds,
    TaskNames,
    sharing,
)
from skillgraft.cli.plan_options import filled_from
from skillgraft.errors import InputError
from skillgraft.training.plan import OPTIONS, TrainingPlan


@filled_from(TrainingPlan, OPTIONS, spelt={"seed": "train_seed"})
@sharing(data=ROWS, run_as=MACHINES)
def run(
    base: ModelName,
    task: TaskNames,
    out: Out,
    inside: Annotated[
        Path | None, typer.Option(metavar="R", help="Train only the entries of this region or graft.")
    ] = None,
    outside: Annotated[Path | None, typer.Option(metavar="R", help="Train everything but this region.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the rows (instead of --steps).")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="A paper's settings: p1, p1-adamw, p2-vision, p2-language.")
    ] = None,
    snapshot_seconds: SnapshotSeconds = 60.0,
    json: Json = False,
    *,
    data: RowsAsked,
    run_as: MachineAsked,
    settings: dict[str, Any],
) -> None:
    """Fine-tune BASE on one task or on several at once; it resumes.

    \b
    Example
      skillgraft finetune BASE --task sst2 --shots 64 --lr 0.02 --batch-size 16 --steps 200 -o TUNED
    """
    from skillgraft.files import atomic
    from skillgraft.files.graft_file import load_region
    from skillgraft.tasks.data import load_tasks
    from skillgraft.training import plan

    # What needs no model is refused before torch is imported, which takes seconds. The data are read again later.
    atomic.check_target(out)
    (plan.recipe(recipe).plan if recipe else TrainingPlan()).with_changes(**settings)
    if inside and outside:
        raise InputError(
            "--inside and --outside exclude each other: give one region to train in, or one to leave alone"
        )
    regions = {name: load_region(path) if path else None for name, path in (("inside", inside), ("outside", outside))}
    tasks = load_tasks(task)
    for each in tasks:
        data.split(each)

    from skillgraft.measure.metrics import LOSSES
    from skillgraft.training.grid import finetune_recipe

    asked: dict[str, Any] = {"recipe_name": recipe, "settings": settings, "epochs": epochs, "data": data, **regions}
    with output.running("training", **run_as, snapshot_seconds=snapshot_seconds) as runtime:
        tuned = finetune_recipe(base, tasks, out=out, runtime=runtime, **asked)
    if not output.is_main_process():
        return
    last: Mapping[str, Any] = tuned.log[-1] if tuned.log else {}
    facts = {
        "out": str(out), "readout": tuned.readout, "trained": tuned.trained, "steps": tuned.steps,
        "loss": last.get("loss"), "validation": dict(tuned.validation),
    }  # fmt: skip
    losses = {each.name for each in tasks if each.metric in LOSSES}
    scores = ", ".join(
        f"{name} {score:.3f}" if name in losses else f"{name} {100 * score:.1f}"
        for name, score in tuned.validation.items()
    )
    lines = [
        f"{out}: {tuned.trained:,} numbers trained for {tuned.steps} steps through the {tuned.readout} readout",
        f"validation: {scores or 'no validation rows'}",
    ]
    output.show(facts, as_json=json, lines=lines)
