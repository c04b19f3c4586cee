"""How to train: `TrainingPlan`, a frozen value whose defaults are P1's (A.1, A.2), and the papers' settings as named recipes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, get_args

from skillgraft.errors import InputError, did_you_mean
from skillgraft.opening.runtime import MixedPrecision

Optimizer = Literal["sgd", "adamw"]
Schedule = Literal["constant", "linear", "cosine"]
Method = Literal["full", "bias", "lora", "houlsby", "pfeiffer", "linear"]
Keep = Literal["last", "best"]


@dataclass(frozen=True)
class TrainingPlan:
    """Everything that decides the numbers of a run, besides base, tasks and region.

    `batch_size` is the number of rows of one step over all processes; `accumulation` splits it into that many parts without
    changing the result. `l1` is the strength of P1's pull towards the base (§3.2; 0.001 there). `pull` is one in proximal form:
    after each step every delta shrinks by pull · rate, at most to 0: entries whose gradients do not agree stay base's.
    `stop_at` ends the run once that accuracy is reached on the training rows, looked at once per epoch. `lora_rank` and
    `bottleneck` are the sizes of what LoRA and the adapters add (P1 tables 6 and 7 have 1, 2, 8 and 1, 2, 16, 64). `dropout` is
    the model's own; a linearised model trains without it in any case (`uses_dropout`). Every `checkpoint_every` steps a folder
    is written below OUT.steps. `mixed_precision` "bf16" multiplies matrices in bfloat16; "no" leaves that to `accelerate launch`.
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
    pull: float = 0.0
    lora_rank: int = 8
    bottleneck: int = 16
    dropout: bool = True
    train_embeddings: bool = False
    train_lm_head: bool = False
    mixture: Literal["equal", "proportional"] = "equal"
    stop_at: float | None = None
    validate_every: int | None = None
    keep: Keep = "last"
    checkpoint_every: int | None = None
    mixed_precision: MixedPrecision = "no"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (
            ("lr", 0.0),
            ("weight_decay", 0.0),
            ("momentum", 0.0),
            ("l1", 0.0),
            ("pull", 0.0),
            ("warmup_steps", 0),
        ):
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
            if getattr(self, name) != getattr(TrainingPlan, name) and self.method not in methods:
                raise InputError(f"{name} is for method {' or '.join(methods)}, found {self.method}: leave out {name}")
        for name in ("l1", "pull"):
            if getattr(self, name) and self.adds_parameters:
                raise InputError(
                    f"{name} pulls the base's own parameters back; method {self.method} trains others: leave out {name}"
                )
        if self.method == "lora" and self.checkpoint_every:
            raise InputError(
                "a LoRA run is merged at its end: it has no checkpoints on the way; leave out checkpoint_every"
            )
        if self.batch_size % self.accumulation:
            raise InputError(f"batch_size {self.batch_size} cannot be split into {self.accumulation} equal parts")

    @property
    def adds_parameters(self) -> bool:
        """Whether the method leaves the base's parameters as they are and trains ones that it adds."""
        return self.method in ("lora", "houlsby", "pfeiffer")

    @property
    def uses_dropout(self) -> bool:
        """Whether the model's dropout is on while it trains.

        Never where the model is linearised (P2): with dropout every step would expand another function around the base.
        """
        return self.dropout and self.method != "linear"

    def lr_at(self, step: int) -> float:
        """The learning rate of step 0, 1, …: linear warm-up, then the schedule down to 0 (or constant)."""
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        passed = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        shape = {"constant": 1.0, "linear": 1.0 - passed, "cosine": 0.5 * (1 + math.cos(math.pi * passed))}
        return self.lr * shape[self.schedule]

    def with_changes(self, **changes: Any) -> TrainingPlan:
        """The same plan with other settings; an unknown one is an error, and so is dropout for a linearised model."""
        unknown = [name for name in changes if name not in self.as_dict()]
        if unknown:
            raise InputError(f"unknown setting {unknown[0]!r}; {did_you_mean(unknown[0], self.as_dict())}")
        changed = replace(self, **changes)
        if changes.get("dropout") and not changed.uses_dropout:
            raise InputError("a linearised model trains without dropout, found dropout True: leave out dropout")
        return changed

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


