"""P1 §4.1, B.3: grafts know when they are wrong (tables 1 and 6, figure 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from skillgraft.reproduce import formulas as f
from skillgraft.reproduce.drafts import Column, table, wanted
from skillgraft.reproduce.profile import Profile
from skillgraft.reproduce.recipe import Draft, Recipe, Wanted
from skillgraft.reproduce.samples import (
    Model,
    Sample,
    base,
    called,
    drawn,
    draws,
    graft,
    retrained,
    says,
    sized,
    tuned,
    tuned_by,
)

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
    columns: dict[str, Column] = {"majority": (f.majority, says(base)), "base": (f.score, says(base))}
    for name, model in {"tuned": tuned, "graft": graft(), "re-trained": retrained, "BitFit": BITFIT}.items():
        columns |= {name: (f.score, says(model)), f"{name} ECE": (f.ece, says(model))}
    columns["tuned + temperature ECE"] = (f.tempered_ece, says(tuned), says(tuned, split="validation"))
    columns["share kept"] = (f.kept, says(graft()), says(tuned))
    columns["relative gain"] = (f.gain, says(graft()), says(tuned), says(base))
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
    cells: dict[tuple[str, str], Wanted | str] = {}
    for row, model in efficient_models(profile).items():
        cells[row, "trained or kept"] = wanted(everything[:1], _size(profile, row))
        for name, some in columns.items():
            for column, formula in ((name, f.score), (f"{name} ECE", f.ece)):
                cells[row, column] = wanted(some, (formula, says(model)), partial=name == "average")
    return Draft(f"{shots} examples per class", cells, rows_are="method").beside("table6")


def _size(profile: Profile, row: str) -> Column:
    """How many numbers a row's method trains or keeps, over the entries of the scope."""
    if row == "graft 100 %":
        return (lambda _step: 1.0, Sample.tuned)
    if row in ADAPTERS:
        return (f.trained(profile.base), lambda sample: sample.tuned(optimizer="adamw", **ADAPTERS[row]))
    density = next(each for each in GRAFTS if row == f"graft {100 * each:g} %")
    return (f.density, lambda sample: sample.graft(**sized(density)))


def fig6(profile: Profile) -> Sequence[Draft]:
    """How often the tuned model and the graft are how sure."""
    return [
        _confidence(draws(profile, task, shots), f"{called(task)}, {shots} examples per class")
        for task in profile.tasks_or("qnli")
        for shots in profile.shots_or("many")
    ]


def _confidence(samples: Sequence[Sample], title: str) -> Draft:
    cells = {
        (f"{place / BINS:g}–{(place + 1) / BINS:g}", name): wanted(samples, (f.confident(BINS, place), says(model)))
        for place in range(BINS)
        for name, model in (("tuned", tuned), ("graft", graft()))
    }
    return Draft(title, cells, rows_are="confidence", look="bars", values_are="share of the test rows")


RECIPES: Mapping[str, Recipe] = {
    "table1": Recipe("calibration of grafts, re-trained regions and BitFit", "P1 table 1", table1),
    "table6": Recipe("calibration of grafts and of small adapters", "P1 table 6", table6),
    "fig6": Recipe("how sure tuned models and grafts are", "P1 figure 6", fig6),
}
