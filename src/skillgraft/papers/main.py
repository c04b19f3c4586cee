"""Recipes by name: run what they need, once, and write their results (JSON, Markdown, figures); or plan it.

A plan says about how long each step takes: a table of functions and the tokens that go through the model for a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from skillgraft.files import atomic
from skillgraft.opening.executors import Executor, InProcess, threads_of
from skillgraft.papers.profile import Profile
from skillgraft.papers.recipe import filled
from skillgraft.papers.recipes import recipe
from skillgraft.papers.run import OnStep, Store, run
from skillgraft.papers.steps import Part, Step, in_order, scope_of, task_of
from skillgraft.report.sheet import Result, markdown, save_result
from skillgraft.tasks.data import Data
from skillgraft.values.info import versions

Arguments = Mapping[str, Any]
# Seconds per token and million entries of a model's layers, forward and backward, on two cores; a forward pass is a third.
SECONDS = 7.5e-5
_TEST_ROWS, _VALIDATION_ROWS, _SCALES = 1000, 200, 21  # where none are given
_COUNTED_STEPS = 14  # of each method whose cost is measured: ten counted, two before them, two for the memory


def reproduce(
    name: str,
    profile: Profile,
    *,
    store: str | Path,
    out: str | Path,
    executor: Executor | None = None,
    on_step: OnStep | None = None,
    command: str = "",
    pdf: bool = False,
) -> Result:
    """Run a recipe and write OUT/NAME.json, NAME.md and its figures; with `pdf` these as PDF too."""
    chosen = recipe(name)
    scope_of(profile.base)  # what is no model folder is refused before any work
    drafts = list(chosen.draft(profile))
    workers = executor or InProcess()
    results = Store(Path(store), workers.threads)
    failures = run((step for draft in drafts for step in draft.steps()), results, executor=workers, on_step=on_step)
    sheets = tuple(filled(draft, results, failures) for draft in drafts)
    about = {"recipe": name, "paper": chosen.paper, "profile": _plain(profile)}
    made = {**about, "command": command, "versions": versions()}
    return written(Result(name, chosen.title, sheets, (*chosen.notes, profile.words), made), Path(out), pdf=pdf)


def plan(names: Sequence[str], profile: Profile, *, store: str | Path, jobs: int = 1) -> list[Planned]:
    """What would run, in order, and about how long it would take on two cores."""
    chosen = [recipe(name) for name in names]
    millions = scope_of(profile.base).size / 1e6
    wanted = (step for each in chosen for draft in each.draft(profile) for step in draft.steps())
    return planned(wanted, Store(Path(store), threads_of(jobs)), millions=millions)


def _plain(profile: Profile) -> dict[str, Any]:
    """The profile without this machine's folders."""
    tasks = {name: [task_of(task).name for task in getattr(profile, name)] for name in ("tasks", "ood", "controls")}
    return {**asdict(profile), "base": Path(profile.base).name, **tasks}


def written(result: Result, folder: Path, *, pdf: bool = False) -> Result:
    """Write FOLDER/NAME.json, NAME.md and figures; gives the result as it was written."""
    whole = _with_figures(result, folder, pdf=pdf)
    save_result(whole, folder / f"{result.name}.json")
    with atomic.new_file(folder / f"{result.name}.md", overwrite=True) as file:
        file.write_text(markdown(whole), encoding="utf-8")
    return whole


def _with_figures(result: Result, folder: Path, *, pdf: bool) -> Result:
    """Draw what is no table; what cannot be drawn is a note.

    Hours of measuring must not be lost to a figure, so any failure counts.
    """
    from skillgraft.report.figure_files import write_figure

    figures = replace(result, sheets=tuple(sheet for sheet in result.sheets if sheet.look != "table"))
    if not figures.sheets:
        return result
    try:
        drawn = write_figure(figures, folder / result.name, pdf=pdf)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        return replace(result, notes=(*result.notes, f"No figure was drawn: {reason}"))
    files = {"figures": [file.name for file in drawn.files], "without_svg": drawn.without_svg}
    return replace(result, made={**result.made, **files})