# Help panel → field → what the command line says about it; choices and defaults are added. "" is the first panel.
OPTIONS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "": {
            "method": "What is trained",
            "lr": "Learning rate",
            "steps": "Optimizer steps",
            "batch_size": "Rows of one step, over all processes",
        },
        "Optimizer": {
            "optimizer": "Which one",
            "schedule": "Of the learning rate",
            "warmup_steps": "Steps of linear warm-up",
            "weight_decay": "Weight decay",
            "momentum": "Momentum of SGD",
            "clip_norm": "Clip gradients to this norm",
            "accumulation": "Parts that a step's batch is split into",
            "l1": "Strength of the L1 pull towards the base; P1 has 0.001",
            "pull": "Proximal pull: each step a delta shrinks by this times the rate (AdamW: 0.5)",
        },
        "What is trained": {
            "lora_rank": "Rank of LoRA",
            "bottleneck": "Width of houlsby and pfeiffer adapters",
            "dropout": "The model's own dropout",
            "train_embeddings": "The embeddings too (frozen in P1 A.1)",
            "train_lm_head": "The LM head too (frozen in P1 A.1)",
        },
        "The run": {
            "mixture": "Several tasks' shares of the steps",
            "stop_at": "Stop at this training accuracy",
            "validate_every": "Look at the validation rows every so many steps",
            "keep": "Which step's numbers; best is by validation",
            "checkpoint_every": "Write OUT.steps/step-N every N steps",
            "seed": "Seed of the run: order of rows, dropout, fresh heads",
            "mixed_precision": "Matrix products in bfloat16",
        },
    }
)
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
    "mixed_precision": get_args(MixedPrecision),
}


def p1_steps(labels: int, shots: int) -> int:
    """P1 A.2: 16 · n · k steps, k at most 512."""
    return 16 * labels * min(shots, 512)


@dataclass(frozen=True)
class TrainingRecipe:
    """A paper's settings: a plan, and the grid of settings among which validation chooses."""

    plan: TrainingPlan
    grid: tuple[Mapping[str, Any], ...] = ({},)
    steps_by_shots: bool = False


# The authors' code clips gradients and keeps the checkpoint that is best on validation rows, looked at every 100 steps.
P1 = TrainingPlan(clip_norm=1.0, validate_every=100, keep="best")
RECIPES: Mapping[str, TrainingRecipe] = MappingProxyType(
    {
        # P1 A.2: every pair of batch size and learning rate, the best on validation is kept.
        "p1": TrainingRecipe(
            P1,
            tuple({"batch_size": size, "lr": lr} for size in (2, 4, 8) for lr in (1e-2, 5e-3, 1e-3)),
            steps_by_shots=True,
        ),
        "p1-adamw": TrainingRecipe(P1.with_changes(optimizer="adamw", lr=1e-5, weight_decay=0.0), steps_by_shots=True),
        "p2-vision": TrainingRecipe(
            TrainingPlan(
                optimizer="adamw", lr=1e-5, weight_decay=0.1, batch_size=128, warmup_steps=500, schedule="cosine",
                clip_norm=1.0, steps=2000,
            )
        ),
        # P2's T5.
        "p2-language": TrainingRecipe(
            TrainingPlan(optimizer="adamw", lr=1e-4, weight_decay=0.0, batch_size=16, steps=75_000)
        ),
    }
)  # fmt: skip


def recipe(name: str) -> TrainingRecipe:
    """A named recipe."""
    if name not in RECIPES:
        raise InputError(f"unknown recipe {name!r}; {did_you_mean(name, RECIPES)}")
    return RECIPES[name]
