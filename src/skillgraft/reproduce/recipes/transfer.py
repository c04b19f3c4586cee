"""P1 §4.2, B.3: grafts on data from elsewhere (tables 3 and 7, figure 7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from skillgraft.reproduce import formulas as f
from skillgraft.reproduce.drafts import Column, Columns, curve, table, wanted
from skillgraft.reproduce.profile import Profile
from skillgraft.reproduce.recipe import Draft, Recipe, Wanted
from skillgraft.reproduce.recipes.calibration import BITFIT, efficient_models
from skillgraft.reproduce.samples import (
    Ask,
    Model,
    Sample,
    base,
    called,
    draws,
    graft,
    ladder,
    retrained,
    says,
    scaled,
    tuned,
)

# Where a task's skill is tried besides its own rows.
ELSEWHERE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "sst2": ("yelp_reviews", "imdb", "amazon_polarity"),
        "qnli": ("mnli_01", "snli_01"),
        "mpqa": ("yelp_reviews", "sst2"),
    }
)
DENSITIES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
SCALES = tuple(round(0.1 * step, 1) for step in range(11))


def elsewhere(profile: Profile, task: str) -> tuple[str, ...]:
    """The out-of-distribution tasks of a task: those that were asked for, or the paper's."""
    return tuple(other for other in profile.ood or ELSEWHERE.get(task, ()) if other != task)


def table3(profile: Profile) -> Sequence[Draft]:
    """Grafts, re-trained regions and BitFit on other tasks than they were tuned for."""
    models: dict[str, Model] = {
        "base": base, "tuned": tuned, "graft": graft(), "re-trained": retrained, "BitFit": BITFIT,
    }  # fmt: skip
    return [_elsewhere_table(profile, shots, models) for shots in profile.shots_or("many")]


def _elsewhere_table(profile: Profile, shots: int, models: Mapping[str, Model]) -> Draft:
    cells: dict[tuple[str, str], Wanted | str] = {}
    for task in profile.tasks_or("sst2", "qnli", "mpqa"):
        samples = draws(profile, task, shots)
        for other in elsewhere(profile, task) or (None,):
            row = f"{called(task)} → {called(other)}" if other else called(task)
            cells[row, "majority"] = wanted(samples, _asked(f.majority, base, other))
            for name, model in models.items():
                cells[row, name] = wanted(samples, _asked(f.score, model, other))
    return Draft(f"{shots} examples per class, density 1e-4", cells, rows_are="task → other task").beside("table3")


def _asked(formula: Any, model: Model, other: str | None) -> Column:
    return (formula, says(model, task=other)) if other else NOWHERE


NOWHERE = "no out-of-distribution task is known for this task: name one with --ood"


def table7(profile: Profile) -> Sequence[Draft]:
    """LoRA, adapters and grafts of all sizes: their own task, and others."""
    return [_sizes_against_transfer(profile, shots) for shots in profile.shots_or("many")]


def _sizes_against_transfer(profile: Profile, shots: int) -> Draft:
    cells: dict[tuple[str, str], Wanted | str] = {}
    tasks = profile.tasks_or("mpqa", "qnli")
    samples = {task: draws(profile, task, shots) for task in tasks}
    for row, model in efficient_models(profile).items():
        asked: dict[str, list[tuple[Sample, Ask]]] = {"average ID": [], "average OOD": []}
        for task in tasks:
            own = called(task)
            others = {f"{own} → {called(other)}": says(model, task=other) for other in elsewhere(profile, task)}
            questions = {own: says(model), **others}
            for name, ask in questions.items():
                cells[row, name] = wanted(samples[task], (f.score, ask))
                asked["average ID" if name == own else "average OOD"] += [(each, ask) for each in samples[task]]
        for name, pairs in asked.items():
            steps = tuple((ask(sample),) for sample, ask in pairs)
            cells[row, name] = Wanted(f.score, steps, partial=True) if steps else NOWHERE
    return Draft(f"{shots} examples per class", cells, rows_are="method").beside("table7")


