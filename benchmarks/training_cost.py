"""A step of each of P2's training methods on MiniLM, 16 × 32 tokens, AdamW: seconds, optimizer state, peak of tensors.

Regions hold 10 % of the layers: random entries, LoTA's (those that three full steps moved most) and TaLoS's (found on the same
made-up rows). The methods take turns, one step each. Peaks count tensors: model, gradients, activations,
optimizer state, indices.
"""

from __future__ import annotations

import copy

from measuring import MEGABYTE, Figure, Measured, Settings, command
from minilm import made_up_rows, minilm
from skillgraft.folders.movement import count_of, most_moved
from skillgraft.live.grafted import tensors_of
from skillgraft.regions.choose import random_region
from skillgraft.regions.sensitivity import DENSITY, least_sensitive
from skillgraft.task_model import TaskModel
from skillgraft.training.costs import Cost, Setup, step_costs
from skillgraft.training.loop import Course, Training, train
from skillgraft.training.methods import prepare
from skillgraft.training.plan import TrainingPlan
from skillgraft.values.region import Region

_BATCH, _STEPS = 16, 15
_PLAN = TrainingPlan(optimizer="adamw", lr=1e-5, weight_decay=0.01, batch_size=_BATCH, dropout=False)


def measure(settings: Settings) -> Measured:
    """step, peak: TaLoS / full; linear_step, linear_peak: linearised / TaLoS."""
    opened, readout = minilm()
    course = Course(readout, made_up_rows(_BATCH), ())
    setups = {name: Setup(_PLAN.with_changes(method=name)) for name in ("full", "linear", "lora")}
    setups |= {name: Setup(_PLAN, inside=region) for name, region in _regions(opened, course, settings).items()}
    found = {
        cost.name: cost for cost in step_costs(opened.model, [course], setups, steps=2 if settings.small else _STEPS)
    }
    full, linear, talos = (found[name] for name in ("full", "linear", "talos"))
    seconds = ", ".join(f"{name} {1000 * cost.step_seconds:.0f} ms" for name, cost in found.items())
    peaks = ", ".join(f"{name} {cost.peak_bytes / MEGABYTE:.0f} MB" for name, cost in found.items())
    states = ", ".join(f"{name} {cost.optimizer_bytes / MEGABYTE:.1f} MB" for name, cost in found.items())
    return Measured(
        {
            "step": Figure(talos.step_seconds / full.step_seconds, seconds),
            "peak": Figure(talos.peak_bytes / full.peak_bytes, peaks),
            "linear_step": Figure(linear.step_seconds / talos.step_seconds, f"optimizer state: {states}"),
            "linear_peak": Figure(linear.peak_bytes / talos.peak_bytes, ""),
        },
        {name: _facts(cost) for name, cost in found.items()},
    )


def _regions(opened: TaskModel, course: Course, settings: Settings) -> dict[str, Region]:
    base = tensors_of(opened.model)
    chosen = random_region(base, density=DENSITY).region
    rounds = 1 if settings.small else 4
    quiet = least_sensitive(opened.model, course.readout, course.train, rounds=rounds).region
    model = copy.deepcopy(opened.model)
    plan = _PLAN.with_changes(steps=3)
    train(Training(model, [course], plan, prepare(model, plan)))
    moved = most_moved(base, tensors_of(model), chosen.scope, count_of(chosen.scope, density=DENSITY))
    return {"random": chosen, "lota": moved, "talos": quiet}


def _facts(cost: Cost) -> dict[str, float]:
    return {
        "trained": cost.trained,
        "step_seconds": cost.step_seconds,
        "optimizer_bytes": cost.optimizer_bytes,
        "peak_bytes": cost.peak_bytes,
    }


if __name__ == "__main__":
    command("training_cost", measure)
