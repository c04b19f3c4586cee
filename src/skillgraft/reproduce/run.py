"""Run what recipes need, once, and write their results: JSON, Markdown and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from skillgraft.errors import SkillgraftError
from skillgraft.report.sheet import Result, markdown, save_result
from skillgraft.reproduce.content import millions_in_layers
from skillgraft.reproduce.executor import Executor, InProcess
from skillgraft.reproduce.jobs import SECONDS, job
from skillgraft.reproduce.profile import Profile
from skillgraft.reproduce.recipe import filled
from skillgraft.reproduce.recipes import recipe
from skillgraft.reproduce.step import Step, in_order
from skillgraft.reproduce.store import Store
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
) -> Result:
    """Run a recipe and write OUT/NAME.json, NAME.md and its figures."""
    from skillgraft.report.figures import write_figure

    chosen = recipe(name)
    place = Store(Path(store))
    drafts = list(chosen.draft(profile))
    failures = run((step for draft in drafts for step in draft.steps()), place, executor=executor, on_step=on_step)
    sheets = tuple(filled(draft, place, failures) for draft in drafts)
    made = {"recipe": name, "paper": chosen.paper, "profile": _plain(asdict(profile)), "versions": versions()}
    result = Result(name, chosen.title, sheets, chosen.notes, made)
    target = Path(out)
    target.mkdir(parents=True, exist_ok=True)
    save_result(result, target / f"{name}.json")
    (target / f"{name}.md").write_text(markdown(result), encoding="utf-8")
    write_figure(result, target / f"{name}.html")
    return result


def plan(names: Sequence[str], profile: Profile, *, store: str | Path) -> list[Planned]:
    """What would run, in order, and about how long it would take on two cores."""
    place = Store(Path(store))
    entries = millions_in_layers(profile.base)
    steps = in_order(step for name in names for draft in recipe(name).draft(profile) for step in draft.steps())
    return [Planned(step, place.has(step), _seconds(step, entries)) for step in steps]


def _seconds(step: Step, entries: float) -> float:
    return job(step.job).tokens(step.settings) * SECONDS * entries


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
    while waiting or running:
        for step in [step for step in waiting if all(needed.key in ended for needed in step.needs.values())]:
            if len(running) >= workers.slots:
                break
            waiting.remove(step)
            running[workers.submit(perform, step, store.folder)] = step
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


def _plain(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name != "base"} | {"base": Path(found["base"]).name}
