"""skillgraft forget"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from skillgraft.cli import output
from skillgraft.cli.arguments import (
    GraftFile,
    Json,
    JudgedRows,
    MaxLength,
    ModelName,
    Out,
    Points,
    ReadoutName,
    Seed,
    Shots,
    TrainRows,
)


def run(
    base: ModelName,
    graft: GraftFile,
    out: Out,
    task: Annotated[str, typer.Option("--task", metavar="T", help="The task to forget.")],
    control: Annotated[list[str], typer.Option("--control", metavar="C", help="A task to keep; may be repeated.")],
    keep_control: Annotated[float, typer.Option(help="Share of BASE's accuracy that every control keeps.")] = 0.95,
    points: Points = 21,
    rows: JudgedRows = 200,
    shots: Shots = None,
    train_rows: TrainRows = None,
    seed: Seed = 0,
    readout: ReadoutName = "auto",
    max_length: MaxLength = None,
    json: Json = False,
) -> None:
    """Take a skill out of BASE: the negated graft that lowers the task most and leaves the controls alone.

    \b
    Examples
      skillgraft forget BASE sst2.safetensors --task sst2 --control ag_news -o forget-sst2.safetensors
      skillgraft apply BASE forget-sst2.safetensors -o WITHOUT
    """
    from skillgraft import atomic, graft_file
    from skillgraft.compose.judged import judged_rows

    atomic.check_target(out)
    skill = output.load_graft(graft)
    data: dict[str, Any] = {"rows": rows, "shots": shots, "train_rows": train_rows, "seed": seed}
    # Wrong data are refused here, before torch is imported, which takes seconds; they are read again later.
    target, *controls = [one.name for one, _ in judged_rows([task, *control], **data)]

    from skillgraft.compose.bench import Workbench
    from skillgraft.compose.forgetting import forget

    output.only_our_progress()
    bench = Workbench.open(base, [task, *control], readout=readout, max_length=max_length, **data)
    asked: dict[str, Any] = {"keep": keep_control, "points": points}
    with output.progress("forgetting") as progress:
        found = forget(bench, skill, target=target, controls=controls, progress=progress, **asked)
    facts = found.as_json()
    chosen = {key: facts[key] for key in ("scale", "scores", "base")}
    recipe = {"forget": target, "controls": controls, "graft": skill.digest, **asked, **data, **chosen}
    graft_file.save(found.graft.with_info(recipe=recipe, command=output.command_line()), out)
    header = ["scale", *bench.tasks, f"keeps {keep_control:.0%}"]
    table = [
        (f"{one.scale:g}", *(f"{100 * one.scores[name]:.1f}" for name in bench.tasks), "yes" if one.keeps else "no")
        for one in found.trials
    ]
    lines = [f"{out}: {len(found.graft):,} entries at scale {-found.chosen.scale:g}"]
    output.show({"out": str(out), **facts}, as_json=json, lines=[*lines, *output.columns(table, header=header)])
