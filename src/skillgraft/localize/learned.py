"""The learned region (P1 §2.3): gradient descent on a soft mask over the entries of a finished fine-tune.

    γ = γ_base ⊙ (1 − σ(S)) + (1 − γ_base) ⊙ σ(S)                              (P1 eq. 4)
    minimise over S the task loss at reference + γ ⊙ (tuned − reference)         (P1 eq. 3)

By the chain rule ∂L/∂S = ∂L/∂θ ⊙ (tuned − reference) ⊙ (1 − 2γ_base) ⊙ σ′(S): one ordinary backward pass at the blended
weights gives all of it, so a step costs a step of training. Kept per entry of the scope: the weight, its gradient, S and the
delta; the reference is the base's own number, in its mapped file where it was loaded from one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from skillgraft.errors import InputError
from skillgraft.live import as_numpy
from skillgraft.localize.problem import Problem
from skillgraft.localize.progress import Look, Progress
from skillgraft.localize.ranking import Array, Ranking
from skillgraft.region import Indices, Region
from skillgraft.training.snapshot import Snapshot

Init = Literal["constant", "uniform"]
_BLOCK = 1 << 19  # entries
START = -9.5  # σ(−9.5) ≈ 7.5e-5: nearly nothing is chosen at the start


@dataclass(frozen=True)
class Learned:
    """The outcome: the soft mask's numbers, and for each looked-at step the score of its rounded region."""

    soft: SoftMask
    region: Region
    losses: tuple[float, ...]
    looks: tuple[Look, ...]


