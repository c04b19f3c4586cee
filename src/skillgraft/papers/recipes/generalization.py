"""P1 §4, B.3 and appendix D: grafts know when they are wrong, and what they do on new rows.

Calibration (tables 1 and 6, figure 6), data from elsewhere (tables 3 and 7, figure 7), train–test gaps and bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from skillgraft.errors import InputError
from skillgraft.papers import formulas as f
from skillgraft.papers.profile import Profile
from skillgraft.papers.recipe import (
    Cells,
    Column,
    Columns,
    Draft,
    Formula,
    Recipe,
    Wanted,
    curve,
    mean_of,
    table,
    wanted,
)
from skillgraft.papers.samples import (
    Ask,
    Model,
    Sample,
    answers,
    base,
    called,
    drawn,
    draws,
    elsewhere,
    graft,
    ladder,
    retrained,
    retrained_at,
    scaled,
    sized,
    tuned,
    tuned_by,
)
from skillgraft.papers.steps import Part, task_of

TASKS = ("sst2", "ag_news", "qnli", "qqp")
BINS = 10
# What P1 compares grafts with, trained by AdamW as the papers of these methods do: their sizes and learning rates.
ADAPTERS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        **{f"LoRA {rank}": {"method": "lora", "lora_rank": rank, "lr": 5e-4} for rank in (1, 2, 8)},
        **{f"Houlsby {size}": {"method": "houlsby", "bottleneck": size, "lr": 3e-4} for size in (1, 2, 16, 64)},
        **{f"Pfeiffer {size}": {"method": "pfeiffer", "bottleneck": size, "lr": 1e-4} for size in (1, 2, 16, 64)},
    }
)
GRAFTS = (1e-4, 5e-4, 1e-3, 1e-2)
BITFIT = tuned_by(optimizer="inside", method="bias")  # few entries: larger steps


def efficient_models(profile: Profile) -> dict[str, Model]:
    """The rows of tables 6 and 7, or some of them if asked for: small adapters, and grafts up to the whole tuned model."""
    adapters = {name: tuned_by(optimizer="adamw", **changes) for name, changes in ADAPTERS.items()}
    grafts = {f"graft {100 * density:g} %": graft(density) for density in GRAFTS}
    models = {**adapters, **grafts, "graft 100 %": tuned}
    return {name: models[name] for name in profile.methods_or(*models)}


def table1(profile: Profile) -> Sequence[Draft]:
    """Tuned, graft, re-training inside the graft's region, and BitFit: score and ECE."""
    columns: dict[str, Column] = {"majority": (f.majority, answers(base)), "base": (f.score, answers(base))}
    for name, model in {"tuned": tuned, "graft": graft(), "re-trained": retrained, "BitFit": BITFIT}.items():
        columns |= {name: (f.score, answers(model)), f"{name} ECE": (f.ece, answers(model))}
    columns["tuned + temperature ECE"] = (f.tempered_ece, answers(tuned), answers(tuned, split="validation"))
    columns["share kept"] = (f.kept, answers(graft()), answers(tuned))
    columns["relative gain"] = (f.gain, answers(graft()), answers(tuned), answers(base))
    return [
        table(
            f"{shots} examples per class, density 1e-4",
            drawn(profile, profile.tasks_or(*TASKS), shots),
            columns, rows_are="task",
        ).beside("table1")
        for shots in profile.shots_or("many")
    ]  # fmt: skip


def table6(profile: Profile) -> Sequence[Draft]:
    """Score and ECE of LoRA, adapters and grafts of all sizes."""
    return [_sizes_against_calibration(profile, shots) for shots in profile.shots_or("many")]


def _sizes_against_calibration(profile: Profile, shots: int) -> Draft:
    samples = drawn(profile, profile.tasks_or(*TASKS), shots)
    everything = [sample for some in samples.values() for sample in some]
    columns = {**samples, "average": everything}
    cells: Cells = {}
    for row, model in efficient_models(profile).items():
        cells[row, "trained or kept"] = wanted(everything[:1], _size(profile, row))
        for name, some in columns.items():
            for column, formula in ((name, f.score), (f"{name} ECE", f.ece)):
                cells[row, column] = wanted(some, (formula, answers(model)), partial=name == "average")
    return Draft(f"{shots} examples per class", cells, rows_are="method").beside("table6")


