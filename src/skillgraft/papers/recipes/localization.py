"""P1 §3 and B.2, B.5: sparse regions keep a skill, however the model was tuned (headline; tables 2, 5, 9; figures 2 to 5).

Beyond the papers: `pull`. P1 §3.2 pulls AdamW's models towards the base alone. Here SGD's are pulled, too, and what their grafts
keep is also counted against the model that was tuned without a pull: a pull that costs accuracy counts against its grafts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from skillgraft.papers import formulas as f
from skillgraft.papers.profile import Profile
from skillgraft.papers.recipe import Column, Columns, Draft, Recipe, Remark, curve, table, wanted
from skillgraft.papers.samples import (
    DENSITY,
    START,
    Ask,
    Model,
    Sample,
    answers,
    base,
    called,
    drawn,
    draws,
    graft,
    scaled,
    sized,
    tuned,
    tuned_by,
)
from skillgraft.papers.steps import Part, Step, task_of

SENTENCES = ("sst2", "cr", "mr", "mpqa", "trec", "ag_news", "subj")
PAIRS = ("qnli", "snli", "mnli", "rte", "mrpc", "qqp")
AVERAGES = {"average of single sentences": SENTENCES, "average of pairs": PAIRS}
HEADLINE = ("sst2", "subj", "ag_news", "trec", "qnli")
OF_PAIRS = 10 * DENSITY  # pairs of sentences are given ten times as many entries, too
DENSITIES = (1e-5, 1e-4, 1e-3, 1e-2)
BIAS_SHARES = (0.01, 0.1, 0.3, 0.5, 1.0)
TICKETS = (0.1, 0.3, 0.5, 0.7, 0.9)
MOST, AS_LONG_AS = 50_000, 4096  # examples per class (B.2); tuning takes as many steps as for so many
OPTIMIZERS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"SGD": {}, "AdamW": {"optimizer": "adamw"}, "AdamW + L1": {"optimizer": "adamw", "l1": 1e-3}}
)
DENSITY_LINES: Mapping[str, Any] = MappingProxyType({"rows_are": "density", "log_x": True, "values_are": "score"})


def compared(grafted: Model, own: Model = tuned) -> dict[str, Column]:
    """What is asked about a graft, by the name of a column; `own` is the tuned model that it was taken from."""
    held_out = {"split": "validation"}
    return {
        "majority": (f.majority, answers(base)),
        "base": (f.score, answers(base)),
        "base + shift": (f.shifted_score, answers(base), answers(base, **held_out)),
        "tuned": (f.score, answers(own)),
        "tuned ECE": (f.ece, answers(own)),
        "tuned over-confident by": (f.overconfidence, answers(own)),
        "tuned + temperature ECE": (f.tempered_ece, answers(own), answers(own, **held_out)),
        "graft": (f.score, answers(grafted)),
        "graft ECE": (f.ece, answers(grafted)),
        "ECE cut": (f.ece_cut, answers(grafted), answers(own)),
        "agreement": (f.agree, answers(grafted), answers(own)),
        "share kept": (f.kept, answers(grafted), answers(own)),
        "relative gain": (f.gain, answers(grafted), answers(own), answers(base)),
    }


def _without(columns: Columns, *names: str) -> dict[str, Column]:
    return {name: column for name, column in columns.items() if name not in names}


def _random(sample: Sample, density: float) -> Step:
    return sample.cut(region=sample.base_region("random-region", density))


def _movement(sample: Sample, density: float) -> Step:
    return sample.cut(density=density)


def _searched(**options: Any) -> Search:
    return lambda sample, density: sample.graft(density=density, **options)


Search = Callable[[Sample, float], Step]
SEARCHES: Mapping[str, Search] = MappingProxyType(
    {
        "random": _random,
        "movement": _movement,
        "budgeted": _searched(method="budgeted"),
        "learned (P1)": _searched(method="learned", start=START),
    }
)
SHOWN = ("random", "movement", "budgeted")  # unless others are asked for


def headline(profile: Profile) -> Sequence[Draft]:
    """Base, tuned and grafts of every task by every search, or by some of them."""
    chosen = profile.methods_or(*SHOWN, known=SEARCHES)
    return [
        _task(chosen, task, shots, draws(profile, task, shots))
        for task in profile.tasks_or(*HEADLINE)
        for shots in profile.shots_or("many")
    ]


def _task(chosen: Sequence[str], task: str, shots: int, samples: Sequence[Sample]) -> Draft:
    def columns(search: Search, density: float) -> Columns:
        every = compared(lambda sample: {"graft": search(sample, density)})
        return _without(every, "base + shift", "tuned + temperature ECE")

    densities = (DENSITY,) if len(task_of(task).inputs) == 1 else (DENSITY, OF_PAIRS)
    cells = {
        (f"{search}, {density:g}", column): wanted(samples, asked)
        for density in densities
        for search in chosen
        for column, asked in columns(SEARCHES[search], density).items()
    }
    grafts = {search: SEARCHES[search](samples[0], DENSITY) for search in chosen}
    costs = [Remark(_cost(search), (graft.recipe,)) for search, graft in grafts.items() if graft.name == "localize"]
    return Draft(f"{called(task)}, {shots} examples per class", cells, rows_are="search, density", remarks=tuple(costs))


def _cost(search: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda made: f"{search}: {made['steps']} steps of at most {made['batch_size']} rows, forward and backward."


def table2(profile: Profile) -> Sequence[Draft]:
    """Base, tuned and graft of every task at both numbers of shots; and what goes beyond the paper at the same density."""
    return [*_kept_skills(profile, "table2", density=1e-4), *_beyond(profile, density=1e-4)]


def _beyond(profile: Profile, *, density: float) -> list[Draft]:
    """Regions at a tenth of the cost, and their grafts with tuned's change and with a multiple of it."""
    tasks = profile.tasks_or(*SENTENCES, *PAIRS)
    cheap, loud = graft(density, method="budgeted"), graft(density, method="budgeted", scale="auto")
    columns: dict[str, Column] = {
        "base": (f.score, answers(base)), "tuned": (f.score, answers(tuned)), "tuned ECE": (f.ece, answers(tuned)),
        "budgeted graft": (f.score, answers(cheap)), "budgeted graft ECE": (f.ece, answers(cheap)),
        "amplified graft": (f.score, answers(loud)), "amplified graft ECE": (f.ece, answers(loud)),
        "amplified: share kept": (f.kept, answers(loud), answers(tuned)),
        "amplified: relative gain": (f.gain, answers(loud), answers(tuned), answers(base)),
    }  # fmt: skip
    multiple: dict[str, Column] = {"multiple of the change": (f.scale, lambda sample: loud(sample)["graft"])}
    notes = (
        "budgeted: the region by small steps, at a tenth of the learned region's cost. amplified: the same, searched and cut "
        "with a multiple of tuned's change that validation rows choose.",
    )
    drafts: list[Draft] = []
    for shots in profile.shots_or("few", "many"):
        about, rows = f"{shots} examples per class, density {density:g}", drawn(profile, tasks, shots)
        drafts.append(
            table(f"beyond the paper: {about}", rows, columns, averages=AVERAGES, rows_are="task", notes=notes)
        )
        drafts.append(table(f"chosen multiples: {about}", rows, multiple, rows_are="task", unit="number"))
    return drafts