class SoftMask:
    """S and γ_base over a scope, and the blended weights they stand for."""

    def __init__(self, problem: Problem, start: Region, *, init: Init = "constant", seed: int = 0) -> None:
        if init not in get_args(Init):
            raise InputError(f"a mask starts {' or '.join(get_args(Init))}, found {init!r}")
        self.problem, self.start, self.init, self.seed = problem, start, init, seed
        self.flipped = {
            name: torch.from_numpy(np.array(at, np.int64)).to(problem.delta[name].device)
            for name, at in start.sites.items()
        }
        self.s = {name: self.initial(name) for name in problem.delta}

    def initial(self, name: str) -> Tensor:
        """S of one parameter at the start. Drawn anew whenever it is asked for, so that it need not be kept."""
        delta = self.problem.delta[name]
        if self.init == "constant":
            return torch.full(delta.shape, START, dtype=torch.float32, device=delta.device)
        # The authors' start, U[0, 1] − 10; its noise decides many entries at larger budgets.
        place = list(self.problem.delta).index(name)
        seed = int(np.random.SeedSequence((self.seed, place)).generate_state(1)[0])
        drawn = torch.rand(delta.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
        return drawn.sub_(10.0).to(delta.device)

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
            whole = (parameter.data, self.problem.reference[name], self.problem.delta[name], self.s[name])
            for weight, reference, delta, s in _blocks(*whole):
                torch.addcmul(reference, torch.sigmoid(s).to(delta.dtype), delta, out=weight)
            at = self.flipped.get(name)
            if at is not None:
                weight, reference, delta, s = (tensor.reshape(-1) for tensor in whole)
                weight[at] = (reference[at] + (1.0 - torch.sigmoid(s[at])) * delta[at]).to(weight.dtype)

    @torch.no_grad()
    def descend(self, *, lr: float, l1: float = 0.0) -> None:
        """One step of gradient descent on S from the gradients that the model's parameters hold."""
        for name, parameter in self.problem.parameters.items():
            if parameter.grad is None:
                continue
            at = self.flipped.get(name)
            if at is not None:
                parameter.grad.view(-1)[at] *= -1.0
            for gradient, delta, s in _blocks(parameter.grad, self.problem.delta[name], self.s[name]):
                slope = gradient.to(delta.dtype).mul_(delta)
                if l1:
                    slope.add_(l1)  # ∂ Σσ(S) / ∂σ(S)
                # slope ⊙ σ(S) ⊙ (1 − σ(S)) in one pass over memory.
                s.sub_(torch.ops.aten.sigmoid_backward(slope, torch.sigmoid(s).to(delta.dtype)), alpha=lr)
            parameter.grad = None

    def rounded(self) -> Region:
        """γ > ½: S above 0, or below it in γ_base."""
        return Region(self.problem.scope, {name: self._chosen(name) for name in self.s})

    def _chosen(self, name: str) -> Indices:
        s, at = self.s[name].view(-1), self.flipped.get(name)
        chosen = s > 0
        if at is not None:
            chosen[at] = s[at] < 0
        return np.flatnonzero(as_numpy(chosen))

    def ranking(self, *, most: int) -> Ranking:
        """All entries, best first: γ_base's survivors, then by growth of γ since the start, then by |delta|."""
        return Ranking(self.problem.scope, self._growth, self.problem.movement, most=most)

    def _growth(self, name: str) -> Array:
        gamma = self.gamma(name)
        growth = gamma - torch.sigmoid(self.initial(name))
        at = self.flipped.get(name)
        if at is not None:
            alive = gamma.view(-1)[at] > 0.5
            # Survivors stand above every growth (which is below 1); the others grew less than nothing.
            growth.view(-1)[at] = torch.where(alive, 2.0 + gamma.view(-1)[at], gamma.view(-1)[at] - 1.0)
        return as_numpy(growth)


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
    snapshot: Snapshot | None = None,
    snapshot_seconds: float = 60.0,
    on_step: Callable[[int, int, Mapping[str, float]], None] | None = None,
) -> Learned:
    """Learn a region from γ_base = `start`.

    Steps are compared on the *rounded* region by `score` (the model as it stands on training and validation rows, as the
    authors do), every `look_every` steps and at the end; without `score` the last step counts. `patience` stops after so
    many looks without a better one. With a snapshot, a search that was killed goes on where it was and ends with the same bits.
    """
    _check_counts(steps=steps, look_every=look_every, patience=patience)
    if not (lr > 0 and math.isfinite(lr)):
        raise InputError(f"the mask's learning rate must be a number above 0, found {lr}")
    if not (l1 >= 0 and math.isfinite(l1)):
        raise InputError(f"the strength of the mask's L1 term must be a number of at least 0, found {l1}")
    if patience is not None and score is None:
        raise InputError("patience counts looks at a score, and there is none: give score=, or leave out patience")
    with problem.borrowed():
        soft = SoftMask(problem, start, init=init, seed=seed)
        progress = (Progress.load(snapshot, soft.s, problem.scope) if snapshot else None) or Progress()
        saved = time.monotonic()
        while progress.step < steps and not progress.is_stale(patience):
            soft.blend()
            progress.losses.append(problem.backward(progress.step))
            soft.descend(lr=lr, l1=l1)
            if score is not None and (progress.step % look_every == 0 or progress.step == steps):
                region = soft.rounded()
                problem.put_on(region)
                progress.look(region, score())
            if snapshot and problem.processes.is_main and time.monotonic() - saved >= snapshot_seconds:
                progress.save(snapshot, soft.s)
                saved = time.monotonic()
            if on_step:
                on_step(progress.step, steps, {"loss": progress.losses[-1]})
    region = progress.best if progress.best is not None else soft.rounded()
    return Learned(soft, region, tuple(progress.losses), tuple(progress.looks))


def _blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Tensors of one shape, stretch by stretch: what is computed in between stays in a core's cache and takes no memory."""
    flat = [tensor.reshape(-1) for tensor in tensors]
    for low in range(0, len(flat[0]), _BLOCK):
        yield tuple(tensor[low : low + _BLOCK] for tensor in flat)


def _check_counts(**counts: int | None) -> None:
    for name, count in counts.items():
        if count is not None and count < 1:
            raise InputError(f"{name} must be 1 or more, found {count}")
