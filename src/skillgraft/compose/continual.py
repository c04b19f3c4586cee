"""Forget-free continual learning (P1 §5.2, C.3): every task trains in a region of its own, and nothing is ever overwritten.

    learning = Learning(Plan(lr=0.02, batch_size=16, steps=200), search={"budget": 1e-3}, data=Rows(shots=64))
    add("STORE", "MiniLM", "sst2", learning=learning)
    Store.open("STORE").use("MiniLM", "sst2", "for-sst2")

For task n: tune the base on it, learn its region γ_n, go back to base + earlier grafts and train only inside γ_n minus the
earlier regions. The law: after any number of further tasks, the model for an earlier one has the same bits.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import reduce
from operator import sub
from pathlib import Path
from typing import Any

from skillgraft import graft_file, strict_json
from skillgraft.checkpoint import Checkpoint
from skillgraft.compose.store import Store, writing
from skillgraft.compose.tune import tune
from skillgraft.errors import InputError
from skillgraft.extraction import extract
from skillgraft.graft import Graft, total
from skillgraft.localize.skill import Rows, localize_skill
from skillgraft.measure.evaluate import evaluate
from skillgraft.measure.summary import summary
from skillgraft.region import Region
from skillgraft.tasks import Split, Task, load_task, training_split
from skillgraft.training.loop import OnStep
from skillgraft.training.plan import Plan

WORK = ".adding-"  # what a task's finished stages are kept in until the task is in the store
# A stage's name → what to call after each of its steps.
OnStage = Callable[[str], OnStep | None]


@dataclass(frozen=True)
class Learning:
    """How each task is learned: the plan of its own fine-tune, how its region is found, the plan of training inside it.

    `inside` is `plan` unless it is given. `search` holds keywords of `localize_skill`: budget, start, scope, name, steps, lr …
    """

    plan: Plan = field(default_factory=Plan)
    inside: Plan | None = None
    search: Mapping[str, Any] = field(default_factory=dict)
    data: Rows = field(default_factory=Rows)

    def split(self, task: Task) -> Split:
        """The rows that the task is learned from and validated on."""
        return training_split(task, shots=self.data.shots, rows=self.data.rows, seed=self.data.seed)

    def as_dict(self) -> dict[str, Any]:
        inside = self.inside.as_dict() if self.inside else None
        search = {key: str(value) if isinstance(value, Path) else value for key, value in self.search.items()}
        return {"plan": self.plan.as_dict(), "inside": inside, "search": search, "data": asdict(self.data)}


def add(
    store: str | Path,
    base: str | Path,
    task: str | Path | Task,
    *,
    learning: Learning = Learning(),
    tuned: str | Path | None = None,
    region: Region | None = None,
    command: str = "",
    on_stage: OnStage | None = None,
    snapshot_seconds: float = 60.0,
) -> Store:
    """Learn one more task and put it into the store, which is made if it is not there.

    `tuned` is a fine-tune of the base on the task that exists already, `region` a region of it: then these are not made anew.
    Killed at any time, the store is as it was; the same call again goes on where it stood.
    """
    loaded = task if isinstance(task, Task) else load_task(task)
    split = learning.split(loaded)
    source = Checkpoint.open(base)
    with writing(store, source) as before:
        given = [str(tuned) if tuned else None, region.digest if region is not None else None]
        work = before.path / f"{WORK}{_digest(before, split, learning, given)}"
        _forget_work(before.path, except_for=work)
        if loaded.name in before.tasks:
            raise InputError(
                f"{before.path} knows the task {loaded.name!r} already; begin another store to learn it anew"
            )
        adding = _Adding(before, source.path, loaded, split, learning, work, on_stage or _silent, snapshot_seconds)
        graft = adding.learn(Path(tuned) if tuned else None, region)
        after = before.keep(loaded.name, graft.with_info(command=command or None))
        _forget_work(before.path)
        return after


@dataclass(frozen=True)
class _Adding:
    """One task on its way into a store. Finished stages wait in `work`."""

    store: Store
    base: Path
    task: Task
    split: Split
    learning: Learning
    work: Path
    on_stage: OnStage
    snapshot_seconds: float

    def learn(self, tuned: Path | None, region: Region | None) -> Graft:
        """The task's own entries, after all stages."""
        info: dict[str, Any] = {"method": "given"}
        if region is None:
            tuned = tuned or self._tune("tuned", "fine-tuning", plan=self.learning.plan)
            located = self._locate(tuned)
            region, info = located.region, {key: located.info.get(key) for key in ("method", "readout")}
        earlier = [one.graft.without_heads() for one in self.store.grafts()]
        free = self._free(region, earlier)
        plan = self.learning.inside or self.learning.plan
        trained = self._tune("trained", "inside", plan=plan, start=total(earlier) if earlier else None, only=free)
        graft = extract(self.base, trained, region=free)
        recipe = {**self.learning.as_dict(), "after": list(self.store.tasks), "region": len(region)}
        return graft.with_info(task=self.task.name, recipe=recipe, **info, **self._measured(tuned, earlier, graft))

    def _free(self, region: Region, earlier: Sequence[Graft]) -> Region:
        """γ_n without the earlier regions."""
        free = reduce(sub, (graft.region for graft in earlier), region)
        if not len(free):
            found = "it is empty" if not len(region) else f"all its {len(region):,} entries belong to earlier tasks"
            raise InputError(f"task {self.task.name!r} has no region to train in: {found}; give a larger budget")
        return free

    def _tune(self, folder: str, stage: str, **rest: Any) -> Path:
        return tune(
            self.base,
            self.task,
            self.work / folder,
            data=self.learning.data,
            on_step=self.on_stage(stage),
            snapshot_seconds=self.snapshot_seconds,
            **rest,
        )

    def _locate(self, tuned: Path) -> Graft:
        file = self.work / "located.safetensors"
        if not file.is_file():
            on_step = self.on_stage("localizing")
            learned = self.learning.search.get("name", "learned") == "learned"
            search = {**self.learning.search, **({"on_step": on_step} if on_step and learned else {})}
            search |= {"data": self.learning.data, "out": file, "snapshot_seconds": self.snapshot_seconds}
            localize_skill(self.base, tuned, self.task, **search)
        return graft_file.load(file)

    def _measured(self, tuned: Path | None, earlier: Sequence[Graft], graft: Graft) -> dict[str, Any]:
        """Validation scores of base, of the task's own fine-tune and of what the store will give; the labels."""
        data = self.learning.data
        about: dict[str, Any] = {"labels": list(self.task.labels) or None}
        if not len(self.split.validation):
            return about
        said = evaluate(
            self.base,
            [self.task],
            tuned={"tuned": tuned} if tuned else {},
            grafts={"graft": total([*earlier, graft], head=graft)},
            split="validation",
            readout=data.readout,
            max_length=data.max_length,
            shots=data.shots,
            rows=data.rows,
            seed=data.seed,
        ).said[self.task.name]
        first, best = said["base"], said.get("tuned")
        scores = {"base": summary(first)}
        scores |= {"tuned": summary(best, base=first)} if best else {}
        return {**about, "scores": {"validation": {**scores, "graft": summary(said["graft"], base=first, tuned=best)}}}


def _digest(store: Store, split: Split, learning: Learning, given: list[str | None]) -> str:
    """What decides the numbers: stages of another request are not taken for this one's."""
    rows = [split.train.task, split.train.digest, split.validation.digest]
    asked = [rows, learning.as_dict(), [kept.digest for kept in store.kept], given]
    return hashlib.sha256(strict_json.canonical(asked).encode()).hexdigest()[:16]


def _forget_work(store: Path, *, except_for: Path | None = None) -> None:
    for folder in store.glob(f"{WORK}*"):
        if folder != except_for:
            shutil.rmtree(folder)


def _silent(_stage: str) -> None:
    """Nobody watches."""
