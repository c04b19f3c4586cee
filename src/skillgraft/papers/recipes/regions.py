"""Which entries a region has: P1 B.1, B.4, D.1, D.4 (table 8; figures 9, 10 and 15; stability) and P2's figures 4 and 5."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from skillgraft.papers import formulas as f
from skillgraft.papers import samples
from skillgraft.papers.formulas import jaccard
from skillgraft.papers.profile import Profile
from skillgraft.papers.recipe import Cells, Column, Columns, Draft, Formula, Recipe, Wanted, curve, wanted
from skillgraft.papers.recipes.localization import PAIRS, SENTENCES
from skillgraft.papers.samples import Ask, Model, Sample, answers, base, called, drawn, draws, graft, sized, tuned
from skillgraft.papers.steps import Part, Step, scope_of
from skillgraft.papers.task_vectors import METHODS, Skill, Team, by_skill, methods_or, teams, trained_in
from skillgraft.values.kinds import parts_of
from skillgraft.values.region import Region, Scope

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
    cells: Cells = {}
    for task in profile.tasks_or("sst2", "ag_news", "qnli", "qqp"):
        for density in OVERLAPS:
            for name, column in _against_fish(density).items():
                cells[f"{called(task)} {100 * density:g} %", name] = wanted(draws(profile, task, shots), column)
    return Draft(f"{shots} examples per class", cells, rows_are="task and density").beside("table8")


def _against_fish(density: float) -> Columns:
    def fish(sample: Sample) -> Step:
        return sample.base_region("highest-fisher", density)

    def fish_graft(sample: Sample) -> dict[str, Any]:
        return {"graft": sample.cut(region=fish(sample))}

    def random_graft(sample: Sample) -> dict[str, Any]:
        return {"graft": sample.graft(method="random", density=density)}

    columns: dict[str, Column] = {"overlap": (f.jaccard, _region(density), fish)}
    models: dict[str, Model] = {"graft": graft(density), "FISH graft": fish_graft, "random graft": random_graft}
    for name, model in models.items():
        columns |= {name: (f.score, answers(model)), f"{name} ECE": (f.ece, answers(model))}
    return {**columns, "tuned": (f.score, answers(tuned)), "base": (f.score, answers(base))}


def _region(density: float) -> Ask:
    return lambda sample: sample.graft(**sized(density)).region


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


def _where(profile: Profile, shots: int, panel: str, shares: Mapping[str, Any]) -> Draft:
    cells = {
        (row, task): wanted(samples, (formula, _region(1e-4)))
        for task, samples in drawn(profile, profile.tasks_or(*SENTENCES, *PAIRS), shots).items()
        for row, formula in shares.items()
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
    from skillgraft.training.finetune import checkpoint_name

    steps = profile.plan("sgd", task, shots, seed=0).steps
    every = max(1, steps // CHECKPOINTS)
    points = range(every, steps + 1, every)
    chosen = points[(len(points) - 1) // 2]

    def run(sample: Sample) -> Step:
        return sample.tuned(checkpoint_every=every, stop_at=None)

    def region(sample: Sample, density: float) -> Part:
        half_way = run(sample).checkpoint(checkpoint_name(chosen))
        return sample.graft(half_way, density=density, start=density, labels="tuned").region

    def at(step: float) -> Columns:
        here = checkpoint_name(int(step))

        def model(sample: Sample) -> dict[str, Any]:
            return {"tuned": run(sample).checkpoint(here)}

        def grafts(density: float) -> Model:
            return lambda sample: {
                "graft": samples.cut(sample.profile, run(sample).checkpoint(here), region=region(sample, density))
            }

        return {
            "model, training rows": (f.score, answers(model, split="train")),
            "model": (f.score, answers(model)),
            **{f"graft {100 * density:g} %": (f.score, answers(grafts(density))) for density in TRACKED},
            "base": (f.score, answers(base)),
        }

    notes = (f"Regions are those of the model after step {chosen}, learned from its own answers.",)
    title = f"{called(task)}, {shots} examples per class"
    return curve(title, draws(profile, task, shots), at, points, rows_are="step of tuning", notes=notes)


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
        "agreement of the grafts": (f.agree, answers(graft())),
        "agreement of the tuned models": (f.agree, answers(tuned)),
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


REGIONS = ("TaLoS", "TaLoS plain", "LoTA")


def p2_fig4(profile: Profile) -> Sequence[Draft]:
    """Which kinds of entries TaLoS and LoTA train in one block, the middle one."""
    return [
        _by_kind(words, samples, _methods(profile))
        for words, some in teams(profile, profile.tasks_or("sst2")).items()
        for samples in zip(*some, strict=True)
    ]


def _by_kind(words: str, samples: Sequence[Skill], methods: Sequence[str]) -> Draft:
    layers = _layers(samples[0])
    middle = layers[len(layers) // 2]
    cells: Cells = {
        (kind, method): _of_region(f.selected(middle, kind), samples, method)
        for kind in _kinds(samples[0])
        for method in methods
    }
    title = f"{samples[0].name}: {middle}, {words}"
    return Draft(title, cells, rows_are="kind", look="bars", values_are="share of its entries that is trained")


def p2_fig5(profile: Profile) -> Sequence[Draft]:
    """TaLoS's and LoTA's regions in the whole model, their bare rows and columns, and whether tasks agree about them."""
    methods = _methods(profile)
    return [
        draft
        for words, some in teams(profile, profile.tasks_or("sst2", "ag_news", "trec")).items()
        for draft in (
            *(_everywhere(words, samples, method) for samples in zip(*some, strict=True) for method in methods),
            _bare(words, some, methods),
            *_agreement(words, some, methods),
            _insensitive(words, some, [name for name in methods if name.startswith("TaLoS")]),
        )
    ]


def _everywhere(words: str, samples: Sequence[Skill], method: str) -> Draft:
    cells: Cells = {
        (layer, kind): _of_region(f.selected(layer, kind), samples, method)
        for layer in _layers(samples[0])
        for kind in _kinds(samples[0])
    }
    look: dict[str, Any] = {"look": "heatmap", "values_are": "share of its entries that is trained"}
    return Draft(f"{method}: {samples[0].name}, {words}", cells, rows_are="layer", columns_are="kind", **look)


def _bare(words: str, some: Sequence[Team], methods: Sequence[str]) -> Draft:
    """Rows and columns of the matrices without any entry to train: what hardware can leave out."""
    shapes = _scope(some[0][0]).shapes
    matrices = {part.kind for name, shape in shapes.items() if len(shape) > 1 for part in parts_of(name, shapes)}
    kinds = [kind for kind in _kinds(some[0][0]) if kind in matrices]
    skills = [skill for team in some for skill in team]
    cells: Cells = {
        (kind, f"{method}, {axis}"): _of_region(f.empty(kind, axis), skills, method)
        for kind in kinds
        for method in methods
        for axis in ("rows", "columns")
    }
    return Draft(f"rows and columns without entries, mean over tasks, {words}", cells, rows_are="kind")


def _agreement(words: str, some: Sequence[Team], methods: Sequence[str]) -> list[Draft]:
    """Regions of several tasks under the same seed, pair by pair and together."""
    if len(some[0]) < 2:
        return []
    sheets = []
    for method in methods:
        regions = [[trained_in(skill, method) for skill in team] for team in some]
        cells: Cells = {
            (one.name, two.name): Wanted(jaccard, tuple((found[down], found[across]) for found in regions))
            for down, one in enumerate(some[0])
            for across, two in enumerate(some[0])
        }
        sheets.append(Draft(f"jaccard of {method}'s regions, {words}", cells, look="heatmap", values_are="jaccard"))
    together: dict[str, Formula] = {
        "mean jaccard": f.mean_jaccard, "jaccard by chance": f.jaccard_by_chance, "entries that all tasks share": f.in_all
    }  # fmt: skip
    means: Cells = {
        (method, name): Wanted(formula, tuple(tuple(trained_in(s, method) for s in team) for team in some))
        for method in methods
        for name, formula in together.items()
    }
    return [*sheets, Draft(f"do tasks agree, {words}", means, rows_are="method")]


def _insensitive(words: str, some: Sequence[Team], methods: Sequence[str]) -> Draft:
    cells = by_skill(some, methods, f.fact("insensitive_share"), _facts)
    return Draft(f"chosen entries without any sensitivity, {words}", cells, rows_are="task")


def _facts(skill: Skill, method: str) -> Part:
    chosen = trained_in(skill, method)
    assert isinstance(chosen, Step), "TaLoS's regions are chosen in the base: facts stand beside them"
    return chosen.facts


def _methods(profile: Profile) -> tuple[str, ...]:
    return tuple(name for name in methods_or(profile, *REGIONS) if METHODS[name].region)


def _of_region(formula: Formula, samples: Sequence[Skill], method: str) -> Wanted:
    steps = tuple((trained_in(skill, method),) for skill in samples)
    return Wanted(formula, steps, seeds=tuple(skill.seed for skill in samples))


def _scope(skill: Skill) -> Scope:
    """The parameters that may hold a skill's region."""
    return Scope.select(skill.scope, scope_of(skill.profile.base).shapes)


def _layers(skill: Skill) -> list[str]:
    return list(Region(_scope(skill), {}).by_layer())


def _kinds(skill: Skill) -> list[str]:
    return list(Region(_scope(skill), {}).by_kind())


RECIPES: Mapping[str, Recipe] = {
    "table8": Recipe("grafts and the most sensitive entries of the base", "P1 table 8", table8),
    "fig9": Recipe("which layers hold the skill", "P1 figure 9", fig9),
    "fig10": Recipe("which kinds of parameters hold the skill", "P1 figure 10", fig10),
    "fig15": Recipe("core skills are learned first", "P1 figure 15", fig15),
    "stability": Recipe("regions of other training rows", "P1 D.1", stability),
    "talos-fig4": Recipe("which kinds of entries are trained, in one block", "P2 figure 4", p2_fig4),
    "talos-fig5": Recipe("which entries are trained, in the whole model", "P2 figure 5", p2_fig5),
}
