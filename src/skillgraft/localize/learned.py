"""The learned region (P1 §2.3): gradient descent on a soft mask over the entries of a finished fine-tune.

    γ = γ_base ⊙ (1 − σ(S)) + (1 − γ_base) ⊙ σ(S)                              (P1 eq. 4)
    minimise over S the task loss at reference + γ ⊙ (tuned − reference)         (P1 eq. 3)

By the chain rule ∂L/∂S = ∂L/∂θ ⊙ (tuned − reference) ⊙ (1 − 2γ_base) ⊙ σ′(S): one ordinary backward pass at the blended
weights gives all of it, so a step costs a step of training. Kept per entry of the scope: the weight, its gradient, S, the
reference and the delta.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from skillgraft.localize.problem import Problem
from skillgraft.localize.ranking import Ranking
from skillgraft.region import Region

Init = Literal["constant", "uniform"]
START = -9.5  # σ(−9.5) ≈ 7.5e-5: nearly nothing is chosen at the start


@dataclass(frozen=True)
class Learned:
    """The outcome: the soft mask's numbers, and for each looked-at step the score of its rounded region."""

    soft: SoftMask
    region: Region
    losses: tuple[float, ...]
    looks: tuple[tuple[int, int, float], ...]  # step, entries, score


class SoftMask:
    """S and γ_base over a scope, and the blended weights they stand for."""

    def __init__(self, problem: Problem, start: Region, *, init: Init = "constant", seed: int = 0) -> None:
        self.problem = problem
        self.start = start
        self.flipped = {name: torch.from_numpy(np.array(at, np.int64)) for name, at in start.sites.items()}
        generator = torch.Generator().manual_seed(seed)
        self.s: dict[str, Tensor] = {}
        for name, delta in problem.delta.items():
            if init == "uniform":  # the authors' start; its noise decides many entries at larger budgets
                self.s[name] = torch.rand(delta.shape, generator=generator, dtype=torch.float32).sub_(10.0)
            else:
                self.s[name] = torch.full(delta.shape, START, dtype=torch.float32)
        self.initial = {name: s.clone() for name, s in self.s.items()} if init == "uniform" else None

    def gamma(self, name: str) -> Tensor:
        """γ of one parameter (eq. 4)."""
        gamma = torch.sigmoid(self.s[name])
        at = self.flipped.get(name)
        if at is not None:
            gamma.view(-1)[at] = 1.0 - gamma.view(-1)[at]
        return gamma

    @torch.no_grad()
    def blend(self) -> None:
        """Write reference + γ ⊙ delta into the model."""
        for name, parameter in self.problem.parameters.items():
            torch.addcmul(self.problem.reference[name], self.gamma(name), self.problem.delta[name], out=parameter.data)

    @torch.no_grad()
    def descend(self, *, lr: float, l1: float = 0.0) -> None:
        """One step of gradient descent on S from the gradients that the model's parameters hold."""
        for name, parameter in self.problem.parameters.items():
            if parameter.grad is None:
                continue
            slope = parameter.grad.mul_(self.problem.delta[name])
            at = self.flipped.get(name)
            if at is not None:
                slope.view(-1)[at] *= -1.0
            if l1:
                slope.add_(l1)  # ∂ Σσ(S) / ∂σ(S)
            sigmoid = torch.sigmoid(self.s[name])
            slope.mul_(sigmoid).mul_(sigmoid.neg_().add_(1.0))
            self.s[name].sub_(slope, alpha=lr)
            parameter.grad = None

    def rounded(self) -> Region:
        """γ > ½."""
        return Region.from_masks(self.problem.scope, {name: (self.gamma(name) > 0.5).numpy() for name in self.s})

    def ranking(self, *, most: int) -> Ranking:
        """All entries, best first: γ_base's survivors, then by growth of γ since the start, then by |delta|."""
        scores, movements = {}, {}
        for name in self.s:
            gamma = self.gamma(name)
            first = torch.sigmoid(self.initial[name]) if self.initial else torch.sigmoid(torch.tensor(START))
            growth = gamma - first
            at = self.flipped.get(name)
            if at is not None:
                alive = gamma.view(-1)[at] > 0.5
                # Survivors stand above every growth (which is below 1); the others grew less than nothing.
                growth.view(-1)[at] = torch.where(alive, 2.0 + gamma.view(-1)[at], gamma.view(-1)[at] - 1.0)
            scores[name] = growth.numpy()
            movements[name] = self.problem.delta[name].abs().float().numpy()
        return Ranking(self.problem.scope, scores, movements, most=most)


def learn(
    problem: Problem,
    start: Region,
    *,
    steps: int = 100,
    lr: float = 1e7,
    l1: float = 0.0,
    init: Init = "constant",
    seed: int = 0,
    score: Callable[[], float] | None = None,
    look_every: int = 4,
    patience: int | None = None,
    on_step: Callable[[int, int, Mapping[str, float]], None] | None = None,
) -> Learned:
    """Learn a region from γ_base = `start`.

    Steps are compared on the *rounded* region by `score` (the model as it stands on training and validation rows, as the
    authors do), every `look_every` steps and at the end; without `score` the last step counts. `patience` stops after so
    many looks without a better one.
    """
    losses: list[float] = []
    looks: list[tuple[int, int, float]] = []
    best: Region | None = None
    with problem.borrowed():
        soft = SoftMask(problem, start, init=init, seed=seed)
        for step in range(steps):
            soft.blend()
            losses.append(problem.backward(step))
            soft.descend(lr=lr, l1=l1)
            if score is not None and ((step + 1) % look_every == 0 or step + 1 == steps):
                region = soft.rounded()
                problem.put_on(region)
                looks.append((step + 1, len(region), score()))
                if best is None or looks[-1][2] > max(look[2] for look in looks[:-1]):
                    best = region
                elif patience is not None and _stale(looks) >= patience:
                    break
            if on_step:
                on_step(step + 1, steps, {"loss": losses[-1]})
    return Learned(soft, best if best is not None else soft.rounded(), tuple(losses), tuple(looks))


def _stale(looks: list[tuple[int, int, float]]) -> int:
    """How many looks ago the best one was."""
    scores = [look[2] for look in looks]
    return len(scores) - 1 - scores.index(max(scores))
