"""P1 §4.3 and appendix D: what the size of a region says about new rows (train–test gaps, bounds)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from skillgraft.reproduce import formulas as f
from skillgraft.reproduce.drafts import Column, Columns, curve, table
from skillgraft.reproduce.profile import Profile
from skillgraft.reproduce.recipe import Draft, Recipe
from skillgraft.reproduce.samples import (
    Model,
    Sample,
    called,
    draws,
    graft,
    ladder,
    retrained,
    retrained_at,
    says,
    sized,
    tuned,
)
from skillgraft.reproduce.step import Step

DENSITIES = (1e-5, 1e-4, 1e-3)
MODELS: Mapping[str, Model] = {"tuned": tuned, "graft": graft(), "re-trained": retrained}


def gap(profile: Profile) -> Sequence[Draft]:
    """Scores on training rows and on test rows over the number of examples: tuned, graft, re-trained inside its region."""
    columns: dict[str, Column] = {}
    for name, model in MODELS.items():
        train, test = says(model, split="train"), says(model)
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
        def region(sample: Sample) -> Step:
            return sample.graft(**sized(density))

        rows = says(retrained_at(density), split="train")
        return {
            "entries": (f.entries, region),
            "training rows": (f.rows, rows),
            "re-trained gap": (f.gap, rows, says(retrained_at(density))),
            "re-trained, region fixed (D.2)": (f.bound(), region, rows),
            "re-trained, any region (D.2)": (f.bound(any_region=True), region, rows),
            "graft, any region (D.4)": (f.bound(any_region=True, retrained=False), region, rows),
            "re-trained, region fixed, 1 bit per entry": (f.bound(bits=1), region, rows),
        }

    notes = ("Bounds leave out bias and quantisation; 32 bits per entry unless said; 95 %. Above 1 they are vacuous.",)
    look = {"rows_are": "density", "look": "table", "unit": "number", "notes": notes}
    return [
        curve(f"{called(task)}, {shots} examples per class", draws(profile, task, shots), at, DENSITIES, **look)
        for task in profile.tasks_or("sst2", "qnli")
        for shots in profile.shots_or("many")
    ]


RECIPES: Mapping[str, Recipe] = {
    "gap": Recipe("train–test gaps of tuned models, grafts and re-trained regions", "P1 §4.3", gap),
    "bound": Recipe("what uniform convergence proves about grafts", "P1 appendix D", bound),
}
