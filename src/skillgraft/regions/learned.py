"""The learned region (P1 §2.3): gradient descent on a soft mask over the entries of a finished fine-tune.

    γ = γ_base ⊙ (1 − σ(S)) + (1 − γ_base) ⊙ σ(S)                              (P1 eq. 4)
    minimise over S the task loss at reference + γ ⊙ (tuned − reference)         (P1 eq. 3)

By the chain rule ∂L/∂S = ∂L/∂θ ⊙ (tuned − reference) ⊙ (1 − 2γ_base) ⊙ σ′(S): one ordinary backward pass at the blended
weights gives all of it, so a step costs a step of training. P1 descends with a learning rate of 1e7, which fits RoBERTa; here it
is found from the first step's slopes, so that the mask reaches the size that is asked for on any model.

Kept per entry of the scope: the weight, its gradient and S; base's and tuned's own numbers are read where they lie, in mapped
files if they were loaded from such. With `candidates` the mask lives on the share of the scope that moved most, and γ is 0
elsewhere: then S, delta and slope are kept for these alone, and gradients are dropped as they are made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from skillgraft.errors import InputError, RunError
from skillgraft.live.grafted import as_numpy
from skillgraft.opening.processes import Processes
from skillgraft.opening.runtime import Runtime
from skillgraft.regions.candidates import Candidates, check_candidates, most_moved_of
from skillgraft.regions.problem import Problem, Touched
from skillgraft.regions.ranking import Array, Ranking
from skillgraft.training.snapshot import Saving, Snapshot
from skillgraft.values.region import Region, Scope

Look = tuple[int, int, float]  # step, entries of the rounded region, its score


Init = Literal["constant", "uniform"]
START = -9.5  # σ(−9.5) ≈ 7.5e-5: nearly nothing is chosen at the start
AUTO = "auto"
FIRST_MOVE = 0.25  # by which S of the last entry that is asked for moves in the first step
P1_DENSITY = 1e-4  # of the region that P1's search grows to


@dataclass(frozen=True)
class Learned:
    """The outcome: the soft mask's numbers, and for each looked-at step the score of its rounded region."""

    soft: SoftMask | CandidateMask
    region: Region
    losses: tuple[float, ...]
    looks: tuple[Look, ...]
    lr: float