def table9(profile: Profile) -> Sequence[Draft]:
    """The same with label words after a causal model's prompt, at 0.05 %."""
    return _kept_skills(replace(profile, readout="causal"), "table9", density=5e-4)


def _kept_skills(profile: Profile, name: str, *, density: float) -> list[Draft]:
    tasks = profile.tasks_or(*SENTENCES, *PAIRS)
    columns = _without(compared(graft(density, start=1e-5)), "tuned over-confident by", "ECE cut")
    return [
        table(
            f"{shots} examples per class, density {density:g}",
            drawn(profile, tasks, shots),
            columns,
            averages=AVERAGES,
            rows_are="task",
        ).beside(f"{name}-{64 if shots <= 64 else 4096}")
        for shots in profile.shots_or("few", "many")
    ]


def table5(profile: Profile) -> Sequence[Draft]:
    """All rows instead of a few: larger grafts of models tuned on up to 50,000 examples per class."""
    tasks = profile.tasks_or("sentiment", "ag_news", "qnli", "snli")
    samples = drawn(profile, tasks, AS_LONG_AS)
    rows = {task: [replace(sample, most=MOST) for sample in some] for task, some in samples.items()}
    columns: dict[str, Column] = {"majority": (f.majority, answers(base)), "base": (f.score, answers(base))}
    sizes = {f"graft {100 * density:g} %": _longer(density, profile) for density in (3e-4, 6e-4, 1.2e-3)}
    for name, model in {"tuned": tuned, **sizes}.items():
        columns |= {name: (f.score, answers(model)), f"{name} ECE": (f.ece, answers(model))}
    notes = ("All rows, at most 50,000 per class; a twentieth validates. Regions take ten times the steps.",)
    return [table("all training rows", rows, columns, rows_are="task", notes=notes).beside("table5")]


