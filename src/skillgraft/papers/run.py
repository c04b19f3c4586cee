"""What becomes of steps' results: `Store`, `run`, and `map_steps` for sweeps of one's own.

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
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, unquote

from skillgraft.errors import FormatError, InputError, RunError, SkillgraftError, listed
from skillgraft.files import atomic, graft_file
from skillgraft.files.regular import read_text
from skillgraft.opening.executors import Executor, InProcess, Needs, executor, threads_here
from skillgraft.papers.steps import Part, Step, digest, in_order, plain, resolved, signature_of
from skillgraft.predictions.predictions import Predictions
from skillgraft.tasks.data import Data
from skillgraft.values.graft import Graft
from skillgraft.values.info import versions

MODEL, GRAFT, REGION, FACTS, RECORD = "model", "graft.safetensors", "region.safetensors", "facts.json", "step.json"
_FACTS_BYTES = 256_000_000
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
    try:
        return json.loads(read_text(file, limit=_FACTS_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(file, str(error)) from None


def _load_data(file: Path) -> Data:
    facts = _load_facts(file)
    try:
        return Data(**facts)
    except (TypeError, InputError) as error:
        raise _damaged(file, f"not the rows of a data set ({error})") from None


def _recipe(folder: Path) -> Any:
    info = graft_file.load_info(folder / GRAFT)[1]
    if "recipe" not in info:
        raise _damaged(folder / GRAFT, "it records no recipe")
    return info["recipe"]


def _damaged(file: Path, why: str) -> FormatError:
    return FormatError(f"{file}: {why}; remove {file.parent}, and the next run makes it anew")


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
        "Data": Kind(FACTS, _save_facts, _load_data),
        "ContinualStore": replace(_FOLDER, file="skills"),
    }
)
# Parts of a result → how they are read from the step's folder.
PARTS: Mapping[str, Callable[[Path, str], Any]] = MappingProxyType(
    {
        "region": lambda folder, _: graft_file.load_region(folder / GRAFT),
        "facts": lambda folder, _: _load_facts(folder / FACTS),
        "recipe": lambda folder, _: _recipe(folder),
        "checkpoint": lambda folder, name: folder / f"{MODEL}.steps" / name,
        "density": lambda folder, density: graft_file.load(_of_name(folder, density)),
        "item": lambda folder, name: graft_file.load(_of_name(folder / "grafts", name)),
    }
)


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


def map_steps(
    function: Callable[..., Any],
    calls: Sequence[Mapping[str, Any]],
    *,
    store: str | Path,
    jobs: int = 1,
    on: str | None = None,
    needs: Needs | None = None,
) -> list[Any]:
    """The results of a function for each set of keyword arguments, in order: a sweep over seeds, tasks, budgets.

    Each is kept in the folder `store` by the content of its arguments and the number of threads: a sweep that was killed goes
    on where it was, here, in several processes (`jobs`) or on a cluster (`on="ray"`), whose nodes must all see the folder.
    """
    steps = [Step(function, dict(call)) for call in calls]
    with executor(jobs, on=on, needs=needs) as workers:
        kept = Store(Path(store), workers.threads)
        failures = run(steps, kept, executor=workers)
    if failures:
        raise RunError(f"{len(failures)} of {len(steps)} calls failed: {listed(sorted(set(failures.values())))}")
    return [kept.read(step) for step in steps]
