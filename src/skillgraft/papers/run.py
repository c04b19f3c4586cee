"""Where steps run and what becomes of their results: `Store`, executors, `run`.

    with executor(2) as workers:
        store = Store(Path("work"), workers.threads)
        failures = run([answer], store, executor=workers)
    store.read(answer)

STORE/finetune-3f0c…/            the result and step.json (which call it was, how long it took): complete or not there
STORE/finetune-3f0c….work/       unfinished: the next run goes on there
STORE/.locks/finetune-3f0c…      held by the process that works on it
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from types import MappingProxyType
from typing import Any, Protocol
from urllib.parse import quote, unquote

from skillgraft.errors import InputError, SkillgraftError
from skillgraft.files import atomic, graft_file
from skillgraft.papers.steps import Part, Step, digest, in_order, plain, resolved, signature_of
from skillgraft.predictions.predictions import Predictions
from skillgraft.tasks.data import Data
from skillgraft.values.graft import Graft
from skillgraft.values.info import versions

MODEL, GRAFT, REGION, FACTS, RECORD = "model", "graft.safetensors", "region.safetensors", "facts.json", "step.json"
OnStep = Callable[[Step, int, int], None]  # a step that ended, how many have, of how many


@dataclass(frozen=True)
class Kind:
    """How results of one type are kept: the file or folder, how it is filled, and what is read from it.

    A function that takes `out` has filled it itself: then `save` adds what stands beside it.
    """

    file: str
    save: Callable[[Any, Path], None]
    load: Callable[[Path], Any]


def _save_grafts(grafts: Mapping[str, Graft], folder: Path) -> None:
    for name, graft in grafts.items():
        graft_file.save(graft, _of_name(folder, name), overwrite=True)


def _save_nested(found: Any, file: Path) -> None:
    _save_grafts({f"{density:g}": graft for density, graft in found.nested.items()}, file.parent)


def _load_grafts(folder: Path) -> dict[str, Graft]:
    return {unquote(file.stem): graft_file.load(file) for file in sorted(folder.iterdir())}


def _of_name(folder: Path, name: str) -> Path:
    return folder / f"{quote(name, safe='+')}.safetensors"


def _save_chosen(chosen: Any, file: Path) -> None:
    about = {"base_fingerprint": chosen.base_fingerprint, "info": chosen.info}
    graft_file.save_region(chosen.region, file, overwrite=True, **about)
    _save_facts(chosen.facts, file.with_name(FACTS))


def _save_facts(facts: Any, file: Path) -> None:
    file.write_text(json.dumps(plain(facts), default=float) + "\n", encoding="utf-8")


def _load_facts(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


_PLAIN = Kind(FACTS, _save_facts, _load_facts)
_FOLDER = Kind(MODEL, lambda _result, _folder: None, lambda folder: folder)  # the function has written all of it
# The type that a function says it returns → how that is kept; everything else is plain facts.
KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "Tuned": _FOLDER,
        "ChosenRun": replace(_FOLDER, save=lambda run, folder: _save_facts(run.facts, folder.with_name(FACTS))),
        "Localization": Kind(GRAFT, _save_nested, graft_file.load),
        "Graft": Kind(GRAFT, lambda graft, file: graft_file.save(graft, file, overwrite=True), graft_file.load),
        "dict[str, Graft]": Kind("grafts", _save_grafts, _load_grafts),
        "ChosenRegion": Kind(REGION, _save_chosen, graft_file.load_region),
        "Predictions": Kind("predictions.npz", lambda found, file: found.save(file), Predictions.load),
        "Data": Kind(FACTS, _save_facts, lambda file: Data(**_load_facts(file))),
        "ContinualStore": replace(_FOLDER, file="skills"),
    }
)
# Parts of a result → how they are read from the step's folder.
PARTS: Mapping[str, Callable[[Path, str], Any]] = MappingProxyType(
    {
        "region": lambda folder, _: graft_file.load_region(folder / GRAFT),
        "facts": lambda folder, _: _load_facts(folder / FACTS),
        "recipe": lambda folder, _: graft_file.load_info(folder / GRAFT)[1]["recipe"],
        "checkpoint": lambda folder, name: folder / f"{MODEL}.steps" / name,
        "density": lambda folder, density: graft_file.load(_of_name(folder, density)),
        "item": lambda folder, name: graft_file.load(_of_name(folder / "grafts", name)),
    }
)


def threads_here() -> int:
    """How many threads torch takes in this process."""
    set_by_user = os.environ.get("OMP_NUM_THREADS", "")
    if "torch" not in sys.modules and set_by_user.isdigit():
        return int(set_by_user)
    import torch

    return torch.get_num_threads()


@dataclass(frozen=True)
class Store:
    """A folder of results; several processes may use one. They go by `threads`, too: sums in another order are other numbers."""

    folder: Path
    threads: int = field(default_factory=threads_here)

    def path(self, step: Step) -> Path:
        return self.folder / f"{step.name}-{digest([step.key, self.threads])[:16]}"

    def has(self, step: Step) -> bool:
        return (self.path(step) / RECORD).is_file()

    def read(self, value: Step | Part) -> Any:
        """The result of a finished step, or a part of it."""
        if isinstance(value, Part):
            return PARTS[value.name](self.path(value.step), value.of)
        kind = kind_of(value)
        return kind.load(self.path(value) / kind.file)

    def make(self, step: Step) -> None:
        """Run a step and keep its result, unless it is there. What an interrupted run left is gone on with."""
        target = self.path(step)
        with atomic.locked(self.folder / ".locks" / target.name):
            if self.has(step):  # another process was faster
                return
            work = target.with_name(f"{target.name}.work")
            work.mkdir(parents=True, exist_ok=True)
            began = time.monotonic()
            self._call(step, work)
            about = {
                "function": step.name, "key": step.key, "threads": self.threads, "arguments": plain(step.arguments),
                "seconds": round(time.monotonic() - began, 2), "versions": versions(),
            }  # fmt: skip
            (work / RECORD).write_text(json.dumps(about, indent=1, default=str) + "\n", encoding="utf-8")
            work.rename(target)

    def _call(self, step: Step, work: Path) -> None:
        kind, taken = kind_of(step), signature_of(step.function).parameters
        out = work / kind.file
        given: dict[str, Any] = {name: value for name, value in (("out", out), ("reuse", True)) if name in taken}
        if "reuse" not in taken and out.is_file():  # the function ended, but not all of its result was kept
            out.unlink()
        kind.save(step.function(**resolved(step.arguments, self.read), **given), out)


def kind_of(step: Step) -> Kind:
    """How a step's result is kept."""
    return KINDS.get(str(signature_of(step.function).return_annotation), _PLAIN)


