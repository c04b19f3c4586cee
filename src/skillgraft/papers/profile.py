"""How large a reproduction is: the model, the rows, the steps. One frozen value that every recipe reads.

`paper` is P1's own scale; `cpu` fits a small encoder on two cores, `cpu-100m` one of P1's size; `smoke` shows in seconds that a
recipe runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from skillgraft.errors import InputError, did_you_mean
from skillgraft.opening.runtime import MixedPrecision
from skillgraft.papers.steps import task_of
from skillgraft.training.plan import P1, TrainingPlan, p1_steps
from skillgraft.training.plan import recipe as training_recipe


@dataclass(frozen=True)
class Profile:
    """`tasks`, `shots`, `seeds`, `ood`, `controls` and `methods` replace a recipe's own where they are given.

    `few` and `many` are what stands for P1's 64 and 4096 examples per class, `together` for the 4096 of each of several tasks.
    `region_lr` has step sizes of masks, other than P1's, by the optimizer that tuned the model (multi-task regions, figure 5).
    `epochs` and `draws` go by shots: up to so many shots, so many epochs, and so many draws of training rows (seeds). P2 trains
    on `rows` in natural proportion (None: all that do not validate) by the plan "p2", and looks at `validation_rows` validation
    rows for every scale. A run looks at its validation rows `looks` times and keeps the best of them (P1's authors do). Its
    plans and searches have the profile's `mixed_precision`.
    """

    base: str
    name: str = "cpu"
    tasks: tuple[str, ...] = ()
    shots: tuple[int, ...] = ()
    seeds: tuple[int, ...] = ()
    ood: tuple[str, ...] = ()
    controls: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    readout: str = "auto"
    few: int = 64
    many: int = 4096
    together: int = 4096
    max_length: int | None = 64
    test_rows: int | None = 1000
    plans: Mapping[str, TrainingPlan] = field(default_factory=dict)
    epochs: Mapping[int, float] = field(default_factory=dict)
    draws: Mapping[int, int] = field(default_factory=dict)
    most_steps: int | None = None
    region_steps: int = 40
    region_rows: int = 256
    region_lr: Mapping[str, float] = field(default_factory=dict)
    rows: int | None = 1536
    validation_rows: int = 200
    looks: int = 15
    mixed_precision: MixedPrecision = "no"

    def tasks_or(self, *own: str) -> tuple[str, ...]:
        """The tasks that were asked for, or the recipe's own; results go by their names, so these must differ."""
        chosen = self.tasks or own
        names = [task_of(task).name for task in chosen]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InputError(f"two tasks are called {twice[0]!r}; call one of them something else")
        return chosen

    def shots_or(self, *own: str) -> tuple[int, ...]:
        """The shots that were asked for, or the recipe's own, which it calls "few", "many" and "together"."""
        return self.shots or tuple(dict.fromkeys(int(getattr(self, each)) for each in own))

    def methods_or(self, *own: str, known: Iterable[str] = ()) -> tuple[str, ...]:
        """The methods that were asked for, of those that a recipe knows, or its own."""
        every = tuple(known) or own
        for name in self.methods:
            if name not in every:
                raise InputError(f"unknown method {name!r}; {did_you_mean(name, every)}")
        return self.methods or own

    def seeds_at(self, shots: int, *, least: int = 1) -> tuple[int, ...]:
        """The seeds that were asked for, or as many as are drawn for so many shots."""
        return self.seeds or tuple(range(max(least, _by_shots(self.draws, shots, 1))))

    def plan(self, optimizer: str, task: str, shots: int, *, seed: int, **changes: Any) -> TrainingPlan:
        """The plan of a run: the optimizer's ("inside": SGD in a region), as long as the profile says for so many shots."""
        if optimizer not in self.plans:
            raise InputError(
                f"profile {self.name!r} has no optimizer {optimizer!r}; {did_you_mean(optimizer, self.plans)}"
            )
        plan = self.plans[optimizer]
        steps = self._steps(task, shots, plan.batch_size)
        best = {"validate_every": max(1, steps // self.looks), "keep": "best"}
        own = {"steps": steps, "seed": seed, "mixed_precision": self.mixed_precision, **best}
        return plan.with_changes(**{**own, **changes})

    def _steps(self, task: str, shots: int, batch_size: int) -> int:
        labels = max(1, len(task_of(task).labels))
        if not self.epochs:
            return p1_steps(labels, shots)
        epochs = _by_shots(self.epochs, shots, 1)
        return int(min(max(1, round(epochs * labels * shots / batch_size)), self.most_steps or 10**9))

    @property
    def words(self) -> str:
        """The profile in a line, as every result names it."""
        tune = "P1's number of steps" if not self.epochs else f"{_listed(self.epochs)} epochs at most"
        tune += f" and {self.most_steps} steps at most" if self.most_steps else ""
        sizes = f"rows of {self.max_length or 'their full'} tokens, {self.test_rows or 'all'} test rows"
        return f"Profile {self.name}: {sizes}, {tune}, regions in {self.region_steps} steps of {self.region_rows} rows."


def _by_shots(numbers: Mapping[int, Any], shots: int, default: Any) -> Any:
    """The number of the smallest limit that holds so many shots; beyond all limits that of the largest."""
    limits = sorted(numbers)
    fitting = [limit for limit in limits if shots <= limit] or limits[-1:]
    return numbers[fitting[0]] if fitting else default


def _listed(numbers: Mapping[int, float]) -> str:
    return " or ".join(f"{number:g}" for number in dict.fromkeys(numbers.values()))


_P1 = TrainingPlan(lr=0.02, batch_size=16, clip_norm=1.0, stop_at=0.99)
_CPU = {
    "sgd": _P1,
    "adamw": _P1.with_changes(optimizer="adamw", lr=5e-5, weight_decay=0.0),
    "inside": _P1.with_changes(lr=0.1),  # sst2 in a region of 1e-4: 84.8 % on validation rows, 81.3 % with 0.5
    "p2": TrainingPlan(optimizer="adamw", lr=5e-5, weight_decay=0.0, batch_size=16, steps=250),
}
PROFILES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "cpu": {"plans": _CPU, "many": 512, "together": 256, "epochs": {64: 30, 4096: 15}, "draws": {64: 2, 4096: 1},
                "most_steps": 960,
                "region_lr": {"adamw": 1e8}},  # AdamW spreads its changes: P1's 1e7 leaves regions of 0 to 493 entries
        "cpu-100m": {"plans": {**_CPU, "sgd": _P1.with_changes(dropout=False, batch_size=8),
                               "p2": _CPU["p2"].with_changes(mixed_precision="bf16")}, "many": 512, "together": 256,
                     "epochs": {64: 30, 4096: 15}, "draws": {4096: 2}, "mixed_precision": "bf16"},
        "paper": {
            "plans": {
                "sgd": P1, "inside": P1,
                "adamw": training_recipe("p1-adamw").plan,
                "p2": training_recipe("p2-vision").plan,
            },
            "rows": None,
            "max_length": None, "test_rows": None, "region_steps": 100, "region_rows": 1024, "draws": {4096: 5},
        },
        "smoke": {
            "plans": {name: plan.with_changes(stop_at=None, batch_size=4, steps=3) for name, plan in _CPU.items()},
            "rows": 16, "validation_rows": 12,
            "few": 2, "many": 4, "together": 4, "epochs": {4096: 1}, "most_steps": 3, "max_length": 16, "test_rows": 24,
            "region_steps": 2, "region_rows": 8,
        },
    }
)  # fmt: skip


def profile(name: str, *, base: str, **changes: Any) -> Profile:
    """A named profile for a model; empty changes leave it as it is."""
    if name not in PROFILES:
        raise InputError(f"unknown profile {name!r}; {did_you_mean(name, PROFILES)}")
    given = {key: value for key, value in changes.items() if value not in (None, ())}
    return replace(Profile(base, name, **PROFILES[name]), **given)
