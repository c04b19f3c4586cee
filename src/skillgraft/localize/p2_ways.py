"""P2's training methods side by side: full, linearised, LoRA, and inside a random, a LoTA or a TaLoS region.

ways = p2_ways("MiniLM", "sst2", plan=Plan(optimizer="adamw", lr=5e-5, batch_size=16), data=Rows(rows=256))
training_costs("MiniLM", "sst2", ways)
"""

from __future__ import annotations

from pathlib import Path

from skillgraft.localize.from_base import localize_base
from skillgraft.localize.lota import lota_region
from skillgraft.localize.sensitivity import DENSITY
from skillgraft.localize.workplace import Rows
from skillgraft.tasks import Task
from skillgraft.training.costs import Way
from skillgraft.training.plan import Plan


def p2_ways(
    base: str | Path,
    task: str | Path | Task,
    *,
    plan: Plan,
    density: float = DENSITY,
    scope: str = "layers",
    first: str | Path | None = None,
    data: Rows = Rows(),
) -> dict[str, Way]:
    """Every method with the same plan, and regions of the same density. LoTA is there if a `first` fine-tune is.

    TaLoS's region is found on the training rows of `data`; its seed draws the random one.
    """
    regions = {
        "random": localize_base(base, name="random-region", density=density, scope=scope, data=data)[0].region,
        "talos": localize_base(base, task, name="lowest-fisher", density=density, scope=scope, data=data)[0].region,
    }
    if first is not None:
        regions["lota"] = lota_region(base, first, density=density, scope=scope)
    whole = {name: Way(plan.with_changes(method=name)) for name in ("full", "linear", "lora")}
    return whole | {name: Way(plan, only=region) for name, region in regions.items()}
