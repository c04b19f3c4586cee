"""What recipes call besides the library's public functions: asking one model about one task, choosing among runs, learning on.

Many steps ask about the same rows, so the opened base and its encoded rows stay in memory from one call to the next.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from skillgraft.compose.continual import Learning, add
from skillgraft.compose.maps import DisentanglementMap, disentanglement_map
from skillgraft.compose.rules import thinned
from skillgraft.compose.scales import as_graft, at_scale
from skillgraft.compose.store import ContinualStore
from skillgraft.errors import InputError
from skillgraft.files import atomic
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.folders.extract import extract
from skillgraft.folders.ledger import LEDGER
from skillgraft.folders.weight_files import read_json
from skillgraft.predictions.predictions import Predictions, classes_of
from skillgraft.regions.choose import ChosenRegion
from skillgraft.regions.localize import localize
from skillgraft.task_model import VALIDATION, TaskModel
from skillgraft.tasks.data import Data, as_task, training_pool
from skillgraft.training.linearised import tangent
from skillgraft.values.graft import Graft
from skillgraft.values.region import Region

TRAINED_ON = 0.95  # of the rows, where all are taken: a twentieth validates (P1 B.2)
# Validation scores are fractions of whole rows: 0.81 − 0.01 must reach 0.80, whatever the last bit.
_ROUNDING = 1e-9


def ask(
    base: str,
    task: str,
    *,
    tuned: Path | None = None,
    graft: Graft | None = None,
    ticket: Region | None = None,
    heads: Path | None = None,
    scale: float = 1.0,
    linear: bool = False,
    split: str = "test",
    data: Data = Data(),
) -> Predictions:
    """What the base, a tuned folder, or a graft on the base answers about a task's rows.

    With a `ticket` the tuned numbers stand inside that region and 0 elsewhere; `heads` are those of another tuned folder.
    `linear` reads the scores of the model linearised around the base; heads take no part in that.
    """
    opened = _opened(base, task, data)
    (name,) = opened.tasks
    asked: dict[str, Any] = {"split": split, "made_by": {"model": "tuned" if tuned else "graft" if graft else "base"}}
    if tuned is not None and ticket is None and heads is None and scale == 1.0 and not linear:
        return classes_of(opened.rows.over(tuned).predict(**asked)[name])
    change = _change(base, tuned, graft, ticket, heads)
    if change is None or not linear:
        scaled = change if change is None else at_scale(change, scale)
        opened.check_heads(scaled)
        return classes_of(opened.predict(scaled, **asked)[name])
    opened.check_heads(None)
    found = tangent(opened, name, {"delta": change.without_heads()}, split=split).at({"delta": scale})
    return replace(found, made_by={**found.made_by, **asked["made_by"], "scores": "linearised"})


def ask_thinned(
    base: str, task: str, *, grafts: Sequence[Graft | Path], rule: str, of: int = 0, data: Data = Data(), **options: Any
) -> Predictions:
    """What the base answers with one of several changes on it, thinned as a rule thins it before it joins them."""
    changes = [as_graft(graft, base) for graft in grafts]
    return ask(base, task, graft=thinned(changes, rule=rule, **options)[of], data=data)


def _change(
    base: str, tuned: Path | None, graft: Graft | None, ticket: Region | None, heads: Path | None
) -> Graft | None:
    """What is put on the base."""
    change = graft if tuned is None else extract(base, tuned)
    if change is not None and heads is not None:
        change = replace(change, heads=extract(base, heads).heads)
    return change if change is None or ticket is None else ticket_graft(change, ticket, Checkpoint.open(base))


@lru_cache(maxsize=2)
def _opened(base: str, task: str, data: Data) -> TaskModel:
    """The base with these rows."""
    return _model(base, task, data.readout, data.max_length).with_data(data)


@lru_cache(maxsize=2)
def _model(base: str, task: str, readout: str, max_length: int | None) -> TaskModel:
    return TaskModel.open(base, [task], data=Data(readout=readout, max_length=max_length))


def all_rows(task: str, *, most: int, data: Data) -> Data:
    """All rows of a task train, `most` per class, but for a twentieth that validates."""
    pool = training_pool(as_task(task))
    limit = most * max(1, len(pool.label_names))
    return replace(data, train_rows=max(1, int(TRAINED_ON * min(len(pool), limit))))


def ticket_graft(change: Graft, region: Region, base: Checkpoint) -> Graft:
    """The graft that leaves tuned's numbers in the region and makes everything else of its scope 0 (P1 fig. 4b).

    Outside the scope everything is as in the tuned model.
    """
    kept, outside = change & region, change.without_heads().outside(Region.full(region.scope))
    before = {name: base.flat(name) for name in region.scope.shapes}
    after = {name: np.zeros_like(numbers) for name, numbers in before.items()}
    for name, at in region.sites.items():
        after[name][at] = before[name][at]  # entries that tuned left alone
    for name, at in kept.region.sites.items():
        after[name][at] = kept.change[name]
    whole = replace(kept, region=Region.full(region.scope), before=before, change=after)
    return whole + outside if len(outside) else whole


def ticket_region(base: str, tuned: Path, *, task: str, out: Path, data: Data = Data(), **asked: Any) -> ChosenRegion:
    """The region of a lottery ticket: searched with 0 in place of the base's numbers. What is 0 outside it is no graft."""
    file = out.with_name("search.safetensors")
    file.unlink(missing_ok=True)  # killed after the last file
    graft = localize(base, tuned, task=task, data=data, out=file, reference="zero", **asked).graft
    file.unlink()
    return ChosenRegion(graft.region, {}, graft.base_fingerprint, graft.info)