class SoftMask:
    """S and γ_base over a scope, and the blended weights they stand for."""

    def __init__(self, problem: Problem, start: Region, *, init: Init = "constant", seed: int = 0) -> None:
        if init not in get_args(Init):
            raise InputError(f"a mask starts {' or '.join(get_args(Init))}, found {init!r}")
        self.problem, self.start, self.init, self.seed = problem, start, init, seed
        self.flipped = {name: problem.indices(name, at) for name, at in start.sites.items()}
        self.s = {name: self.initial(name) for name in problem.slots}

    def initial(self, name: str) -> Tensor:
        """S of one parameter at the start. Drawn anew whenever it is asked for, so that it need not be kept."""
        numbers = self.problem.before[name]
        if self.init == "constant":
            return torch.full(numbers.shape, START, dtype=torch.float32, device=numbers.device)
        slot = self.problem.slots[name]
        # The authors' start, U[0, 1] − 10; its noise decides many entries at larger budgets.
        index = list(self.problem.slots).index(name)
        seed = int(np.random.SeedSequence((self.seed, index)).generate_state(1)[0])
        drawn = torch.rand(slot.numel, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
        return drawn.sub_(10.0)[slice(*slot.held)].to(numbers.device)

    def gamma(self, name: str) -> Tensor:
        """γ of one parameter (eq. 4)."""
        gamma = torch.sigmoid(self.s[name])
        at = self.flipped.get(name)
        if at is not None:
            gamma[at] = 1.0 - gamma[at]
        return gamma

    @contextmanager
    def borrowed(self) -> Iterator[None]:
        """The model while its numbers are the mask's."""
        with self.problem.borrowed():
            yield

    def backward(self, step: int) -> float:
        """Gradients of a step's loss; returns that loss."""
        return self.problem.backward(step)

    def put_on(self, region: Region) -> None:
        """The model that a region's graft makes."""
        self.problem.put_on(region)

    @torch.no_grad()
    def blend(self) -> None:
        """Write reference + γ ⊙ delta into the model."""
        for name, s in self.s.items():
            for low, high in self.problem.blocks(name):
                reference, delta = self.problem.numbers(name, low, high)
                gamma = torch.sigmoid(s[low:high]).to(delta.dtype)
                self.problem.write(name, torch.addcmul(reference, gamma, delta), low, high)
            at = self.flipped.get(name)
            if at is not None:
                reference, delta = self.problem.delta_at(name, at)
                flat = self.problem.slots[name].flat
                flat[at] = (reference + (1.0 - torch.sigmoid(s[at])) * delta).to(flat.dtype)

    def rate(self, entries: int) -> float:
        """The learning rate at which the first step moves S of the entry with the `entries`-th steepest slope by `FIRST_MOVE`."""
        steepest = torch.empty(0)
        for name in self.s:
            gradient = self.problem.gradient(name)
            if gradient is not None:
                slopes = (gradient.to(torch.float32) * self.problem.delta(name)).abs_()
                steepest = torch.cat([steepest.to(slopes), slopes.topk(min(entries, len(slopes))).values])
                steepest = steepest.topk(min(entries, len(steepest))).values
        return _rate(self.problem.processes.gathered(steepest), entries)

    @torch.no_grad()
    def descend(self, *, lr: float, l1: float = 0.0) -> None:
        """One step of gradient descent on S from the gradients that the model's parameters hold."""
        for name, whole in self.s.items():
            gradient = self.problem.gradient(name)
            if gradient is None:
                continue
            at = self.flipped.get(name)
            if at is not None:
                gradient[at] *= -1.0
            for low, high in self.problem.blocks(name):
                s, delta = whole[low:high], self.problem.numbers(name, low, high)[1]
                slope = delta.mul_(gradient[low:high])
                if l1:
                    slope.add_(l1)  # ∂ Σσ(S) / ∂σ(S)
                # slope ⊙ σ(S) ⊙ (1 − σ(S)) in one pass over memory.
                s.sub_(torch.ops.aten.sigmoid_backward(slope, torch.sigmoid(s).to(slope.dtype)), alpha=lr)
        for parameter in self.problem.parameters:
            parameter.grad = None

    def rounded(self) -> Region:
        """γ > ½: S above 0, or below it in γ_base."""
        return self.problem.region({name: self._chosen(name) for name in self.s})

    def _chosen(self, name: str) -> Tensor:
        s, at = self.s[name], self.flipped.get(name)
        chosen = s > 0
        if at is not None:
            chosen[at] = s[at] < 0
        return torch.nonzero(chosen).view(-1)

    def ranking(self, *, most: int) -> Ranking:
        """All entries, best first: γ_base's survivors, then by growth of γ since the start, then by |delta|."""
        return self.problem.ranking(self._growth, most=most)

    def _growth(self, name: str) -> Array:
        gamma = self.gamma(name)
        growth = gamma - torch.sigmoid(self.initial(name))
        at = self.flipped.get(name)
        if at is not None:
            alive = gamma[at] > 0.5
            # Survivors stand above every growth (which is below 1); the others grew less than nothing.
            growth[at] = torch.where(alive, 2.0 + gamma[at], gamma[at] - 1.0)
        return as_numpy(growth)


def _rate(steepest: Tensor, entries: int) -> float:
    steepest = steepest.topk(min(entries, len(steepest))).values
    last = float(steepest.min()) if len(steepest) else 0.0
    if not last > 0:
        raise InputError(
            f"fewer than {entries:,} entries have a slope at the first step: ask for fewer, or give a learning rate (lr=1e7)"
        )
    soft = torch.sigmoid(torch.tensor(START, dtype=torch.float64))
    return FIRST_MOVE / (last * float(soft * (1 - soft)))


class CandidateMask:
    """S over the entries that moved most, and those of γ_base; everywhere else γ is 0. Otherwise what `SoftMask` is."""

    def __init__(self, problem: Problem, start: Region, share: float, *, init: Init = "constant") -> None:
        if init != "constant":
            raise InputError("among candidates a mask starts constant: leave out init, or candidates")
        moved = most_moved_of(problem, max(1, round(share * problem.scope.size)))
        self.problem, self.among = problem, Candidates(problem, moved | start)
        self.among.values.fill_(START)
        self.s = self.among.by_name(self.among.values)
        chosen = [torch.isin(at, _started(problem, n, start)) for n, at in self.among.at.items()]
        self.flipped = torch.cat(chosen)
        self._touched: Touched | None = None

    @contextmanager
    def borrowed(self) -> Iterator[None]:
        with self.problem.among(self.among.at) as self._touched:
            try:
                yield
            finally:
                self._touched.take_off()
        self._touched = None

    def gamma(self) -> Tensor:
        """γ of the candidates (eq. 4)."""
        soft = torch.sigmoid(self.among.values)
        return torch.where(self.flipped, 1.0 - soft, soft)

    @torch.no_grad()
    def blend(self) -> None:
        assert self._touched is not None
        deltas, gammas = self.among.by_name(self.among.delta), self.among.by_name(self.gamma())
        for name, at in self.among.at.items():
            reference = self._touched.reference(name, at).to(deltas[name].dtype)
            self._touched.write(name, torch.addcmul(reference, gammas[name].to(reference), deltas[name]))

    def backward(self, step: int) -> float:
        return self.among.backward(step)

    def put_on(self, region: Region) -> None:
        assert self._touched is not None
        self._touched.put_on({name: self.problem.indices(name, at) for name, at in region.sites.items()})

    def rate(self, entries: int) -> float:
        slopes = self.among.slope.abs()
        return _rate(self.problem.processes.gathered(slopes.topk(min(entries, len(slopes))).values), entries)

    @torch.no_grad()
    def descend(self, *, lr: float, l1: float = 0.0) -> None:
        slope = torch.where(self.flipped, self.among.slope, -self.among.slope)
        if l1:
            slope.add_(l1)
        soft = torch.sigmoid(self.among.values).to(slope.dtype)
        self.among.values.sub_(torch.ops.aten.sigmoid_backward(slope, soft), alpha=lr)

    def rounded(self) -> Region:
        return self.among.region(torch.where(self.flipped, self.among.values < 0, self.among.values > 0))

    def ranking(self, *, most: int) -> Ranking:
        gamma = self.gamma()
        growth = gamma - torch.sigmoid(torch.full_like(gamma, START))
        kept = torch.where(gamma > 0.5, 2.0 + gamma, gamma - 1.0)
        growths = self.among.by_name(torch.where(self.flipped, kept, growth))
        scores = partial(self.among.scores, values=growths)
        return self.problem.ranking(scores, most=most)


def _started(problem: Problem, name: str, start: Region) -> Tensor:
    """Which entries of one tensor γ_base has."""
    return problem.indices(name, start.sites.get(name, np.zeros(0, np.int64)))


@dataclass(frozen=True, kw_only=True)
class MaskPlan:
    """How a mask is learned. `lr` "auto" is found for a region of `entries`; P1's own is 1e7.

    Steps are compared every `look_every` steps and at the end; `patience` stops after so many looks without a better one.
    `candidates` is the share of the scope that is searched, all of it by default. `seed` draws a `uniform` start.
    """

    steps: int = 100
    lr: float | str = AUTO
    entries: int | None = None
    l1: float = 0.0
    init: Init = "constant"
    seed: int = 0
    candidates: float | None = None
    look_every: int = 4
    patience: int | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "look_every", "patience"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise InputError(f"{name} must be 1 or more, found {count}")
        if self.lr != AUTO and (isinstance(self.lr, str) or not (self.lr > 0 and math.isfinite(self.lr))):
            raise InputError(f"the mask's learning rate must be a number above 0, or {AUTO!r}; found {self.lr}")
        if not (self.l1 >= 0 and math.isfinite(self.l1)):
            raise InputError(f"the strength of the mask's L1 term must be a number of at least 0, found {self.l1}")
        if self.candidates is not None:
            check_candidates(self.candidates)

    def mask(self, problem: Problem, start: Region) -> SoftMask | CandidateMask:
        """The mask before the first step."""
        if self.candidates is not None:
            return CandidateMask(problem, start, self.candidates, init=self.init)
        return SoftMask(problem.resident(), start, init=self.init, seed=self.seed)

    def rate(self, mask: SoftMask | CandidateMask) -> float:
        """The learning rate, by the slopes of the first step."""
        if not isinstance(self.lr, str):
            return self.lr
        return mask.rate(self.entries or max(1, round(P1_DENSITY * mask.problem.scope.size)))

    def is_due(self, step: int) -> bool:
        """Whether this step is compared with others."""
        return step % self.look_every == 0 or step == self.steps


@dataclass
class MaskProgress:
    """The losses of the steps so far, the looks, the region of the best one, and the learning rate."""

    losses: list[float] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    best: Region | None = None
    lr: float | None = None

    @property
    def step(self) -> int:
        """How many steps are done."""
        return len(self.losses)

    def look(self, region: Region, score: float) -> None:
        """Note the score of this step's region; the first of the best ones is kept."""
        if not math.isfinite(score):
            raise RunError(f"the score is {score} at step {self.step}: regions can only be compared by finite numbers")
        if all(score > earlier for _, _, earlier in self.looks):
            self.best = region
        self.looks.append((self.step, len(region), score))

    def is_stale(self, patience: int | None) -> bool:
        """Whether so many looks brought nothing better."""
        scores = [score for _, _, score in self.looks]
        return patience is not None and bool(scores) and len(scores) - 1 - scores.index(max(scores)) >= patience

    def save(self, snapshot: Snapshot, s: Mapping[str, Tensor], processes: Processes) -> None:
        """Keep it, with S; of a split model all processes have to ask."""
        whole = {f"s/{name}": as_numpy(processes.gathered(tensor)) for name, tensor in s.items()}
        best = {f"best/{name}": at for name, at in self.best.sites.items()} if self.best is not None else {}
        if processes.is_main:
            facts = {"losses": self.losses, "looks": self.looks, "best": self.best is not None, "lr": self.lr}
            snapshot.write(whole | best, facts)

    @classmethod
    def load(
        cls, snapshot: Snapshot, s: Mapping[str, Tensor], scope: Scope, processes: Processes
    ) -> MaskProgress | None:
        """The progress of an earlier search with the same settings, S put in place; None if there is none.

        The main process's is everybody's: nodes need not share a disk to go on at one step.
        """
        found = snapshot.recall(processes, next(iter(s.values())).device)
        if found is None:
            return None
        arrays, facts = found
        sites = {}
        with torch.no_grad():
            for kind, name, numbers in arrays:
                if kind == "s":
                    s[name].copy_(processes.part_of(numbers, s[name]))
                else:
                    sites[name] = numbers.cpu().numpy()
        best = Region(scope, sites) if facts["best"] else None
        looks = [(step, entries, score) for step, entries, score in facts["looks"]]
        return cls(facts["losses"], looks, best, facts["lr"])


def learn(
    problem: Problem,
    start: Region,
    plan: MaskPlan = MaskPlan(),
    *,
    score: Callable[[], float] | None = None,
    snapshot: Snapshot | None = None,
    runtime: Runtime = Runtime(),
) -> Learned:
    """Learn a region from γ_base = `start`.

    Steps are compared on the *rounded* region by `score` (the model as it stands on training and validation rows, as the
    authors do); without `score` the last step counts. With a snapshot, a search that was killed goes on where it was and ends
    with the same bits.
    """
    if plan.patience is not None and score is None:
        raise InputError("patience counts looks at a score, and there is none: give score=, or leave out patience")
    soft, processes = plan.mask(problem, start), problem.processes
    with soft.borrowed():
        earlier = MaskProgress.load(snapshot, soft.s, problem.scope, processes) if snapshot else None
        progress = earlier or MaskProgress()
        saving = Saving(snapshot, runtime.snapshot_seconds, processes, problem.device)
        while progress.step < plan.steps and not progress.is_stale(plan.patience):
            soft.blend()
            progress.losses.append(soft.backward(progress.step))
            if progress.lr is None:
                progress.lr = plan.rate(soft)
            soft.descend(lr=progress.lr, l1=plan.l1)
            if score is not None and plan.is_due(progress.step):
                region = soft.rounded()
                soft.put_on(region)
                progress.look(region, score())
            saving.after_step(lambda kept: progress.save(kept, soft.s, processes))
            runtime.progress(progress.step, plan.steps, {"loss": progress.losses[-1]})
    region = progress.best if progress.best is not None else soft.rounded()
    return Learned(soft, region, tuple(progress.losses), tuple(progress.looks), progress.lr or 0.0)
