"""A recipe's grid: train every setting, keep the one that is best on validation (P1 A.2)."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from skillgraft.errors import InputError
from skillgraft.files import atomic
from skillgraft.opening.processes import Processes
from skillgraft.tasks.data import Data, TaskLike, load_tasks
from skillgraft.tasks.task import Task
from skillgraft.training.finetune import Tuned, check_validation, finetune
from skillgraft.training.plan import TrainingPlan, TrainingRecipe, p1_steps, recipe
from skillgraft.values import strict_json
from skillgraft.values.region import Region


def finetune_recipe(
    base: str | Path,
    tasks: Sequence[TaskLike],
    *,
    out: str | Path,
    recipe_name: str | None = None,
    settings: Mapping[str, Any] | None = None,
    epochs: float | None = None,
    data: Data = Data(),
    **rest: Any,
) -> Tuned:
    """`finetune` by a named recipe whose settings may be changed; a setting that is given leaves the grid.

    Every point of the grid is trained beside `out` and resumes by itself; the best takes its place, the others go. `rest` are
    keywords of `finetune`.
    """
    loaded, target = load_tasks(tasks), Path(out)
    plans = _plans(loaded, recipe_name, dict(settings or {}), epochs, data)
    if len(plans) == 1:
        return finetune(base, loaded, out=target, plan=plans[0], data=data, **rest)
    for task in loaded:
        check_validation(task, len(data.split(task).validation), "a recipe's grid is decided on validation rows")
    atomic.check_target(target)
    beside = target.parent / f".{target.name}.grid-{_digest(base, loaded, data, plans, rest)}"
    runs = [
        finetune(base, loaded, out=beside / str(index), plan=plan, data=data, reuse=True, **rest)
        for index, plan in enumerate(plans)
    ]
    best = max(runs, key=lambda run: sum(run.validation.values()))
    processes = Processes.here()
    if processes.is_main:
        best.path.rename(target)
        for grid in target.parent.glob(f".{target.name}.grid-*"):
            shutil.rmtree(grid, ignore_errors=True)
    processes.wait()
    return replace(best, path=target)


def _plans(
    tasks: Sequence[Task], recipe_name: str | None, given: dict[str, Any], epochs: float | None, data: Data
) -> list[TrainingPlan]:
    """Every point of the grid as a plan."""
    chosen = recipe(recipe_name) if recipe_name else TrainingRecipe(TrainingPlan())
    if epochs is not None and "steps" in given:
        raise InputError("give steps or epochs, not both")
    if epochs is None and chosen.steps_by_shots and "steps" not in given:
        given["steps"] = _paper_steps(tasks, data.shots)
    plans = [chosen.plan.with_changes(**given, **point) for point in _points(chosen, given)]
    if epochs is None:
        return plans
    rows = sum(len(data.split(task).train) for task in tasks)
    return [plan.with_changes(steps=max(1, round(epochs * rows / plan.batch_size))) for plan in plans]


def _points(chosen: TrainingRecipe, given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The grid without the settings that were given, each point once."""
    points = [{name: value for name, value in point.items() if name not in given} for point in chosen.grid]
    return [point for index, point in enumerate(points) if point not in points[:index]]


def _digest(
    base: str | Path, tasks: Sequence[Task], data: Data, plans: Sequence[TrainingPlan], rest: Mapping[str, Any]
) -> str:
    """Names the folder of a grid. Each run in it checks its own settings, so this need not tell every difference."""
    regions = [
        value.digest if isinstance(value, Region) else None for value in (rest.get("inside"), rest.get("outside"))
    ]
    asked = [str(base), [task.name for task in tasks], asdict(data), [plan.as_dict() for plan in plans], regions]
    return hashlib.sha256(strict_json.canonical(asked).encode()).hexdigest()[:12]


def _paper_steps(tasks: Sequence[Task], shots: int | None) -> int:
    if shots is None:
        raise InputError("this recipe's steps follow from the shots (16 · labels · shots): give --shots or --steps")
    return sum(p1_steps(max(1, len(task.labels)), shots) for task in tasks)
