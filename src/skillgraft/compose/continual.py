"""Forget-free continual learning (P1 §5.2, C.3): every task trains in a region of its own, and nothing is ever overwritten.

    plan = TrainingPlan(lr=0.02, batch_size=16, steps=200)
    learning = Learning(plan, search={"density": 1e-3}, data=Data(shots=64))
    add("STORE", "MiniLM", "sst2", learning=learning)
    ContinualStore.open("STORE").use("MiniLM", "sst2", "for-sst2")

For task n: tune the base on it, learn its region γ_n, go back to base + earlier grafts and train only inside γ_n minus the
earlier regions. The law: after any number of further tasks, the model for an earlier one has the same bits.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from operator import sub
from pathlib import Path
from typing import Any

from skillgraft.compose.store import ContinualStore, writing
from skillgraft.errors import InputError
from skillgraft.files import graft_file
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.folders.extract import extract
from skillgraft.measure.evaluate import evaluate
from skillgraft.measure.summary import summary
from skillgraft.opening.device import find_device, working_format
from skillgraft.opening.runtime import Progress, Runtime, silent
from skillgraft.regions.localize import localize
from skillgraft.regions.methods import P1
from skillgraft.tasks.data import Data, Split, TaskLike, as_task
from skillgraft.tasks.task import Task
from skillgraft.training.finetune import FROM_GRAFTS, finetune
from skillgraft.training.plan import TrainingPlan
from skillgraft.values import strict_json
from skillgraft.values.graft import Graft, total
from skillgraft.values.region import Region

WORK = ".adding-"  # what a task's finished stages are kept in until the task is in the store
# A stage's name → what to call after each of its steps.
OnStage = Callable[[str], Progress]


@dataclass(frozen=True)
class Learning:
    """How each task is learned: the plan of its own fine-tune, how its region is found, the plan of training inside it.

    `inside` is `plan` unless it is given. `search` holds keywords of `localize`: density, start, scope, steps, lr …; its method
    is P1's unless it has one.
    """

    plan: TrainingPlan = field(default_factory=TrainingPlan)
    inside: TrainingPlan | None = None
    search: Mapping[str, Any] = field(default_factory=dict)
    data: Data = field(default_factory=Data)

    def __post_init__(self) -> None:
        if self.plan_inside.method not in FROM_GRAFTS:
            raise InputError(
                f"a task is trained inside a region of the model itself: method {' or '.join(FROM_GRAFTS)}, "
                f"not {self.plan_inside.method!r}"
            )

    @property
    def plan_inside(self) -> TrainingPlan:
        """The plan of training inside the region."""
        return self.inside or self.plan

    def split(self, task: Task) -> Split:
        """The rows that the task is learned from and validated on."""
        return self.data.split(task)

    def as_dict(self) -> dict[str, Any]:
        inside = self.inside.as_dict() if self.inside else None
        search = {key: str(value) if isinstance(value, Path) else value for key, value in self.search.items()}
        return {"plan": self.plan.as_dict(), "inside": inside, "search": search, "data": asdict(self.data)}


def add(
    store: str | Path,
    base: str | Path,
    task: TaskLike,
    *,
    learning: Learning = Learning(),
    tuned: str | Path | None = None,
    region: Region | None = None,
    convert: bool = False,
    on_stage: OnStage | None = None,
    runtime: Runtime = Runtime(),
) -> ContinualStore:
    """Learn one more task and put it into the store, which is made if it is not there.

    `tuned` is a fine-tune of the base on the task that exists already, `region` a region of it: then these are not made anew.
    `convert` rounds such a fine-tune of another number format to the base's.
    Killed at any time, the store is as it was; the same call again goes on where it stood.
    """
    loaded = as_task(task)
    split = learning.split(loaded)
    source = Checkpoint.open(base)
    # Refused here too, so that a wrong request leaves no empty store behind.
    working_format(str(source.format), runtime.dtype)
    runtime.check_whole("continual learning")
    find_device(runtime.device)
    with writing(store, source) as before:
        given = [Checkpoint.open(tuned).digest if tuned else None, region.digest if region is not None else None]
        work = before.path / f"{WORK}{_digest(before, source, split, learning, given)}"
        _forget_work(before.path, except_for=work)
        if loaded.name in before.tasks:
            raise InputError(
                f"{before.path} knows the task {loaded.name!r} already; begin another store to learn it anew"
            )
        adding = _Adding(before, source, loaded, split, learning, work, on_stage or _silent, runtime, convert)
        graft = adding.learn(Path(tuned) if tuned else None, region)
        after = before.keep(loaded.name, graft.with_info(command=runtime.command or None))
        _forget_work(before.path)
        return after


@dataclass(frozen=True)
class _Adding:
    """One task on its way into a store. Finished stages wait in `work`."""

    store: ContinualStore
    source: Checkpoint
    task: Task
    split: Split
    learning: Learning
    work: Path
    on_stage: OnStage
    runtime: Runtime
    convert: bool

    @property
    def base(self) -> Path:
        return self.source.path

    def learn(self, tuned: Path | None, region: Region | None) -> Graft:
        """The task's own entries, after all stages."""
        info: dict[str, Any] = {"method": "given"}
        if region is None:
            tuned = tuned or self._tune("tuned", "fine-tuning", plan=self.learning.plan)
            located = self._locate(tuned)
            region, info = located.region, {key: located.info.get(key) for key in ("method", "readout")}
        earlier = [one.graft.without_heads() for one in self.store.grafts()]
        free = self._free(region, earlier)
        start = total(earlier) if earlier else None
        trained = self._tune("trained", "inside", plan=self.learning.plan_inside, start=start, inside=free)
        graft = extract(self.base, trained, region=free)
        recipe = {**self.learning.as_dict(), "after": list(self.store.tasks), "region": len(region)}
        return graft.with_info(task=self.task.name, recipe=recipe, **info, **self._measured(tuned, earlier, graft))

    def _free(self, region: Region, earlier: Sequence[Graft]) -> Region:
        """γ_n without the earlier regions."""
        free = reduce(sub, (graft.region for graft in earlier), region)
        if not len(free):
            found = "it is empty" if not len(region) else f"all its {len(region):,} entries belong to earlier tasks"
            raise InputError(f"task {self.task.name!r} has no region to train in: {found}; give a larger density")
        return free

    def _tune(self, folder: str, stage: str, **rest: Any) -> Path:
        runtime = replace(self.runtime, progress=self.on_stage(stage))
        out = self.work / folder
        finetune(self.base, [self.task], out=out, data=self.learning.data, reuse=True, runtime=runtime, **rest)
        return out

    def _locate(self, tuned: Path) -> Graft:
        file = self.work / "located.safetensors"
        if not file.is_file():
            runtime = replace(self.runtime, progress=self.on_stage("localizing"))
            asked: dict[str, Any] = {"task": self.task, "data": self.learning.data, "out": file, "runtime": runtime}
            localize(self.base, tuned, convert=self.convert, **asked, **{"method": P1, **self.learning.search})
        return graft_file.load(file)

    def _measured(self, tuned: Path | None, earlier: Sequence[Graft], graft: Graft) -> dict[str, Any]:
        """Validation scores of base, of the task's own fine-tune and of what the store will give; the labels."""
        about: dict[str, Any] = {"labels": list(self.task.labels) or None}
        if not len(self.split.validation):
            return about
        found = evaluate(
            self.base,
            [self.task],
            tuned={"tuned": tuned} if tuned else {},
            grafts={"graft": total([*earlier, graft], head=graft)},
            split="validation",
            data=self.learning.data,
            convert=self.convert,
            runtime=replace(self.runtime, progress=silent),
        )[self.task.name]
        first, best = found["base"], found.get("tuned")
        scores = {"base": summary(first)}
        scores |= {"tuned": summary(best, base=first)} if best else {}
        return {**about, "scores": {"validation": {**scores, "graft": summary(found["graft"], base=first, tuned=best)}}}


def _digest(
    store: ContinualStore, source: Checkpoint, split: Split, learning: Learning, given: list[str | None]
) -> str:
    """What decides the numbers: stages of another request are not taken for this one's."""
    rows = [split.train.task, split.train.digest, split.validation.digest]
    asked = [source.digest, rows, learning.as_dict(), [kept.digest for kept in store.kept], given]
    return hashlib.sha256(strict_json.canonical(asked).encode()).hexdigest()[:16]


def _forget_work(store: Path, *, except_for: Path | None = None) -> None:
    for folder in store.glob(f"{WORK}*"):
        if folder != except_for:
            shutil.rmtree(folder)


def _silent(_stage: str) -> Progress:
    return silent
