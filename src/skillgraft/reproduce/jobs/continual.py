"""Steps of tasks that are learned one after the other (P1 §5.2): into a store, or one over the other."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from skillgraft import atomic, graft_file
from skillgraft.reproduce.jobs.artefacts import GRAFT, MODEL, Needs, change_of, model_of, region_of
from skillgraft.reproduce.jobs.job import Job, no_tokens, tune_tokens
from skillgraft.tasks import load_task

SKILLS = "skills"  # the folder of the store of grafts


def learn(out: Path, needs: Needs, *, base: str, task: str, plan: Mapping[str, Any], **data: Any) -> None:
    """One more task in a store of grafts: that of the step `before`, or a new one. Its own fine-tune and region are there.

    Every task is a step with a store of its own, so a killed run repeats no earlier task; grafts are small.
    """
    from skillgraft.compose.continual import Learning, add
    from skillgraft.compose.store import Store
    from skillgraft.localize.skill import Rows
    from skillgraft.training.plan import Plan

    store = out / SKILLS
    if "before" in needs and not store.exists():
        with atomic.new_folder(store) as copy:
            shutil.copytree(needs["before"] / SKILLS, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*"))
    if store.exists() and load_task(task).name in Store.open(store).tasks:  # killed after the last file
        return
    learning = Learning(Plan(**plan), data=Rows(**data))
    add(store, base, task, learning=learning, tuned=model_of(needs["tuned"]), region=region_of(needs["region"]))


def recall(out: Path, needs: Needs, *, task: str) -> None:
    """What a store puts on the base to answer for one of its tasks, as a graft."""
    from skillgraft.compose.store import Store

    graft_file.save(Store.open(needs["store"] / SKILLS).graft(load_task(task).name), out / GRAFT, overwrite=True)


def tune_on(out: Path, needs: Needs, *, base: str, task: str, plan: Mapping[str, Any], **data: Any) -> None:
    """Go on tuning all parameters of another step's model on the next task, with the base's own readout."""
    from skillgraft.compose.tune import tune
    from skillgraft.localize.skill import Rows
    from skillgraft.training.plan import Plan

    body = change_of({"tuned": needs["start"]}, base).without_heads()
    tune(base, load_task(task), out / MODEL, plan=Plan(**plan), start=body, data=Rows(**data))


JOBS: Mapping[str, Job] = MappingProxyType(
    {
        "learn": Job(learn, tune_tokens),
        "recall": Job(recall, no_tokens),
        "tune-on": Job(tune_on, tune_tokens),
    }
)
