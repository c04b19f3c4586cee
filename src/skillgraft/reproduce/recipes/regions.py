"""P1 B.1, B.4, D.1, D.4: which entries a region has (table 8; figures 9, 10 and 15; stability)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from skillgraft.region import Region
from skillgraft.reproduce import formulas as f
from skillgraft.reproduce import parts
from skillgraft.reproduce.content import scope_of
from skillgraft.reproduce.drafts import Column, Columns, curve, wanted
from skillgraft.reproduce.profile import Profile
from skillgraft.reproduce.recipe import Draft, Recipe, Wanted
from skillgraft.reproduce.recipes.localization import PAIRS, SENTENCES
from skillgraft.reproduce.samples import Ask, Model, Sample, base, called, drawn, draws, graft, says, sized, tuned
from skillgraft.reproduce.step import Step

OVERLAPS = (1e-4, 1e-3, 1e-2)
TRACKED = (1e-4, 1e-3, 1e-2)
CHECKPOINTS = 6
# Figure 9's panels: which entries are counted.
PANELS: Mapping[str, str] = MappingProxyType(
    {"all entries": "", "value": "value", "MLP in": "MLP in", "LayerNorm": "LayerNorm"}
)


def table8(profile: Profile) -> Sequence[Draft]:
    """How little a graft's region has in common with the base's most sensitive entries (FISH), and grafts there."""
    return [_fish(profile, shots) for shots in profile.shots_or("many")]


def _fish(profile: Profile, shots: int) -> Draft:
    cells: dict[tuple[str, str], Wanted | str] = {}
    for task in profile.tasks_or("sst2", "ag_news", "qnli", "qqp"):
        for density in OVERLAPS:
            for name, column in _against_fish(density).items():
                cells[f"{called(task)} {100 * density:g} %", name] = wanted(draws(profile, task, shots), column)
    return Draft(f"{shots} examples per class", cells, rows_are="task and density").beside("table8")


def _against_fish(density: float) -> Columns:
    def fish(sample: Sample) -> Step:
        return sample.base_region("highest-fisher", density)

    def fish_graft(sample: Sample) -> dict[str, Any]:
        return {"graft": parts.cut(sample.profile, sample.tuned(), region=fish(sample))}

    def random_graft(sample: Sample) -> dict[str, Any]:
        return {"graft": sample.graft(name="random", budget=density)}

    columns: dict[str, Column] = {"overlap": (f.jaccard, _region(density), fish)}
    models: dict[str, Model] = {"graft": graft(density), "FISH graft": fish_graft, "random graft": random_graft}
    for name, model in models.items():
        columns |= {name: (f.score, says(model)), f"{name} ECE": (f.ece, says(model))}
    return {**columns, "tuned": (f.score, says(tuned)), "base": (f.score, says(base))}


def _region(density: float) -> Ask:
    return lambda sample: sample.graft(**sized(density))


def fig9(profile: Profile) -> Sequence[Draft]:
    """Which layers a graft's entries lie in: all of them, value matrices, the MLP's first matrices, LayerNorms."""
    return [
        _where(profile, shots, panel, {layer: f.layer_share(layer, kind) for layer in _nowhere(profile).by_layer()})
        for shots in profile.shots_or("many")
        for panel, kind in PANELS.items()
    ]


def fig10(profile: Profile) -> Sequence[Draft]:
    """What kinds of parameters a graft's entries belong to."""
    kinds = {kind: f.kind_share(kind) for kind in _nowhere(profile).by_kind()}
    return [_where(profile, shots, "kinds", kinds) for shots in profile.shots_or("many")]


def _nowhere(profile: Profile) -> Region:
    """The empty region of the base's layers: it knows their names and kinds."""
    return Region(scope_of(profile.base), {})


