"""A recipe's grid: train every setting, keep the one that is best on validation (P1 A.2)."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from skillgraft import atomic
from skillgraft.checkpoint import Checkpoint
from skillgraft.errors import InputError
from skillgraft.ledger import LEDGER, Ledger
from skillgraft.tasks import Split, Task, training_split
from skillgraft.training.finetune import LOG, Tuned, check_validation, finetune
from skillgraft.training.plan import Plan, Recipe, p1_steps, recipe


def finetune_recipe(
    base: str | Path,
    tasks: Sequence[Task],
    out: Path,
    *,
    recipe_name: str | None = None,
    settings: Mapping[str, Any] | None = None,
    epochs: float | None = None,
    **rest: Any,
) -> Tuned:
    """`finetune` by a named recipe whose settings may be changed; a setting that is given leaves the grid.

    Every point of the grid is trained beside `out` and resumes by itself; the best takes its place, the others go.
    """
    chosen = recipe(recipe_name) if recipe_name else Recipe(Plan())
    given = dict(settings or {})
    if epochs is not None and "steps" in given:
        raise InputError("give steps or epochs, not both")
    if epochs is None and chosen.steps_by_shots and "steps" not in given:
        given["steps"] = _paper_steps(tasks, rest.get("shots"))
    plans = [chosen.plan.with_changes(**given, **point) for point in _points(chosen, given)]
    asked = {key: rest[key] for key in ("shots", "rows", "seed") if key in rest}
    needs_rows = epochs is not None or len(plans) > 1
    splits = [training_split(task, **asked) for task in tasks] if needs_rows else []
    if epochs is not None:
        plans = [plan.with_changes(steps=_steps(splits, epochs, plan)) for plan in plans]
    if len(plans) == 1:
        return finetune(base, tasks, out, plan=plans[0], **rest)
    check_validation(splits, "a recipe's grid is decided on validation rows")
    atomic.check_target(out)
    beside = out.parent / f".{out.name}.grid-{_digest(base, splits, plans, rest)}"
    runs = [_run(base, tasks, beside / f"{place}", plan, rest) for place, plan in enumerate(plans)]
    best = max(runs, key=lambda run: sum(run.validation.values()))
    accelerator = Accelerator()
    if accelerator.is_main_process:
        best.path.rename(out)
        for grid in out.parent.glob(f".{out.name}.grid-*"):
            shutil.rmtree(grid, ignore_errors=True)
    accelerator.wait_for_everyone()
    return replace(best, path=out)


def _points(chosen: Recipe, given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The grid without the settings that were given, each point once."""
    points = [{name: value for name, value in point.items() if name not in given} for point in chosen.grid]
    return [point for place, point in enumerate(points) if point not in points[:place]]


def _digest(base: str | Path, splits: Sequence[Split], plans: Sequence[Plan], rest: Mapping[str, Any]) -> str:
    """What decides the runs of a grid: what another request has finished is not taken for ours."""
    regions = [region.digest if region is not None else None for region in (rest.get("only"), rest.get("outside"))]
    rows = [(split.train.digest, split.validation.digest) for split in splits]
    read = [rest.get("readout"), rest.get("max_length")]
    content = json.dumps([str(base), rows, [plan.as_dict() for plan in plans], regions, read])
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def _run(base: str | Path, tasks: Sequence[Task], out: Path, plan: Plan, rest: Mapping[str, Any]) -> Tuned:
    if not (out / LEDGER).is_file():
        return finetune(base, tasks, out, plan=plan, **rest)
    made = Ledger.of(Checkpoint.open(out)).made  # finished before the grid was interrupted
    readouts = "+".join(dict.fromkeys(settings["readout"] for settings in made["readout"].values()))
    log = [json.loads(line) for line in (out / LOG).read_text(encoding="utf-8").splitlines()]
    return Tuned(out, readouts, made["trained"], made["steps"], tuple(log), made["validation"])


def _steps(splits: Sequence[Split], epochs: float, plan: Plan) -> int:
    return max(1, round(epochs * sum(len(split.train) for split in splits) / plan.batch_size))


def _paper_steps(tasks: Sequence[Task], shots: int | None) -> int:
    if shots is None:
        raise InputError("this recipe's steps follow from the shots (16 · labels · shots): give --shots or --steps")
    return sum(p1_steps(max(1, len(task.labels)), shots) for task in tasks)