@dataclass(frozen=True)
class Planned:
    """A step of a dry run: whether it is there already, and about how long it would take."""

    step: Step
    done: bool
    seconds: float


def planned(wanted: Iterable[Step | Part], store: Store, *, millions: float) -> list[Planned]:
    """All steps that are needed, in order; `millions` is the size of the model's layers."""
    return [Planned(step, store.has(step), tokens(step) * SECONDS * millions) for step in in_order(wanted)]


def tokens(step: Step) -> float:
    """How many tokens a step takes forward and backward."""
    return TOKENS[step.name](step.arguments) if step.name in TOKENS else 0.0


def _length(arguments: Arguments) -> float:
    return 0.5 * (_data(arguments).max_length or 128)  # rows are about half as long as they may be


def _data(arguments: Arguments) -> Data:
    given = arguments.get("data", getattr(arguments.get("learning"), "data", None))
    given = given.arguments["data"] if isinstance(given, Step) else given  # rows that are counted when it runs
    return given if isinstance(given, Data) else Data()


def _tuning(arguments: Arguments) -> float:
    plan = arguments["plan"] if "plan" in arguments else arguments["learning"].plan
    return float(plan.steps * plan.batch_size * _length(arguments))


def _searching(arguments: Arguments) -> float:
    from skillgraft.regions.methods import METHODS
    from skillgraft.regions.search import P1_ROWS

    data = _data(arguments)
    method = METHODS.get(arguments.get("method", "learned"))  # None of a region of the base alone
    most = arguments.get("batch_size") or (method and method.step_rows) or P1_ROWS
    rows = min(most, data.train_rows or 2 * (data.shots or 512))
    return float(arguments.get("steps", 1) * rows * _length(arguments) * 1.25)


def _asking(arguments: Arguments, rows: int | None = None) -> float:
    return float(rows or _data(arguments).test_rows or _TEST_ROWS) * _length(arguments) / 3


def _scaling(arguments: Arguments) -> float:
    """21 points, each over every task's rows; of a linearised model the base and one slope, which costs about two passes."""
    tasks = len(arguments.get("tasks", ())) + len(arguments.get("controls", ())) + ("task" in arguments)
    passes = 3 if arguments.get("linear") else arguments.get("points", _SCALES)
    return passes * tasks * _asking(arguments, _data(arguments).validation_rows or _VALIDATION_ROWS)


def _mapping(arguments: Arguments) -> float:
    """Each task alone at every scale, both at every pair of scales."""
    points = len(arguments["alphas"])
    return 2 * (points + points**2) * _asking(arguments, _data(arguments).validation_rows or _VALIDATION_ROWS)


def _pruning(arguments: Arguments) -> float:
    return len(arguments["tasks"]) * (len(arguments["shares"]) + 1) * _asking(arguments)


def _purifying(arguments: Arguments) -> float:
    return sum(map(len, arguments["groups"])) * _searching(arguments)


def _costing(arguments: Arguments) -> float:
    rows = sum(setup.plan.batch_size for setup in arguments["setups"].values())
    return float(_COUNTED_STEPS * rows * _length(arguments))


# Functions that are not here take next to no time.
TOKENS: Mapping[str, Callable[[Arguments], float]] = MappingProxyType(
    {
        "finetune": _tuning,
        "tune_on": _tuning,
        "learn": _tuning,
        "localize": _searching,
        "ticket_region": _searching,
        "choose": _searching,
        "task_regions": _searching,
        "purified": _purifying,
        "ask": _asking,
        "ask_thinned": _asking,
        "search_scale": _scaling,
        "forget": _scaling,
        "disentangle": _mapping,
        "pruning_sensitivity": _pruning,
        "training_costs": _costing,
    }
)
