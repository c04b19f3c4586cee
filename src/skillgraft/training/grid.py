"""A recipe's grid: train every setting, keep the one that is best on validation (P1 A.2)."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from skillgraft import atomic
from skillgraft.checkpoint import Checkpoint
from skillgraft.errors import InputError
from skillgraft.ledger import Ledger
from skillgraft.tasks import Task, training_split
from skillgraft.training.finetune import Tuned, finetune
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
    plan = chosen.plan.with_changes(**given)
    if epochs is not None:
        if "steps" in given:
            raise InputError("give steps or epochs, not both")
        plan = plan.with_changes(steps=_steps(tasks, epochs, plan, rest))
    elif chosen.steps_by_shots and "steps" not in given:
        plan = plan.with_changes(steps=_paper_steps(tasks, rest.get("shots")))
    points = _points(chosen, given)
    if len(points) == 1:
        return finetune(base, tasks, out, plan=plan.with_changes(**points[0]), **rest)
    atomic.check_target(out)
    beside = out.parent / f".{out.name}.grid"
    runs = [
        _run(base, tasks, beside / f"{place}", plan.with_changes(**point), rest) for place, point in enumerate(points)
    ]
    best = max(runs, key=lambda run: sum(run.validation.values()))
    best.path.rename(out)
    shutil.rmtree(beside, ignore_errors=True)
    return replace(best, path=out)


def _points(chosen: Recipe, given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The grid without the settings that were given, each point once."""
    points = [{name: value for name, value in point.items() if name not in given} for point in chosen.grid]
    return [point for place, point in enumerate(points) if point not in points[:place]]


def _run(base: str | Path, tasks: Sequence[Task], out: Path, plan: Plan, rest: Mapping[str, Any]) -> Tuned:
    if (out / "skillgraft.json").is_file():  # finished before the grid was interrupted
        made = Ledger.of(Checkpoint.open(out)).made
        return Tuned(out, "", made["trained"], made["steps"], (), made["validation"])
    return finetune(base, tasks, out, plan=plan, **rest)


def _steps(tasks: Sequence[Task], epochs: float, plan: Plan, rest: Mapping[str, Any]) -> int:
    asked = {key: rest[key] for key in ("shots", "rows", "seed") if key in rest}
    rows = sum(len(training_split(task, **asked).train) for task in tasks)
    return max(1, round(epochs * rows / plan.batch_size))


def _paper_steps(tasks: Sequence[Task], shots: int | None) -> int:
    if shots is None:
        raise InputError("this recipe's steps follow from the shots (16 · labels · shots): give --shots or --steps")
    return sum(p1_steps(max(1, len(task.labels)), shots) for task in tasks)
