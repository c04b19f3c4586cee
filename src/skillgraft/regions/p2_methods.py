"""P2's training methods side by side: full, linearised, LoRA, and inside a random, a LoTA or a TaLoS region.

    methods = p2_methods("MiniLM", "sst2", plan=TrainingPlan(optimizer="adamw", lr=5e-5), data=Data(train_rows=256))
    training_costs("MiniLM", "sst2", methods)

LoTA trains again from the base, where a first fine-tune moved the most. On the command line: `extract BASE FIRST --density 0.1`,
then `finetune BASE --inside` that graft.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skillgraft.folders.extract import extract
from skillgraft.regions.choose import choose_region
from skillgraft.regions.sensitivity import DENSITY
from skillgraft.tasks.data import Data, TaskLike
from skillgraft.training.costs import Setup
from skillgraft.training.finetune import Tuned, finetune
from skillgraft.training.plan import TrainingPlan
from skillgraft.values.region import Region


def p2_methods(
    base: str | Path,
    task: TaskLike,
    *,
    plan: TrainingPlan,
    density: float = DENSITY,
    scope: str = "layers",
    first: str | Path | None = None,
    data: Data = Data(),
) -> dict[str, Setup]:
    """Every method with the same plan, and regions of the same density. LoTA is there if a `first` fine-tune is.

    TaLoS's region is found on the training rows of `data`; its seed draws the random one.
    """
    asked: dict[str, Any] = {"density": density, "scope": scope, "data": data}
    regions = {
        "random": choose_region(base, method="random-region", **asked),
        "talos": choose_region(base, task=task, method="lowest-fisher", **asked),
    }
    if first is not None:
        regions["lota"] = lota_region(base, first, density=density, scope=scope)
    whole = {name: Setup(plan.with_changes(method=name)) for name in ("full", "linear", "lora")}
    return whole | {name: Setup(plan, inside=region) for name, region in regions.items()}


def lota_region(base: str | Path, first: str | Path, *, density: float = DENSITY, scope: str = "layers") -> Region:
    """The entries that a first fine-tune (a folder or LoRA adapter) moved the most: 10 % of the scope, as in P2."""
    return extract(base, first, density=density, scope=scope).region


def lota(
    base: str | Path,
    first: str | Path,
    tasks: Sequence[TaskLike],
    *,
    density: float = DENSITY,
    scope: str = "layers",
    **training: Any,
) -> Tuned:
    """Fine-tune the base again, inside `lota_region` alone. `training` has the keywords of `finetune`.

    Law: the same as `finetune(base, tasks, inside=lota_region(base, first), **training)`.
    """
    return finetune(base, tasks, inside=lota_region(base, first, density=density, scope=scope), **training)
