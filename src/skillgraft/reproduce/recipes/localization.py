"""P1 §3: sparse regions that keep a skill (table 2, figure 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from skillgraft.reproduce import formulas, parts
from skillgraft.reproduce.papers import paper
from skillgraft.reproduce.profile import Profile
from skillgraft.reproduce.recipe import Draft, Recipe, Wanted
from skillgraft.reproduce.step import Step

SENTENCES = ("sst2", "cr", "mr", "mpqa", "trec", "ag_news", "subj")
PAIRS = ("qnli", "snli", "mnli", "rte", "mrpc", "qqp")
DENSITIES = (1e-5, 1e-4, 1e-3, 1e-2)


def table2(profile: Profile) -> Sequence[Draft]:
    """Base, tuned and graft of every task: score, ECE, agreement, share kept, relative gain."""
    tasks = profile.tasks or SENTENCES + PAIRS
    return [_kept_skills(profile, tasks, shots) for shots in profile.shots or (64, 4096)]


def _kept_skills(profile: Profile, tasks: Sequence[str], shots: int) -> Draft:
    cells: dict[tuple[str, str], Wanted | str] = {}
    for task in tasks:
        base = parts.said(profile, task)
        runs = [_tuned_and_graft(profile, task, shots, seed) for seed in profile.seeds or (0,)]
        full, graft = ([run[place] for run in runs] for place in (0, 1))
        table = f"table2-{shots}"
        cells[task, "majority"] = Wanted.of(formulas.majority, base)
        cells[task, "base"] = Wanted.of(formulas.score, base)
        for name, formula, samples in (
            ("tuned", formulas.score, [(f,) for f in full]),
            ("tuned ECE", formulas.ece, [(f,) for f in full]),
            ("graft", formulas.score, [(g,) for g in graft]),
            ("graft ECE", formulas.ece, [(g,) for g in graft]),
            ("agreement", formulas.agree, list(zip(graft, full, strict=True))),
            ("share kept", formulas.kept, list(zip(graft, full, strict=True))),
            ("relative gain", formulas.gain, [(g, f, base) for g, f in zip(graft, full, strict=True)]),
        ):
            cells[task, name] = Wanted(formula, tuple(samples), paper(table, task, name))
    return Draft(f"{shots} examples per class, density 1e-4", cells, rows_are="task")


def _tuned_and_graft(profile: Profile, task: str, shots: int, seed: int) -> tuple[Step, Step]:
    model = parts.tuned(profile, task, shots=shots, seed=seed)
    graft = parts.graft(profile, model, task, shots=shots, seed=seed, budget=1e-4)
    return parts.said(profile, task, tuned=model), parts.said(profile, task, graft=graft)


def fig2(profile: Profile) -> Sequence[Draft]:
    """Score against density for learned regions (γ_base = the top of each density), movement and random ones."""
    return [
        _against_density(profile, task, shots)
        for task in profile.tasks or ("sst2", "qnli")
        for shots in profile.shots or (4096,)
    ]


def _against_density(profile: Profile, task: str, shots: int) -> Draft:
    cells: dict[tuple[str, str], Wanted | str] = {}
    seeds = profile.seeds or (0,)
    models = [parts.tuned(profile, task, shots=shots, seed=seed) for seed in seeds]
    for density in DENSITIES:
        for name in ("learned", "movement", "random"):
            options: dict[str, Any] = {"start": density} if name == "learned" else {}
            grafts = [
                parts.graft(profile, model, task, shots=shots, seed=seed, name=name, budget=density, **options)
                for model, seed in zip(models, seeds, strict=True)
            ]
            samples = tuple((parts.said(profile, task, graft=graft),) for graft in grafts)
            cells[f"{density:g}", name] = Wanted(formulas.score, samples)
        cells[f"{density:g}", "tuned"] = Wanted(
            formulas.score, tuple((parts.said(profile, task, tuned=m),) for m in models)
        )
        cells[f"{density:g}", "base"] = Wanted.of(formulas.score, parts.said(profile, task))
    return Draft(f"{task}, {shots} examples per class", cells, rows_are="density", look="lines", log_x=True)


RECIPES: Mapping[str, Recipe] = {
    "table2": Recipe("grafts keep the skill and are better calibrated", "P1 table 2", table2),
    "fig2": Recipe("learned regions against movement and random ones", "P1 figure 2", fig2),
}