def _size(profile: Profile, row: str) -> Column:
    """How many numbers a row's method trains or keeps, over the entries of the scope."""
    if row == "graft 100 %":
        return (lambda _step: 1.0, Sample.tuned)
    if row in ADAPTERS:
        return (f.trained(profile.base), lambda sample: sample.tuned(optimizer="adamw", **ADAPTERS[row]))
    density = next(each for each in GRAFTS if row == f"graft {100 * each:g} %")
    return (f.density, lambda sample: sample.graft(**sized(density)).region)


def fig6(profile: Profile) -> Sequence[Draft]:
    """How often the tuned model and the graft are how sure."""
    return [
        _confidence(draws(profile, task, shots), f"{called(task)}, {shots} examples per class")
        for task in profile.tasks_or("qnli")
        for shots in profile.shots_or("many")
    ]


def _confidence(samples: Sequence[Sample], title: str) -> Draft:
    cells = {
        (f"{index / BINS:g}–{(index + 1) / BINS:g}", name): wanted(samples, (f.confident(BINS, index), answers(model)))
        for index in range(BINS)
        for name, model in (("tuned", tuned), ("graft", graft()))
    }
    return Draft(title, cells, rows_are="confidence", look="bars", values_are="share of the test rows")


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


def others(profile: Profile, task: str) -> tuple[str, ...]:
    """The out-of-distribution tasks of a task: those that were asked for, or the paper's."""
    return tuple(other for other in profile.ood or ELSEWHERE.get(task, ()) if other != task)


def asked_elsewhere(task: str, other: str | None, formula: Formula, *asks: Ask) -> Column:
    """The question, or why there is none: rows of another kind or with other labels are known before anything runs."""
    if other is None:
        return NOWHERE
    try:
        task_of(elsewhere(task, other))
    except InputError as error:
        return str(error)
    return (formula, *asks)


def table3(profile: Profile) -> Sequence[Draft]:
    """Grafts, re-trained regions and BitFit on other tasks than they were tuned for."""
    models: dict[str, Model] = {
        "base": base, "tuned": tuned, "graft": graft(), "re-trained": retrained, "BitFit": BITFIT,
    }  # fmt: skip
    return [_elsewhere_table(profile, shots, models) for shots in profile.shots_or("many")]


def _elsewhere_table(profile: Profile, shots: int, models: Mapping[str, Model]) -> Draft:
    cells: Cells = {}
    for task in profile.tasks_or("sst2", "qnli", "mpqa"):
        samples = draws(profile, task, shots)
        for other in others(profile, task) or (None,):
            row = f"{called(task)} → {called(other)}" if other else called(task)
            columns: dict[str, tuple[Formula, Model]] = {"majority": (f.majority, base)}
            columns |= {name: (f.score, model) for name, model in models.items()}
            for name, (formula, model) in columns.items():
                ask = answers(model, rows_of=other or "")
                cells[row, name] = wanted(samples, asked_elsewhere(task, other, formula, ask))
    return Draft(f"{shots} examples per class, density 1e-4", cells, rows_are="task → other task").beside("table3")


NOWHERE = "no out-of-distribution task is known for this task: name one with --ood"


def table7(profile: Profile) -> Sequence[Draft]:
    """LoRA, adapters and grafts of all sizes: their own task, and others."""
    return [_sizes_against_transfer(profile, shots) for shots in profile.shots_or("many")]


def _sizes_against_transfer(profile: Profile, shots: int) -> Draft:
    cells: Cells = {}
    tasks = profile.tasks_or("mpqa", "qnli")
    samples = {task: draws(profile, task, shots) for task in tasks}
    for row, model in efficient_models(profile).items():
        averages: dict[str, list[Wanted]] = {"average ID": [], "average OOD": []}
        for task in tasks:
            for name, column in _own_and_others(profile, task, model).items():
                cell = cells[row, name] = wanted(samples[task], column)
                if isinstance(cell, Wanted):
                    averages["average ID" if name == called(task) else "average OOD"].append(cell)
        for name, parts in averages.items():
            cells[row, name] = mean_of(parts) if parts else NOWHERE
    return Draft(f"{shots} examples per class", cells, rows_are="method").beside("table7")


def _own_and_others(profile: Profile, task: str, model: Model) -> dict[str, Column]:
    """A model's score on its own task and on the others, by their names."""
    columns: dict[str, Column] = {called(task): (f.score, answers(model))}
    for other in others(profile, task):
        asked = asked_elsewhere(task, other, f.score, answers(model, rows_of=other))
        columns[f"{called(task)} → {called(other)}"] = asked
    return columns


