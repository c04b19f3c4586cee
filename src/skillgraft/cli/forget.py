"""skillgraft forget"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from skillgraft.cli import output
from skillgraft.cli.arguments import (
    MACHINE,
    ROWS_200,
    GraftFile,
    Json,
    MachineAsked,
    ModelName,
    Out,
    Points,
    RowsAsked,
    sharing,
)


@sharing(data=ROWS_200, run_as=MACHINE)
def run(
    base: ModelName,
    graft: GraftFile,
    out: Out,
    task: Annotated[str, typer.Option("--task", metavar="T", help="The task to forget.")],
    control: Annotated[
        list[str], typer.Option("--control", metavar="C", help="A task or text file to keep; may be repeated.")
    ],
    keep_control: Annotated[float, typer.Option(help="Share of BASE's accuracy that every control keeps.")] = 0.95,
    points: Points = 21,
    most: Annotated[float, typer.Option(help="The largest scale to try.")] = 3.0,
    json: Json = False,
    *,
    data: RowsAsked,
    run_as: MachineAsked,
) -> None:
    """Take a skill out of BASE and leave other skills alone.

    The scale is the one that lowers the task most while the controls stay.

    \b
    Examples
      skillgraft forget BASE sst2.safetensors --task sst2 --control ag_news -o forget-sst2.safetensors
      skillgraft apply BASE forget-sst2.safetensors -o WITHOUT
    """
    from skillgraft.files import atomic, graft_file
    from skillgraft.tasks.data import as_rows, load_tasks
    from skillgraft.values.info import FORMATS

    atomic.check_target(out)
    skill = output.load_graft(graft)
    # Wrong data are refused here, before torch is imported, which takes seconds; they are read again later.
    target, *controls = load_tasks([task, *map(as_rows, control)])
    for each in (target, *controls):
        data.needed(each, "validation")

    from skillgraft.compose.forgetting import forget

    asked: dict[str, Any] = {"keep": keep_control, "points": points, "most": most, "data": data}
    with output.running("forgetting", **run_as) as runtime:
        found = forget(base, skill, task=target, controls=controls, runtime=runtime, **asked)
    graft_file.save(found, out)
    facts = {key: found.info["recipe"][key] for key in ("scale", "scores", "base", "points")}
    names = [each.name for each in (target, *controls)]
    completed = [name for name in names if name in facts["points"][0].get("exact", {})]
    header = ["scale", *names, *(f"{name} exact" for name in completed), f"keeps {keep_control:.0%}"]
    table = [
        (
            f"{one['scale']:g}",
            *(f"{one['nll'][name]:.3f}" if name in completed else f"{100 * one['scores'][name]:.1f}" for name in names),
            *(f"{100 * one['exact'][name]:.1f}" for name in completed),
            "yes" if one["keeps"] else "no",
        )
        for one in facts["points"]
    ]
    lines = [
        f"{out}: {len(found):,} entries at scale {-facts['scale']:g}",
        *output.digest_lines({out.name: found.digest}),
    ]
    output.show(
        {"format": FORMATS["scales"], "out": str(out), "digest": found.digest, **facts},
        as_json=json,
        lines=[*lines, *output.columns(table, header=header)],
    )
