"""skillgraft finetune"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skillgraft.cli import output
from skillgraft.cli.arguments import Json, MaxLength, ModelName, Out, ReadoutName, Seed, Shots, TaskNames
from skillgraft.errors import InputError

if TYPE_CHECKING:
    from skillgraft.tasks import Task


def run(
    base: ModelName,
    task: TaskNames,
    out: Out,
    shots: Shots = None,
    rows: Annotated[
        int | None, typer.Option(help="Rows to train on, in natural proportion (instead of --shots).")
    ] = None,
    seed: Seed = 0,
    readout: ReadoutName = "auto",
    method: Annotated[
        str | None, typer.Option(help="full, bias (BitFit), lora, houlsby, pfeiffer, or linear (tangent).")
    ] = None,
    only: Annotated[
        Path | None, typer.Option(metavar="R", help="Train only the entries of this region or graft.")
    ] = None,
    outside: Annotated[Path | None, typer.Option(metavar="R", help="Train everything but this region.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd or adamw.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the rows (instead of --steps).")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows of one step, over all processes.")] = None,
    accumulation: Annotated[int | None, typer.Option(help="Parts that a step's batch is split into.")] = None,
    schedule: Annotated[str | None, typer.Option(help="constant, linear or cosine.")] = None,
    warmup_steps: Annotated[int | None, typer.Option(help="Steps of linear warm-up.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Weight decay.")] = None,
    momentum: Annotated[float | None, typer.Option(help="Momentum of SGD.")] = None,
    clip_norm: Annotated[float | None, typer.Option(help="Clip gradients to this norm.")] = None,
    l1: Annotated[float | None, typer.Option(help="Strength of the L1 pull towards the base (P1: 0.001).")] = None,
    lora_rank: Annotated[int | None, typer.Option(help="Rank of LoRA.")] = None,
    bottleneck: Annotated[int | None, typer.Option(help="Width of houlsby and pfeiffer adapters.")] = None,
    dropout: Annotated[bool | None, typer.Option("--dropout/--no-dropout", help="The model's own dropout.")] = None,
    train_embeddings: Annotated[bool, typer.Option("--train-embeddings", help="Frozen by default (P1 A.1).")] = False,
    train_lm_head: Annotated[bool, typer.Option("--train-lm-head", help="Frozen by default (P1 A.1).")] = False,
    mixture: Annotated[str | None, typer.Option(help="Several tasks: equal or proportional shares of steps.")] = None,
    stop_at: Annotated[float | None, typer.Option(help="Stop at this training accuracy.")] = None,
    validate_every: Annotated[int | None, typer.Option(help="Look at the validation rows every so many steps.")] = None,
    keep: Annotated[str | None, typer.Option(help="last, or best on validation.")] = None,
    train_seed: Annotated[int, typer.Option(help="Seed of the run: order of rows, dropout, fresh heads.")] = 0,
    recipe: Annotated[
        str | None, typer.Option(help="A paper's settings: p1, p1-adamw, p2-vision, p2-language.")
    ] = None,
    max_length: MaxLength = None,
    checkpoint_every: Annotated[int | None, typer.Option(help="Write OUT.steps/step-N every N steps.")] = None,
    snapshot_seconds: Annotated[float, typer.Option(hidden=True)] = 60.0,
    json: Json = False,
) -> None:
    """Fine-tune BASE on one task or a mixture; killed and started again, it goes on where it was.

    \b
    Examples
      skillgraft finetune BASE --task sst2 --shots 64 --lr 0.02 --batch-size 16 --steps 200 -o TUNED
      skillgraft finetune BASE --task reviews.toml --optimizer adamw --lr 5e-5 --epochs 3 -o TUNED
      skillgraft finetune BASE --task sst2 --only region.safetensors --steps 200 -o TUNED
      accelerate launch --cpu --num_processes 2 -m skillgraft finetune BASE --task sst2 --steps 200 -o TUNED
    """
    from skillgraft.graft_file import load_region

    chosen = {
        "method": method, "optimizer": optimizer, "lr": lr, "steps": steps, "batch_size": batch_size,
        "accumulation": accumulation, "schedule": schedule, "warmup_steps": warmup_steps, "weight_decay": weight_decay,
        "momentum": momentum, "clip_norm": clip_norm, "l1": l1, "lora_rank": lora_rank, "bottleneck": bottleneck,
        "dropout": dropout, "train_embeddings": train_embeddings or None, "train_lm_head": train_lm_head or None,
        "mixture": mixture, "stop_at": stop_at, "validate_every": validate_every, "keep": keep, "seed": train_seed,
    }  # fmt: skip
    settings = {name: value for name, value in chosen.items() if value is not None}
    data = {"shots": shots, "rows": rows, "seed": seed}
    _check_plan(out, recipe, settings)
    if only and outside:
        raise InputError("--only and --outside exclude each other: give one region to train in, or one to leave alone")
    regions = {name: load_region(path) if path else None for name, path in (("only", only), ("outside", outside))}
    tasks = _checked_tasks(task, data)

    from skillgraft.training.grid import finetune_recipe

    output.only_our_progress()
    with output.steps("training") as on_step:
        tuned = finetune_recipe(
            base,
            tasks,
            out,
            recipe_name=recipe,
            settings=settings,
            epochs=epochs,
            readout=readout,
            max_length=max_length,
            checkpoint_every=checkpoint_every,
            snapshot_seconds=snapshot_seconds,
            command=output.command_line(),
            on_step=on_step,
            **data,
            **regions,
        )
    if not output.is_main_process():
        return
    last: Mapping[str, Any] = tuned.log[-1] if tuned.log else {}
    facts = {
        "out": str(out), "readout": tuned.readout, "trained": tuned.trained, "steps": tuned.steps,
        "loss": last.get("loss"), "validation": dict(tuned.validation),
    }  # fmt: skip
    scores = ", ".join(f"{name} {100 * score:.1f}" for name, score in tuned.validation.items())
    lines = [
        f"{out}: {tuned.trained:,} numbers trained for {tuned.steps} steps through the {tuned.readout} readout",
        f"validation: {scores or 'no validation rows'}",
    ]
    output.show(facts, as_json=json, lines=lines)


# What needs no model is refused before torch is imported, which takes seconds. The data are read again later.


def _check_plan(out: Path, recipe: str | None, settings: Mapping[str, Any]) -> None:
    from skillgraft import atomic
    from skillgraft.training import plan

    atomic.check_target(out)
    (plan.recipe(recipe).plan if recipe else plan.Plan()).with_changes(**settings)


def _checked_tasks(names: Sequence[str], data: Mapping[str, Any]) -> list[Task]:
    from skillgraft.tasks import load_task, training_split

    tasks = [load_task(name) for name in names]
    for task in tasks:
        training_split(task, **data)
    return tasks