@dataclass(frozen=True)
class ChosenRun:
    """The run that was chosen among several: its folder, and the learning rates with their validation scores."""

    path: Path
    lr: float
    validation: Mapping[str, float]

    @property
    def facts(self) -> dict[str, Any]:
        return {"lr": self.lr, "validation": dict(self.validation)}


def best_rate(tuned: Mapping[str, Path], *, task: str, out: Path, within: float = 0.0) -> ChosenRun:
    """Of models tuned with several learning rates (rate → folder) the one that P2's comparison takes.

    It is the one with the smallest learning rate whose validation score lies at most `within` below the best: larger steps
    than a skill needs spoil its vector. The model's files are linked, not copied.
    """
    scores = {lr: _validation_score(folder, as_task(task).name) for lr, folder in tuned.items()}
    enough = [lr for lr, score in scores.items() if score >= max(scores.values()) - within - _ROUNDING]
    chosen = min(enough, key=float)
    shutil.rmtree(out, ignore_errors=True)  # what a killed run left
    shutil.copytree(tuned[chosen], out, copy_function=os.link)
    return ChosenRun(out, float(chosen), scores)


def _validation_score(folder: Path, task: str) -> float:
    found = read_json(folder / LEDGER)["made"]["validation"]
    if task not in found:
        raise InputError(
            f"a learning rate is chosen on validation rows, but task {task!r} has none left: train on fewer rows"
        )
    return float(found[task])


def learn(
    base: str,
    task: str,
    *,
    learning: Learning,
    tuned: Path,
    region: Region,
    out: Path,
    before: Path | None = None,
) -> ContinualStore:
    """One more task in a copy of the store `before`, or in a new one; the task's own fine-tune and region are there.

    So every task has a store of its own, and a killed run repeats no earlier task; grafts are small.
    """
    if before is not None and not out.exists():
        with atomic.new_folder(out) as copy:
            shutil.copytree(before, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*"))
    if out.exists() and as_task(task).name in ContinualStore.open(out).tasks:  # killed after the last file
        return ContinualStore.open(out)
    return add(out, base, task, learning=learning, tuned=tuned, region=region)


def recall(store: Path, *, task: str) -> Graft:
    """What a store puts on the base to answer for one of its tasks."""
    return ContinualStore.open(store).graft(as_task(task).name)


def disentangle(
    base: str,
    *,
    tasks: Sequence[str],
    grafts: Sequence[Graft | Path],
    alphas: Sequence[float],
    linear: bool = False,
    data: Data = Data(),
) -> DisentanglementMap:
    """ξ over the scales of two tasks' changes (P2 fig. 2); a tuned folder stands for all that it changes."""
    opened = TaskModel.open(base, tasks, data=data, splits=(VALIDATION,))
    changes = [as_graft(graft, base).without_heads() for graft in grafts]
    return disentanglement_map(opened, dict(zip(opened.tasks, changes, strict=True)), alphas=alphas, linear=linear)
