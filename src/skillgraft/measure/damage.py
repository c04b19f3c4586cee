"""What a fine-tune broke, and how much of it a graft gives back: by NLL, on rows that neither was meant to change.

    repaired(tasks={"nl2bash": models}, controls={"notes": others}, tuned="TUNED")["skill.safetensors"]

Each of the models was asked the same rows. `improvement` is base's NLL − the model's on a task, `damage` the model's − base's on
a control; `kept` and `given_back` say how much of tuned's improvement is still there and how much of its damage is gone. A
control that tuned did not damage has nothing to give back: that is None, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skillgraft.measure.intervals import Bootstrap, estimate, paired, paired_difference, quotient
from skillgraft.predictions.predictions import AnyPredictions

Models = Mapping[str, AnyPredictions]
BASE = "base"


def repaired(
    tasks: Mapping[str, Models], controls: Mapping[str, Models], *, tuned: str, bootstrap: Bootstrap = Bootstrap()
) -> dict[str, dict[str, Any]]:
    """Model → tasks and controls → numbers with intervals, as JSON has them; base itself is left out."""
    names = [name for name in next(iter(tasks.values())) if name != BASE]
    return {
        name: {
            "tasks": {task: _kept(models, name, tuned, bootstrap) for task, models in tasks.items()},
            "controls": {task: _given_back(models, name, tuned, bootstrap) for task, models in controls.items()},
        }
        for name in names
    }


def _kept(models: Models, name: str, tuned: str, bootstrap: Bootstrap) -> dict[str, Any]:
    improvement = paired_difference(models[BASE], models[name], metric="nll", bootstrap=bootstrap)
    three = paired("nll", models[BASE], models[name], models[tuned])
    none = "tuned improved nothing here"
    kept = estimate(lambda n: quotient(n[0] - n[1], n[0] - n[2]), three, bootstrap=bootstrap, undefined=none)
    return {"improvement": improvement.as_json(), "kept": kept.as_json()}


def _given_back(models: Models, name: str, tuned: str, bootstrap: Bootstrap) -> dict[str, Any]:
    damage = paired_difference(models[name], models[BASE], metric="nll", bootstrap=bootstrap)
    three = paired("nll", models[BASE], models[name], models[tuned])
    none = "tuned did no damage here"
    given = estimate(lambda n: 1 - quotient(n[1] - n[0], n[2] - n[0]), three, bootstrap=bootstrap, undefined=none)
    return {"damage": damage.as_json(), "given_back": given.as_json()}
