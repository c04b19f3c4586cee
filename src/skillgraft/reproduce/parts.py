"""The steps that recipes are written in: a tuned model, a region in it, what a model says."""

from __future__ import annotations

from typing import Any

from skillgraft.reproduce.profile import Profile
from skillgraft.reproduce.step import Step

LOOKS = 10  # how often the tuning of a mixture looks at the validation rows


def tuned(
    profile: Profile,
    *tasks: str,
    shots: int,
    seed: int,
    optimizer: str = "sgd",
    only: Step | None = None,
    outside: Step | None = None,
    start: Step | None = None,
    checkpoint_every: int | None = None,
    most: int | None = None,
    **changes: Any,
) -> Step:
    """A model tuned on a task, or on a mixture; `only` trains inside a region, `start` goes on from another model.

    A mixture takes as many steps as its tasks would one by one, and keeps what is best on average on validation (P1 C.1).
    `most` takes all rows, so many per class at most, instead of `shots`, which then only says how long to train.
    """
    plan = profile.plan(optimizer, tasks[0], shots, seed=seed, **changes)
    if len(tasks) > 1:
        steps = sum(profile.plan(optimizer, task, shots, seed=seed).steps for task in tasks)
        plan = plan.with_changes(steps=steps, validate_every=max(1, steps // LOOKS), keep="best")
    settings = {
        "base": profile.base, "tasks": list(tasks), **_rows(shots, most), "seed": seed, "plan": plan.as_dict(),
        "readout": profile.readout, "max_length": profile.max_length, **_given(checkpoint_every=checkpoint_every),
    }  # fmt: skip
    return Step("tune", settings, _given(only=only, outside=outside, start=start))


def graft(
    profile: Profile,
    model: Step,
    task: str,
    *,
    shots: int,
    seed: int,
    name: str = "learned",
    start: Step | float | str | None = None,
    labels: str = "true",
    most: int | None = None,
    **options: Any,
) -> Step:
    """The graft of a task's skill in a tuned model; `start` is γ_base. Options are those of `localize_skill`."""
    data = {
        **_rows(shots, most), "seed": seed, "batch_size": profile.region_rows, "max_length": profile.max_length,
        "readout": profile.readout, "labels": labels,
    }  # fmt: skip
    if name == "budgeted":
        del data["batch_size"]  # its steps are small by their nature
        options.setdefault("steps", profile.region_steps)
    settings = {"base": profile.base, "task": task, "name": name, "data": data, **options}
    needs = {"tuned": model}
    if name == "learned":
        settings.setdefault("steps", profile.region_steps)
        (needs if isinstance(start, Step) else settings).update(_given(start=start))
    return Step("localize", settings, needs)


def base_region(
    profile: Profile, task: str, *, shots: int, seed: int, name: str, density: float, **options: Any
) -> Step:
    """A region of the base alone, from a task's rows."""
    data = {"shots": shots, "seed": seed, "max_length": profile.max_length, "readout": profile.readout}
    settings = {"base": profile.base, "task": task, "name": name, "density": density, "data": data, **options}
    return Step("base-region", settings)


def cut(
    profile: Profile, model: Step, *, region: Step | None = None, budget: float | None = None, checkpoint: str = ""
) -> Step:
    """A tuned model's numbers in a region, or in the entries that moved most, as a graft."""
    settings = {"base": profile.base, **_given(budget=budget, checkpoint=checkpoint or None)}
    return Step("cut", settings, {"tuned": model, **_given(region=region)})


def said(
    profile: Profile,
    task: str,
    *,
    tuned: Step | None = None,
    graft: Step | None = None,
    ticket: Step | None = None,
    heads: Step | None = None,
    scale: float = 1.0,
    checkpoint: str = "",
    linear: bool = False,
) -> Step:
    """What the base, a tuned model, or a graft on the base says about the test rows; a `ticket` puts 0 outside a region.

    `heads` are those of another tuned model. `linear` reads the scores of the model linearised around the base.
    """
    settings: dict[str, Any] = {
        "base": profile.base, "task": task, "rows": profile.test_rows, "max_length": profile.max_length,
        "readout": profile.readout,
    }  # fmt: skip
    settings |= {"scale": scale} if scale != 1.0 else {}
    settings |= {"checkpoint": checkpoint} if checkpoint else {}
    settings |= {"linear": True} if linear else {}
    return Step("say", settings, _given(tuned=tuned, graft=graft, ticket=ticket, heads=heads))


def said_in_training(
    profile: Profile,
    task: str,
    *,
    shots: int,
    seed: int,
    split: str = "train",
    tuned: Step | None = None,
    graft: Step | None = None,
    checkpoint: str = "",
) -> Step:
    """The same on the rows that a run of these shots and this seed trained on, or validated on."""
    settings = {
        "base": profile.base, "task": task, "split": split, "shots": shots, "seed": seed,
        "max_length": profile.max_length, "readout": profile.readout, **_given(checkpoint=checkpoint or None),
    }  # fmt: skip
    return Step("say", settings, _given(tuned=tuned, graft=graft))


def _rows(shots: int, most: int | None) -> dict[str, int]:
    return {"shots": shots} if most is None else {"most": most}


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