class Executor(Protocol):
    """Takes calls and gives futures; at most `slots` run at a time, with so many `threads` each. A cluster is one more class."""

    slots: int

    @property
    def threads(self) -> int: ...

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]: ...


class InProcess:
    """Runs each call at once, here."""

    slots = 1

    @property
    def threads(self) -> int:
        return threads_here()  # asked for late: what is refused before anything runs does not wait for torch

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


class InProcesses(ProcessPoolExecutor):
    """Runs calls side by side in fresh processes that share the cores out between them."""

    def __init__(self, jobs: int) -> None:
        self.slots, self.threads = jobs, threads_of(jobs)
        super().__init__(jobs, get_context("spawn"), initializer=_begin, initargs=(self.threads,))


@contextmanager
def executor(jobs: int) -> Iterator[Executor]:
    """The executor for so many jobs at a time."""
    if jobs == 1:
        yield InProcess()
        return
    with InProcesses(jobs) as workers:
        yield workers


def threads_of(jobs: int) -> int:
    """How many threads a step has where so many run side by side."""
    if jobs < 1:
        raise InputError(f"the number of jobs must be at least 1, found {jobs}")
    return threads_here() if jobs == 1 else max(1, len(os.sched_getaffinity(0)) // jobs)


def _begin(threads: int) -> None:
    """Runs first in a fresh process. Torch reads the environment when a step loads it; steps without torch do not wait for it."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)
    if "torch" in sys.modules:  # the program itself loads it, so it was read already
        sys.modules["torch"].set_num_threads(threads)
    Thread(target=_end_with_the_program, daemon=True).start()


def _end_with_the_program() -> None:
    """A program that is killed cannot stop its workers: they would hold their steps' locks, and cores, until they are done."""
    program = parent_process()
    if program is not None:
        program.join()
        os._exit(1)


def run(
    wanted: Iterable[Step | Part], store: Store, *, executor: Executor | None = None, on_step: OnStep | None = None
) -> dict[str, str]:
    """Run all steps that are not in the store, each after those it needs; gives the reasons of those that failed, by key.

    A step that cannot run (data that are not here, shots that a task does not have) does not stop the others.
    """
    workers = executor or InProcess()
    if workers.threads != store.threads:
        raise InputError(
            f"the store is for steps of {store.threads} threads, but they would run with {workers.threads}"
        )
    steps = in_order(wanted)
    waiting = [step for step in steps if not store.has(step)]
    ended = {step.key for step in steps} - {step.key for step in waiting}
    failures: dict[str, str] = {}
    running: dict[Future[None], Step] = {}
    last: Step | None = None
    while waiting or running:
        for step in _ready(waiting, ended, last)[: workers.slots - len(running)]:
            waiting.remove(step)
            running[_started(step, store, workers, failures)] = last = step
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            step = running.pop(future)
            reason = _reason(future)
            if reason:
                failures[step.key] = reason
            ended.add(step.key)
            if on_step:
                on_step(step, len(steps) - len(waiting) - len(running), len(steps))
    return failures


def _ready(waiting: Sequence[Step], ended: Set[str], last: Step | None) -> list[Step]:
    """The steps that can run, in order, those on the last one's task first: what it loaded is still in memory."""
    ready = [step for step in waiting if all(needed.key in ended for needed in step.needs)]
    task = last.arguments.get("task") if last else None
    return sorted(ready, key=lambda step: step.arguments.get("task") != task)


def _started(step: Step, store: Store, workers: Executor, failures: Mapping[str, str]) -> Future[None]:
    """A step under way. One that needs what could not be made fails for the same reason."""
    reasons = [failures[needed.key] for needed in step.needs if needed.key in failures]
    if not reasons:
        return workers.submit(store.make, step)
    failed: Future[None] = Future()
    failed.set_exception(InputError(reasons[0]))
    return failed


def _reason(future: Future[None]) -> str:
    error = future.exception()
    if error is None or isinstance(error, SkillgraftError):
        return str(error or "")
    raise error
