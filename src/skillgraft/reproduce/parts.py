"""The steps that recipes are written in: a tuned model, a region in it, what a model says."""

from __future__ import annotations

from typing import Any

from skillgraft.reproduce.profile import Profile
from skillgraft.reproduce.step import Step


def tuned(
    profile: Profile,
    *tasks: str,
    shots: int,
    seed: int,
    optimizer: str = "sgd",
    only: Step | None = None,
    start: Step | None = None,
    checkpoint_every: int | None = None,
    **changes: Any,
) -> Step:
    """A model tuned on a task, or on a mixture; `only` trains inside a region, `start` goes on from another model."""
    plan = profile.plan(optimizer, tasks[0], shots, seed=seed, **changes)
    if len(tasks) > 1:
        plan = plan.with_changes(steps=plan.steps * len(tasks))
    settings = {
        "base": profile.base, "tasks": list(tasks), "shots": shots, "seed": seed, "plan": plan.as_dict(),
        "readout": profile.readout, "max_length": profile.max_length,
    }  # fmt: skip
    if checkpoint_every:
        settings["checkpoint_every"] = checkpoint_every
    return Step("tune", settings, _given(only=only, start=start))


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
    **options: Any,
) -> Step:
    """The graft of a task's skill in a tuned model; `start` is γ_base. Options are those of `localize_skill`."""
    data = {
        "shots": shots, "seed": seed, "batch_size": profile.region_rows, "max_length": profile.max_length,
        "readout": profile.readout, "labels": labels,
    }  # fmt: skip
    settings = {"base": profile.base, "task": task, "name": name, "data": data, **options}
    if name == "learned":
        settings.setdefault("steps", profile.region_steps)
        if start is not None and not isinstance(start, Step):
            settings["start"] = start
    return Step("localize", settings, {"tuned": model, **_given(start=start if isinstance(start, Step) else None)})


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
    settings: dict[str, Any] = {"base": profile.base, **_given(budget=budget)}
    if checkpoint:
        settings["checkpoint"] = checkpoint
    return Step("cut", settings, {"tuned": model, **_given(region=region)})


def said(
    profile: Profile,
    task: str,
    *,
    tuned: Step | None = None,
    graft: Step | None = None,
    scale: float = 1.0,
    checkpoint: str = "",
) -> Step:
    """What the base, a tuned model, or a graft on the base says about the test rows."""
    settings: dict[str, Any] = {
        "base": profile.base, "task": task, "rows": profile.test_rows, "max_length": profile.max_length,
        "readout": profile.readout,
    }  # fmt: skip
    settings |= {"scale": scale} if scale != 1.0 else {}
    settings |= {"checkpoint": checkpoint} if checkpoint else {}
    return Step("say", settings, _given(tuned=tuned, graft=graft))


def said_in_training(
    profile: Profile,
    task: str,
    *,
    shots: int,
    seed: int,
    split: str = "train",
    tuned: Step | None = None,
    graft: Step | None = None,
) -> Step:
    """The same on the rows that a run of these shots and this seed trained on, or validated on."""
    settings = {
        "base": profile.base, "task": task, "split": split, "shots": shots, "seed": seed,
        "max_length": profile.max_length, "readout": profile.readout,
    }  # fmt: skip
    return Step("say", settings, _given(tuned=tuned, graft=graft))


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