def _longer(density: float, profile: Profile) -> Model:
    return graft(density, steps=10 * profile.region_steps)


def fig2(profile: Profile) -> Sequence[Draft]:
    """Score against density for learned regions (γ_base = the top of each density), movement and random ones, or some of them."""
    lines: dict[str, Callable[[float], Model]] = {
        "learned": _from_top,
        "learned, nested from 1e-05": lambda density: lambda sample: {"graft": nested(sample, density)},
        "movement": lambda density: _by("movement", density),
        "random": lambda density: _by("random", density),
    }
    chosen = profile.methods_or(*lines)

    def at(density: float) -> Columns:
        return _scores({**{name: lines[name](density) for name in chosen}, "tuned": tuned, "base": base})

    return _over_density(profile, at)


def nested(sample: Sample, density: float) -> Part:
    """A density of the one search from γ_base = 1e-5 that all nested densities share."""
    return sample.graft(start=START, density=max(DENSITIES), densities=DENSITIES).at(density)


def fig3(profile: Profile) -> Sequence[Draft]:
    """A linear head on the first token against the profile's own readout (a prompt, or a text head).

    The base has no linear head of its own: beside grafts stands what tuned's head alone does on it.
    """
    readouts: dict[str, tuple[Profile, Mapping[str, Model]]] = {
        f"{profile.readout} readout": (profile, {"base": base}),
        "linear head": (replace(profile, readout="linear"), {"base with tuned's head": scaled(tuned, 0.0)}),
    }

    def at(density: float) -> Columns:
        return {
            f"{name}, {readout}": (f.score, _under(asked, answers(model)))
            for readout, (asked, without) in readouts.items()
            for name, model in {"graft": _from_top(density), "tuned": tuned, **without}.items()
        }

    return _over_density(profile, at)


def _under(profile: Profile, ask: Ask) -> Ask:
    """The same question with everything made and asked under another profile."""
    return lambda sample: ask(replace(sample, profile=profile))


def fig4(profile: Profile) -> Sequence[Draft]:
    """(a) grafts of biases alone; (b) lottery tickets: what is not in the region is 0 instead of the base's number."""
    return [*_bias_grafts(profile), *_tickets(profile)]


def _bias_grafts(profile: Profile) -> list[Draft]:
    def at(share: float) -> Columns:
        biases: dict[str, Any] = {"scope": "biases"}
        models = {"learned biases": _from_top(share, **biases), "moved biases": _by("movement", share, **biases)}
        return _scores({**models, "tuned": tuned, "base": base})

    return _over_density(
        profile, at, BIAS_SHARES, title="(a) biases alone", rows_are="share of the biases", log_x=False
    )


def _tickets(profile: Profile) -> list[Draft]:
    def ticket(sample: Sample, **options: Any) -> dict[str, Any]:
        return {"tuned": sample.tuned(), "ticket": sample.ticket(**options)}

    def at(density: float) -> Columns:
        def largest(sample: Sample) -> dict[str, Any]:
            return ticket(sample, method="movement", density=density)

        def learned(sample: Sample) -> dict[str, Any]:
            return ticket(sample, **_top(density))

        def learned_from_largest(sample: Sample) -> dict[str, Any]:
            return ticket(sample, density=density, start=largest(sample)["ticket"])

        models: dict[str, Model] = {
            "learned from movement": learned,
            "learned from magnitude": learned_from_largest,
            "magnitude": largest,
        }
        return _scores({**models, "tuned": tuned, "base": base})

    return _over_density(profile, at, TICKETS, title="(b) lottery tickets", log_x=False)


def fig5(profile: Profile) -> Sequence[Draft]:
    """Grafts of models that SGD, AdamW, and AdamW with a pull towards the base have tuned."""

    def at(density: float) -> Columns:
        return _scores(
            {
                **{name: _from_top(density, changes) for name, changes in OPTIMIZERS.items()},
                **_with_larger_steps(profile, density),
                **{f"{name}, tuned": tuned_by(**changes) for name, changes in OPTIMIZERS.items()},
                "base": base,
            }
        )

    return _over_density(profile, at)


def _over_density(
    profile: Profile,
    at: Callable[[float], Columns],
    points: Sequence[float] = DENSITIES,
    *,
    title: str = "",
    **look: Any,
) -> list[Draft]:
    return [
        curve(
            f"{title + ': ' if title else ''}{called(task)}, {shots} examples per class",
            draws(profile, task, shots), at, points, **{**DENSITY_LINES, **look},
        )
        for task in profile.tasks_or("sst2", "qnli")
        for shots in profile.shots_or("many")
    ]  # fmt: skip


