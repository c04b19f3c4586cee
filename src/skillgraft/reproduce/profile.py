"""How large a reproduction is: the model, the rows, the steps. One frozen value that every recipe reads.

`paper` is P1's own scale; `cpu` fits a small encoder on two cores; `smoke` shows in seconds that a recipe runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from skillgraft.errors import InputError, did_you_mean
from skillgraft.tasks import load_task
from skillgraft.training.plan import Plan, p1_steps


@dataclass(frozen=True)
class Profile:
    """`tasks`, `shots` and `seeds` replace a recipe's own where they are given."""

    base: str
    name: str = "cpu"
    tasks: tuple[str, ...] = ()
    shots: tuple[int, ...] = ()
    seeds: tuple[int, ...] = ()
    readout: str = "auto"
    max_length: int | None = 64
    test_rows: int | None = 1000
    plans: Mapping[str, Plan] = field(default_factory=dict)
    epochs: Mapping[int, float] = field(default_factory=dict)  # up to so many shots: so many epochs
    most_steps: int | None = None
    region_steps: int = 40
    region_rows: int = 256

    def plan(self, optimizer: str, task: str, shots: int, *, seed: int, **changes: Any) -> Plan:
        """The plan of a run: the optimizer's, as long as the profile says for so many shots."""
        if optimizer not in self.plans:
            raise InputError(
                f"profile {self.name!r} has no optimizer {optimizer!r}; {did_you_mean(optimizer, self.plans)}"
            )
        plan = self.plans[optimizer]
        return plan.with_changes(steps=self._steps(task, shots, plan.batch_size), seed=seed, **changes)

    def _steps(self, task: str, shots: int, batch_size: int) -> int:
        labels = max(1, len(load_task(task).labels))
        if not self.epochs:
            return p1_steps(labels, shots)
        epochs = next((many for most, many in sorted(self.epochs.items()) if shots <= most), min(self.epochs.values()))
        return min(max(1, round(epochs * labels * shots / batch_size)), self.most_steps or 10**9)


_CPU = {
    "sgd": Plan(lr=0.02, batch_size=16, stop_at=0.99),
    "adamw": Plan(optimizer="adamw", lr=5e-5, weight_decay=0.0, batch_size=16, stop_at=0.99),
}
PROFILES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "cpu": {"plans": _CPU, "epochs": {64: 30, 4096: 15}, "max_length": 64, "test_rows": 1000},
        "paper": {
            "plans": {"sgd": Plan(), "adamw": Plan(optimizer="adamw", lr=1e-5, weight_decay=0.0)},
            "max_length": None, "test_rows": None, "region_steps": 100, "region_rows": 1024,
        },
        "smoke": {
            "plans": {name: plan.with_changes(stop_at=None, batch_size=4) for name, plan in _CPU.items()},
            "epochs": {10**6: 1}, "most_steps": 3, "max_length": 16, "test_rows": 24, "region_steps": 2,
            "region_rows": 8, "shots": (4,), "seeds": (0,),
        },
    }
)  # fmt: skip


def profile(name: str, *, base: str, **changes: Any) -> Profile:
    """A named profile for a model; empty changes leave it as it is."""
    if name not in PROFILES:
        raise InputError(f"unknown profile {name!r}; {did_you_mean(name, PROFILES)}")
    given = {key: value for key, value in changes.items() if value not in (None, ())}
    return replace(Profile(base, name, **PROFILES[name]), **given)
