"""Run what recipes need, once, and write their results: JSON, Markdown and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from skillgraft.errors import SkillgraftError
from skillgraft.report.sheet import Result
from skillgraft.reproduce.content import scope_of
from skillgraft.reproduce.executor import Executor, InProcess
from skillgraft.reproduce.jobs import SECONDS, job
from skillgraft.reproduce.profile import Profile
from skillgraft.reproduce.recipe import filled
from skillgraft.reproduce.recipes import recipe
from skillgraft.reproduce.samples import called
from skillgraft.reproduce.step import Step, in_order
from skillgraft.reproduce.store import Store
from skillgraft.reproduce.writing import written
from skillgraft.versions import versions

OnStep = Callable[[Step, int, int], None]  # a step that ended, how many have, of how many


@dataclass(frozen=True)
class Planned:
    """A step of a dry run: whether it is there already, and about how long it would take."""

    step: Step
    done: bool
    seconds: float


def reproduce(
    name: str,
    profile: Profile,
    *,
    store: str | Path,
    out: str | Path,
    executor: Executor | None = None,
    on_step: OnStep | None = None,
    command: str = "",
) -> Result:
    """Run a recipe and write OUT/NAME.json, NAME.md and its figures."""
    chosen = recipe(name)
    scope_of(profile.base)  # what is no model folder is refused before any work
    place = Store(Path(store))
    drafts = list(chosen.draft(profile))
    failures = run((step for draft in drafts for step in draft.steps()), place, executor=executor, on_step=on_step)
    sheets = tuple(filled(draft, place, failures) for draft in drafts)
    about = {"recipe": name, "paper": chosen.paper, "profile": _plain(profile)}
    made = {**about, "command": command, "versions": versions()}
    result = Result(name, chosen.title, sheets, (*chosen.notes, profile.words), made)
    return written(result, Path(out))


def plan(names: Sequence[str], profile: Profile, *, store: str | Path) -> list[Planned]:
    """What would run, in order, and about how long it would take on two cores."""
    place = Store(Path(store))
    millions = scope_of(profile.base).size / 1e6
    steps = in_order(step for name in names for draft in recipe(name).draft(profile) for step in draft.steps())
    return [Planned(step, place.has(step), _seconds(step, millions)) for step in steps]


def _seconds(step: Step, millions: float) -> float:
    return job(step.job).tokens(step.settings) * SECONDS * millions


def run(
    wanted: Iterable[Step], store: Store, *, executor: Executor | None = None, on_step: OnStep | None = None
) -> dict[str, str]:
    """Run all steps that are not in the store, each after those it needs; gives the reasons of those that failed, by key.

    A step that cannot run (data that are not here, shots that a task does not have) does not stop the others.
    """
    steps = in_order(wanted)
    waiting = [step for step in steps if not store.has(step)]
    ended = {step.key for step in steps} - {step.key for step in waiting}
    failures: dict[str, str] = {}
    running: dict[Future[None], Step] = {}
    workers = executor or InProcess()
    last: Step | None = None
    while waiting or running:
        for step in _ready(waiting, ended, last)[: workers.slots - len(running)]:
            waiting.remove(step)
            running[workers.submit(perform, step, store.folder)] = last = step
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            step = running.pop(future)
            reason = _reason(future)
            if reason:
                failures[step.key] = reason
                waiting = _without_those_that_need(step, waiting, failures)
            ended.add(step.key)
            if on_step:
                on_step(step, len(steps) - len(waiting) - len(running), len(steps))
    return failures


def _ready(waiting: Sequence[Step], ended: Set[str], last: Step | None) -> list[Step]:
    """The steps that can run, in order, those on the last one's task first: what it loaded is still in memory."""
    ready = [step for step in waiting if all(needed.key in ended for needed in step.needs.values())]
    task = last.settings.get("task") if last else None
    return sorted(ready, key=lambda step: step.settings.get("task") != task)


def perform(step: Step, folder: Path) -> None:
    """Run one step, unless it is there: the unit that executors take."""
    store = Store(folder)
    with store.making(step) as out:
        if not store.has(step):
            needs = {role: store.path(needed) for role, needed in step.needs.items()}
            job(step.job).run(out, needs, **step.settings)


def _reason(future: Future[None]) -> str:
    error = future.exception()
    if error is None:
        return ""
    if isinstance(error, SkillgraftError):
        return str(error)
    raise error


def _without_those_that_need(step: Step, waiting: list[Step], failures: dict[str, str]) -> list[Step]:
    """Drop what can no longer run, for the same reason."""
    reason = failures[step.key]
    left = []
    for each in waiting:  # in order: what a dropped step is needed for comes after it
        if any(needed.key in failures for needed in each.needs.values()):
            failures[each.key] = reason
        else:
            left.append(each)
    return left


def _plain(profile: Profile) -> dict[str, Any]:
    """The profile without this machine's folders."""
    tasks = {name: [called(task) for task in getattr(profile, name)] for name in ("tasks", "ood", "controls")}
    return {**asdict(profile), "base": Path(profile.base).name, **tasks}