def fig7(profile: Profile) -> Sequence[Draft]:
    """(a, b) over density, (c) over shots, (d–f) over the scale of the change (WiSE), and each curve's best point."""
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
        for asked, column in _own_and_others(profile, task, model).items():
            columns[f"{name}, {asked.removeprefix(f'{called(task)} ')}"] = column
        if not others(profile, task):
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
    cells: Cells = {}
    for task in tasks:
        for other in others(profile, task) or (None,):
            for name, models in curves.items():
                row = f"{called(task)} → {called(other)}, {name}" if other else f"{called(task)}, {name}"
                asks = [ask for model in models for ask in (answers(model), answers(model, rows_of=other or ""))]
                for index, column in enumerate(("ID", "OOD")):
                    question = asked_elsewhere(task, other, f.best(index), *asks)
                    cells[row, column] = wanted(draws(profile, task, shots), question)
    notes = ("Points are chosen on the test rows, as in the paper: they describe the curves and are no honest choice.",)
    return Draft("best points of the curves", cells, rows_are="curve", notes=notes).beside("fig7-best")


BOUNDED = (1e-5, 1e-4, 1e-3)  # densities
MODELS: Mapping[str, Model] = {"tuned": tuned, "graft": graft(), "re-trained": retrained}


def gap(profile: Profile) -> Sequence[Draft]:
    """Scores on training rows and on test rows over the number of examples: tuned, graft, re-trained inside its region."""
    columns: dict[str, Column] = {}
    for name, model in MODELS.items():
        train, test = answers(model, split="train"), answers(model)
        columns |= {
            f"{name} train": (f.score, train),
            f"{name} test": (f.score, test),
            f"{name} gap": (f.gap, train, test),
        }
    return [
        table(
            f"{called(task)}, density 1e-4",
            {str(shots): draws(profile, task, shots) for shots in ladder(profile)},
            columns, rows_are="examples per class", look="lines", log_x=True,
        ).beside(f"gap-{called(task)}")
        for task in profile.tasks_or("sst2", "qnli")
    ]  # fmt: skip


def bound(profile: Profile) -> Sequence[Draft]:
    """The bounds of theorems D.2 and D.4 for measured regions, beside the gap that is measured."""

    def at(density: float) -> Columns:
        def region(sample: Sample) -> Part:
            return sample.graft(**sized(density)).region

        rows = answers(retrained_at(density), split="train")
        return {
            "entries": (f.entries, region),
            "training rows": (f.rows, rows),
            "re-trained gap": (f.gap, rows, answers(retrained_at(density))),
            "re-trained, region fixed (D.2)": (f.bound(), region, rows),
            "re-trained, any region (D.2)": (f.bound(any_region=True), region, rows),
            "graft, any region (D.4)": (f.bound(any_region=True, retrained=False), region, rows),
            "re-trained, region fixed, 1 bit per entry": (f.bound(bits=1), region, rows),
        }

    notes = (
        "Bounds leave out bias and quantisation; 32 bits per entry unless stated; 95 %. Above 1 they are vacuous.",
    )
    look = {"rows_are": "density", "look": "table", "unit": "number", "notes": notes}
    return [
        curve(f"{called(task)}, {shots} examples per class", draws(profile, task, shots), at, BOUNDED, **look)
        for task in profile.tasks_or("sst2", "qnli")
        for shots in profile.shots_or("many")
    ]


RECIPES: Mapping[str, Recipe] = {
    "table1": Recipe("calibration of grafts, re-trained regions and BitFit", "P1 table 1", table1),
    "table6": Recipe("calibration of grafts and of small adapters", "P1 table 6", table6),
    "fig6": Recipe("how sure tuned models and grafts are", "P1 figure 6", fig6),
    "table3": Recipe("grafts, re-trained regions and BitFit on other tasks", "P1 table 3", table3),
    "table7": Recipe("grafts and small adapters on other tasks", "P1 table 7", table7),
    "fig7": Recipe("in and out of distribution over density, examples and scale", "P1 figure 7", fig7),
    "gap": Recipe("train–test gaps of tuned models, grafts and re-trained regions", "P1 §4.3", gap),
    "bound": Recipe("what uniform convergence proves about grafts", "P1 appendix D", bound),
}
