"""How to train: `Plan`, a frozen value whose defaults are P1's (A.1, A.2), and the papers' settings as named recipes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, get_args

from skillgraft.errors import InputError, did_you_mean

Optimizer = Literal["sgd", "adamw"]
Schedule = Literal["constant", "linear", "cosine"]
Method = Literal["full", "bias", "lora", "houlsby", "pfeiffer", "linear"]
Keep = Literal["last", "best"]


@dataclass(frozen=True)
class Plan:
    """Everything that decides the numbers of a run, besides base, tasks and region.

    `batch_size` is the number of rows of one step over all processes; `accumulation` splits it into that many parts without
    changing the result. `l1` is the strength of P1's pull towards the base (§3.2; 0.001 there). `stop_at` ends the run
    once that accuracy is reached on the training rows, looked at once per epoch. `lora_rank` and `bottleneck` are the sizes of
    what LoRA and the adapters add (P1 tables 6 and 7 have 1, 2, 8 and 1, 2, 16, 64).
    """

    method: Method = "full"
    optimizer: Optimizer = "sgd"
    lr: float = 1e-2
    weight_decay: float = 1e-4
    momentum: float = 0.0
    batch_size: int = 8
    steps: int = 1000
    schedule: Schedule = "constant"
    warmup_steps: int = 0
    clip_norm: float | None = None
    accumulation: int = 1
    l1: float = 0.0
    lora_rank: int = 8
    bottleneck: int = 16
    dropout: bool = True
    train_embeddings: bool = False
    train_lm_head: bool = False
    mixture: Literal["equal", "proportional"] = "equal"
    stop_at: float | None = None
    validate_every: int | None = None
    keep: Keep = "last"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("lr", 0.0), ("weight_decay", 0.0), ("momentum", 0.0), ("l1", 0.0), ("warmup_steps", 0)):
            if not getattr(self, name) >= least or not math.isfinite(getattr(self, name)):
                raise InputError(f"{name} must be a number of at least {least}, found {getattr(self, name)}")
        for name in ("batch_size", "steps", "accumulation", "lora_rank", "bottleneck"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, found {getattr(self, name)}")
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise InputError(
                    f"unknown {name} {getattr(self, name)!r}; {did_you_mean(str(getattr(self, name)), known)}"
                )
        if self.keep == "best" and not self.validate_every:
            raise InputError("keep='best' needs validate_every: how often to look at the validation rows")
        if self.momentum and self.optimizer != "sgd":
            raise InputError(f"momentum is SGD's, found {self.momentum:g} with {self.optimizer}: leave out momentum")
        for name, methods in _SIZES.items():
            if getattr(self, name) != getattr(Plan, name) and self.method not in methods:
                raise InputError(f"{name} is for method {' or '.join(methods)}, found {self.method}: leave out {name}")
        if self.l1 and self.adds_parameters:
            raise InputError(
                f"l1 pulls the base's own parameters back; method {self.method} trains others: leave out l1"
            )
        if self.batch_size % self.accumulation:
            raise InputError(f"batch_size {self.batch_size} cannot be split into {self.accumulation} equal parts")

    @property
    def adds_parameters(self) -> bool:
        """Whether the method leaves the base's parameters as they are and trains ones that it adds."""
        return self.method in ("lora", "houlsby", "pfeiffer")

    def lr_at(self, step: int) -> float:
        """The learning rate of step 0, 1, …: linear warm-up, then the schedule down to 0 (or constant)."""
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        passed = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        shape = {"constant": 1.0, "linear": 1.0 - passed, "cosine": 0.5 * (1 + math.cos(math.pi * passed))}
        return self.lr * shape[self.schedule]

    def with_changes(self, **changes: Any) -> Plan:
        """The same plan with other settings; an unknown one is an error."""
        unknown = [name for name in changes if name not in self.as_dict()]
        if unknown:
            raise InputError(f"unknown setting {unknown[0]!r}; {did_you_mean(unknown[0], self.as_dict())}")
        return replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


_SIZES: Mapping[str, tuple[str, ...]] = {
    "lora_rank": ("lora",),
    "bottleneck": ("houlsby", "pfeiffer"),
}  # of what is added
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "method": get_args(Method),
    "optimizer": ("sgd", "adamw"),
    "schedule": ("constant", "linear", "cosine"),
    "mixture": ("equal", "proportional"),
    "keep": ("last", "best"),
}


def p1_steps(labels: int, shots: int) -> int:
    """P1 A.2: 16 · n · k steps, k at most 512."""
    return 16 * labels * min(shots, 512)


@dataclass(frozen=True)
class Recipe:
    """A paper's settings: a plan, and the grid of settings among which validation chooses."""

    plan: Plan
    grid: tuple[Mapping[str, Any], ...] = ({},)
    steps_by_shots: bool = False


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        # P1 A.2: every pair of batch size and learning rate, the best on validation is kept.
        "p1": Recipe(
            Plan(),
            tuple({"batch_size": size, "lr": lr} for size in (2, 4, 8) for lr in (1e-2, 5e-3, 1e-3)),
            steps_by_shots=True,
        ),
        "p1-adamw": Recipe(Plan(optimizer="adamw", lr=1e-5, weight_decay=0.0, batch_size=8), steps_by_shots=True),
        "p2-vision": Recipe(
            Plan(
                optimizer="adamw", lr=1e-5, weight_decay=0.1, batch_size=128, warmup_steps=500, schedule="cosine",
                clip_norm=1.0, steps=2000,
            )
        ),
        "p2-language": Recipe(
            Plan(optimizer="adamw", lr=1e-4, weight_decay=0.0, batch_size=1024, accumulation=16, steps=4688)
        ),
    }
)  # fmt: skip


def recipe(name: str) -> Recipe:
    """A named recipe."""
    if name not in RECIPES:
        raise InputError(f"unknown recipe {name!r}; {did_you_mean(name, RECIPES)}")
    return RECIPES[name]