def _scores(models: Mapping[str, Model]) -> dict[str, Column]:
    return {name: (f.score, answers(model)) for name, model in models.items()}


def _top(density: float) -> dict[str, Any]:
    """P1's curves: γ_base is the top of each density itself."""
    return {"density": density, "start": density}


def _from_top(density: float, changes: Mapping[str, Any] = MappingProxyType({}), **options: Any) -> Model:
    return lambda sample: {"graft": sample.graft(sample.tuned(**changes), **_top(density), **options)}


def _with_larger_steps(profile: Profile, density: float) -> dict[str, Model]:
    """Searches from P1's smallest γ_base, for the models of optimizers for which the profile has mask steps of their own.

    From the most moved entries of each density a search hardly gets away in such models.
    """

    def larger(changes: Mapping[str, Any]) -> Model:
        options = {"density": density, "start": START, "lr": profile.region_lr[changes["optimizer"]]}
        return lambda sample: {"graft": sample.graft(sample.tuned(**changes), **options)}

    return {
        f"{name}, larger mask steps": larger(changes)
        for name, changes in OPTIMIZERS.items()
        if changes.get("optimizer") in profile.region_lr
    }


def _by(method: str, density: float, **options: Any) -> Model:
    return lambda sample: {"graft": sample.graft(method=method, density=density, **options)}


STRENGTHS = (0.0, 3e-4, 1e-3)  # of the L1 pull; P1's is the last
PULLED = MappingProxyType(
    {
        f"{strength:g}, {search}": (strength, search)
        for strength in STRENGTHS
        for search in ("movement", "budgeted", "learned")
    }
)
NOTE = (
    "movement: the entries that moved most, without any search; budgeted: searched at a tenth of the learned region's cost; "
    "learned: P1's search. What a graft keeps is counted of its own tuned model, and of the one that was tuned without a pull."
)


def pull(profile: Profile) -> Sequence[Draft]:
    """Grafts by every search, out of models tuned with an L1 pull of every strength; or some of these rows."""
    chosen = profile.methods_or(*PULLED)
    return [
        _pulled(chosen, task, shots, draws(profile, task, shots))
        for task in profile.tasks_or("sst2", "subj", "ag_news", "qnli")
        for shots in profile.shots_or("many")
    ]


def _pulled(chosen: Sequence[str], task: str, shots: int, samples: Sequence[Sample]) -> Draft:
    density = DENSITY if len(task_of(task).inputs) == 1 else OF_PAIRS
    cells = {
        (row, column): wanted(samples, asked)
        for row in chosen
        for column, asked in _against_both(*PULLED[row], density).items()
    }
    title = f"{called(task)}, {shots} examples per class, density {density:g}"
    return Draft(title, cells, rows_are="strength of the pull, method", notes=(NOTE,))


def _against_both(strength: float, search: str, density: float) -> Columns:
    """A graft beside its own tuned model, and beside the one that was tuned without a pull."""
    options = sized(density) if search == "learned" else {"method": search, "density": density}

    def found(sample: Sample) -> dict[str, Any]:
        return {"graft": sample.graft(sample.tuned(l1=strength), **options)}

    own, unpulled = compared(found, tuned_by(l1=strength)), compared(found)
    shown = ("base", "tuned", "tuned ECE", "graft", "graft ECE", "share kept", "relative gain")
    return {
        **{name: own[name] for name in shown},
        **{f"{name}, without a pull": unpulled[name] for name in ("share kept", "relative gain")},
    }


RECIPES: Mapping[str, Recipe] = {
    "headline": Recipe("0.01 % of the layers keep the skill, better calibrated", "P1 §3, §4.1", headline),
    "table2": Recipe("grafts keep the skill and are better calibrated", "P1 table 2", table2),
    "table5": Recipe("grafts of models tuned on all rows", "P1 table 5", table5),
    "table9": Recipe("grafts of causal models", "P1 table 9", table9),
    "fig2": Recipe("learned regions against movement and random ones", "P1 figure 2", fig2),
    "fig3": Recipe("grafts of prompts and of linear heads", "P1 figure 3", fig3),
    "fig4": Recipe("neither biases nor lottery tickets hold the skill", "P1 figure 4", fig4),
    "fig5": Recipe("AdamW needs a pull towards the base", "P1 figure 5", fig5),
    "pull": Recipe("models pulled towards the base keep a skill in fewer entries", "ours, after P1 §3.2", pull),
}