def _where(profile: Profile, shots: int, panel: str, places: Mapping[str, Any]) -> Draft:
    cells = {
        (place, task): wanted(samples, (formula, _region(1e-4)))
        for task, samples in drawn(profile, profile.tasks_or(*SENTENCES, *PAIRS), shots).items()
        for place, formula in places.items()
    }
    title = f"{panel}: {shots} examples per class, density 1e-4"
    return Draft(
        title, cells, rows_are="place", columns_are="task", look="heatmap", values_are="share of the region's entries"
    )


def fig15(profile: Profile) -> Sequence[Draft]:
    """The regions of a checkpoint half-way, learned from that model's own answers, with every checkpoint's numbers."""
    return [
        _tracked(profile, task, shots)
        for task in profile.tasks_or("sst2", "qnli", "snli", "mnli")
        for shots in profile.shots_or("many")
    ]


def _tracked(profile: Profile, task: str, shots: int) -> Draft:
    steps = profile.plan("sgd", task, shots, seed=0).steps
    every = max(1, steps // CHECKPOINTS)
    points = range(every, steps + 1, every)
    chosen = points[(len(points) - 1) // 2]

    def run(sample: Sample) -> Step:
        return sample.tuned(checkpoint_every=every, stop_at=None)

    def region(sample: Sample, density: float) -> Step:
        half_way = {"checkpoint": _named(chosen), "labels": "tuned"}
        return sample.graft(run(sample), budget=density, start=density, **half_way)

    def at(step: float) -> Columns:
        here = _named(int(step))

        def model(sample: Sample) -> dict[str, Any]:
            return {"tuned": run(sample), "checkpoint": here}

        def grafts(density: float) -> Model:
            return lambda sample: {
                "graft": parts.cut(sample.profile, run(sample), region=region(sample, density), checkpoint=here)
            }

        return {
            "model, training rows": (f.score, says(model, split="train")),
            "model": (f.score, says(model)),
            **{f"graft {100 * density:g} %": (f.score, says(grafts(density))) for density in TRACKED},
            "base": (f.score, says(base)),
        }

    notes = (f"Regions are those of the model after step {chosen}, learned from its own answers.",)
    title = f"{called(task)}, {shots} examples per class"
    return curve(title, draws(profile, task, shots), at, points, rows_are="step of tuning", notes=notes)


def _named(step: int) -> str:
    """A checkpoint's folder, as `finetune` calls it."""
    return f"step-{step:06d}"


def stability(profile: Profile) -> Sequence[Draft]:
    """Regions of several draws of training rows: how alike they are, and how alike the grafts answer."""
    return [
        draft
        for task in profile.tasks_or("sst2", "qnli")
        for shots in profile.shots_or("many")
        for draft in _alike(draws(profile, task, shots, least=3), f"{called(task)}, {shots} examples per class")
    ]


def _alike(samples: Sequence[Sample], title: str) -> list[Draft]:
    questions: dict[str, tuple[Any, Ask]] = {
        "jaccard of the regions": (f.jaccard, _region(1e-4)),
        "agreement of the grafts": (f.agree, says(graft())),
        "agreement of the tuned models": (f.agree, says(tuned)),
    }
    return [
        Draft(
            f"{what}: {title}",
            {
                (f"seed {one.seed}", f"seed {two.seed}"): Wanted.of(formula, ask(one), ask(two))
                for one in samples
                for two in samples
            },
            look="heatmap",
            values_are=what,
        )
        for what, (formula, ask) in questions.items()
    ]


RECIPES: Mapping[str, Recipe] = {
    "table8": Recipe("grafts and the most sensitive entries of the base", "P1 table 8", table8),
    "fig9": Recipe("which layers hold the skill", "P1 figure 9", fig9),
    "fig10": Recipe("which kinds of parameters hold the skill", "P1 figure 10", fig10),
    "fig15": Recipe("core skills are learned first", "P1 figure 15", fig15),
    "stability": Recipe("regions of other training rows", "P1 D.1", stability),
}
