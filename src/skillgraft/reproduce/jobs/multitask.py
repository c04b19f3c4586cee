"""Steps of a model that was tuned on several tasks (P1 §5.1): each task's region, unions of regions, purified unions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from skillgraft import graft_file
from skillgraft.reproduce.jobs.artefacts import GRAFT, Needs, model_of
from skillgraft.reproduce.jobs.job import Job, no_tokens, search_tokens
from skillgraft.tasks import load_task


def task_region(
    out: Path, needs: Needs, *, base: str, tasks: Sequence[str], task: str, data: Mapping[str, Any], **search: Any
) -> None:
    """The graft of one of the `tasks` that a model was tuned on: its region by the task's own loss, the model's numbers."""
    from skillgraft.compose.multitask import task_regions
    from skillgraft.localize.skill import Rows

    name = load_task(task).name
    found = task_regions(base, model_of(needs["tuned"]), tasks, of=[name], data=Rows(**data), **search)
    graft_file.save(found[name], out / GRAFT, overwrite=True)


def unite(out: Path, needs: Needs) -> None:
    """The union of the grafts of all that is needed: tasks of one multi-task model."""
    from skillgraft.compose.multitask import union

    together = union([graft_file.load(step / GRAFT) for step in needs.values()])
    graft_file.save(together, out / GRAFT, overwrite=True)


def purify(
    out: Path,
    needs: Needs,
    *,
    base: str,
    tasks: Sequence[str],
    group: Sequence[str],
    data: Mapping[str, Any],
    steps: int,
) -> None:
    """A union after a few more steps on its mask with the loss of its group of tasks (P1 fig. 8d)."""
    from skillgraft.compose.multitask import group_name, purified
    from skillgraft.localize.skill import Rows

    united = graft_file.load(needs["union"] / GRAFT)
    parts = dict.fromkeys(group, united)  # the union of equals is itself
    found = purified(base, model_of(needs["tuned"]), parts, [group], tasks, steps=steps, data=Rows(**data))
    graft_file.save(found[group_name(group)], out / GRAFT, overwrite=True)


def _purify_tokens(settings: Mapping[str, Any]) -> float:
    return len(settings["group"]) * search_tokens(settings)


JOBS: Mapping[str, Job] = MappingProxyType(
    {
        "task-region": Job(task_region, search_tokens),
        "unite": Job(unite, no_tokens),
        "purify": Job(purify, _purify_tokens),
    }
)