def fig7(profile: Profile) -> Sequence[Draft]:
    """(a, b) over density, (c) over shots, (d–f) over the scale of the change (WiSE), and each way's best point."""
    tasks = profile.tasks_or("sst2", "mpqa", "qnli")
    shots = profile.shots_or("many")[-1]
    return [
        *(_over_density(profile, task, shots) for task in tasks),
        *(_over_shots(profile, task) for task in tasks),
        *(_over_scale(profile, task, shots) for task in tasks),
        _best_points(profile, tasks, shots),
    ]


def _in_and_out(profile: Profile, task: str, models: Mapping[str, Model]) -> dict[str, Column]:
    """Each model's score on its own task and on the others."""
    columns: dict[str, Column] = {}
    for name, model in models.items():
        columns[f"{name}, {called(task)}"] = (f.score, says(model))
        for other in elsewhere(profile, task):
            columns[f"{name}, → {called(other)}"] = (f.score, says(model, task=other))
        if not elsewhere(profile, task):
            columns[f"{name}, elsewhere"] = NOWHERE
    return columns


def _over_density(profile: Profile, task: str, shots: int) -> Draft:
    def at(density: float) -> Columns:
        return _in_and_out(profile, task, {"graft": graft(density), "tuned": tuned})

    title = f"(a, b) over density: {called(task)}, {shots} examples per class"
    return curve(title, draws(profile, task, shots), at, DENSITIES, rows_are="density", log_x=True)


def _over_shots(profile: Profile, task: str) -> Draft:
    rows = {str(shots): draws(profile, task, shots) for shots in ladder(profile)}
    columns = _in_and_out(profile, task, {"graft": graft(), "tuned": tuned})
    look: dict[str, Any] = {"rows_are": "examples per class", "look": "lines", "log_x": True}
    return table(f"(c) over examples: {called(task)}, density 1e-4", rows, columns, **look)


def _over_scale(profile: Profile, task: str, shots: int) -> Draft:
    def at(scale: float) -> Columns:
        return _in_and_out(profile, task, _wise(scale))

    title = f"(d–f) base + scale · change: {called(task)}, {shots} examples per class"
    return curve(title, draws(profile, task, shots), at, SCALES, rows_are="scale")


def _wise(scale: float) -> dict[str, Model]:
    if scale == 0.0:
        return {"WiSE tuned": base, "WiSE graft": base}
    return {"WiSE tuned": scaled(tuned, scale), "WiSE graft": scaled(graft(), scale)}


def _best_points(profile: Profile, tasks: Sequence[str], shots: int) -> Draft:
    """The point of each curve with the highest sum of both scores, as the paper tells them for (e)."""
    curves: dict[str, list[Model]] = {
        "WiSE tuned": [_wise(scale)["WiSE tuned"] for scale in SCALES],
        "WiSE graft": [_wise(scale)["WiSE graft"] for scale in SCALES],
        "graft": [graft(density) for density in DENSITIES],
    }
    cells: dict[tuple[str, str], Wanted | str] = {}
    for task in tasks:
        for other in elsewhere(profile, task) or (None,):
            for name, models in curves.items():
                row = f"{called(task)} → {called(other)}, {name}" if other else f"{called(task)}, {name}"
                asks = [ask for model in models for ask in (says(model), says(model, task=other or ""))]
                for place, column in enumerate(("ID", "OOD")):
                    question: Column = (f.best(place), *asks) if other else NOWHERE
                    cells[row, column] = wanted(draws(profile, task, shots), question)
    notes = ("Points are chosen on the test rows, as in the paper: they describe the curves and are no honest choice.",)
    return Draft("best points of the curves", cells, rows_are="curve", notes=notes).beside("fig7-best")


RECIPES: Mapping[str, Recipe] = {
    "table3": Recipe("grafts, re-trained regions and BitFit on other tasks", "P1 table 3", table3),
    "table7": Recipe("grafts and small adapters on other tasks", "P1 table 7", table7),
    "fig7": Recipe("in and out of distribution over density, examples and scale", "P1 figure 7", fig7),
}
