"""Localize a skill in any torch model, with any loss on any batches: no task, no folder, no readout.

    from skillgraft.localize import localize

    graft = localize(base, tuned, batches, loss=lambda model, batch: model(**batch).loss, budget=1e-4)

The base model is given back as it was, bit for bit. Refused: batches that can be gone through only once, a loss that is not
one finite number, tuned numbers of other shapes or formats than the base's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from skillgraft.checkpoint import fingerprint
from skillgraft.errors import InputError
from skillgraft.graft import Graft
from skillgraft.live import grafted
from skillgraft.localize.amplifying import best_attempt, factors_of
from skillgraft.localize.how_many import HowMany
from skillgraft.localize.live_pair import LivePair, State
from skillgraft.localize.methods import SEEDED, STEP_ROWS
from skillgraft.localize.methods import method as method_named
from skillgraft.localize.problem import Loss, Problem, Reference, Start, Step, starting_region
from skillgraft.region import Region, Scope
from skillgraft.training.processes import Processes
from skillgraft.training.snapshot import Snapshot
from skillgraft.versions import versions


def localize(
    base: nn.Module | State,
    tuned: nn.Module | State | str | Path,
    batches: Iterable[Any],
    *,
    loss: Loss,
    score: Callable[[nn.Module], float] | None = None,
    budget: float | None = None,
    keep: float | None = None,
    method: str = "learned",
    scope: str = "layers",
    start: Start = 1e-5,
    reference: Reference = "base",
    amplify: float | str = 1.0,
    batches_per_step: int | None = None,
    seed: int = 0,
    resume: str | Path | None = None,
    snapshot_seconds: float = 60.0,
    **options: Any,
) -> Graft:
    """The graft of the region in which `tuned` keeps what `loss` measures (the learned region: P1 §2.3).

    `loss(model, batch)` is the mean loss of a batch. `score(model)`, higher being better, compares the steps of a search and is
    what `keep` keeps. A step takes all batches ("budgeted": one), or the next `batches_per_step`, each counting the same.
    `budget`, `keep`, `start` (also a Region), `scope`, `amplify` ("auto" needs a score) and `options` are those of
    `localize_skill`. One of base and tuned may be a state dict, tuned also a model folder. In a torch process group each
    process takes its share of a step's batches, which must come in one order everywhere. Killed and called again with the
    same arguments, a search goes on from the file `resume`.
    """
    how_many, search = HowMany(budget, keep), method_named(method, options)
    if batches_per_step is None and method in STEP_ROWS:
        batches_per_step = 1
    if keep is not None and score is None:
        raise InputError("a share to keep is a share of a score: give score=, a function of the model")
    factors = factors_of(amplify, reference=reference)
    if len(factors) > 1 and score is None:
        raise InputError(f"amplify={amplify!r} compares scores: give score=, a function of the model, or a number")
    pair, processes = LivePair.of(base, tuned), Processes.here()
    settings = {"seed": seed, **options} if method in SEEDED else dict(options)
    decisive: dict[str, Any] = {
        "scope": scope,
        "start": str(start),
        "reference": reference,
        "batches_per_step": batches_per_step,
    }
    decisive |= {key: value for key, value in settings.items() if not callable(value)}
    with torch.random.fork_rng(), grafted(pair.model, pair.cut(Region(Scope.of(scope, {}), {}))):
        steps = _Steps(batches, batches_per_step, seed, processes)
        problem = Problem.between(
            pair.model, pair.after, steps=steps, loss=loss, scope=scope, reference=reference, processes=processes
        )
        begin = starting_region(start, pair.before, pair.after, problem.scope)

        def attempt(factor: float) -> _Attempt:
            judge = _Judge(problem.amplified(factor), pair, score)
            if method == "learned":
                about = {**decisive, "factor": factor, "start": begin.digest, "processes": processes.count}
                snapshot = _snapshot(_resume_file(resume, factor), pair, about)
                settings.update(snapshot=snapshot, snapshot_seconds=snapshot_seconds)
                compare = score is not None and (how_many.is_own or bool(options.get("patience")))
                settings["score"] = judge.now if compare else None
            found = search(judge.problem, begin, most=how_many.most(problem.scope), **settings)
            region = how_many.region(found, problem.scope, score=judge.score, tuned=judge.tuned_score)
            return _Attempt(factor, judge, region, found.facts)

        best = best_attempt(factors, attempt, lambda tried: how_many.merit(tried.region, tried.judge.score))
    for file in [_resume_file(resume, factor) for factor in factors] if processes.is_main else []:
        if file is not None:
            file.unlink(missing_ok=True)
    decisive |= {"amplify": best.factor} if factors != (1.0,) else {}
    return (best.factor * pair.cut(best.region)).with_info(
        method=method,
        recipe={"budget": budget, "keep": keep, **decisive, **({"search": best.facts} if best.facts else {})},
        outside_scope=pair.outside(problem.scope) or None,
        versions=versions(),
    )


@dataclass(frozen=True, eq=False)
class _Steps:
    """The batches of each step: a pure function of the step wherever the batches' order is one of torch's seed."""

    batches: Iterable[Any]
    per_step: int | None
    seed: int
    processes: Processes

    def __post_init__(self) -> None:
        if isinstance(self.batches, Iterator) or not isinstance(self.batches, Iterable):
            raise InputError(
                f"batches are gone through at every step, and a {type(self.batches).__name__} can be only once: "
                "give a list of batches or a DataLoader"
            )
        if self.per_step is not None and self.per_step < 1:
            raise InputError(f"batches_per_step must be 1 or more, found {self.per_step}")

    def __call__(self, step: int) -> Step:
        size = min(self.per_step or self.count, self.count)
        epoch, place = divmod(step, -(-self.count // size))
        first, last = place * size, min(place * size + size, self.count)
        torch.manual_seed(int(np.random.SeedSequence((self.seed, epoch)).generate_state(1)[0]))
        mine = islice(self.batches, first + self.processes.index, last, self.processes.count)
        return ((batch, 1.0 / (last - first)) for batch in mine)

    @cached_property
    def count(self) -> int:
        try:
            count = len(self.batches) if isinstance(self.batches, Sized) else sum(1 for _ in self.batches)
        except TypeError:  # a DataLoader over a stream has a length that it does not tell
            count = sum(1 for _ in self.batches)
        if count == 0:
            raise InputError("there are no batches to learn from; expected at least one")
        return count


@dataclass(frozen=True, eq=False)
class _Judge:
    """The caller's score of the model as it stands, of a region, and of all of tuned."""

    problem: Problem
    pair: LivePair
    given: Callable[[nn.Module], float] | None

    @torch.no_grad()
    def now(self) -> float:
        assert self.given is not None
        return float(self.given(self.problem.model))

    def score(self, region: Region) -> float:
        with self.problem.borrowed():
            self.problem.put_on(region)
            return self.now()

    def tuned_score(self) -> float:
        with self.problem.all_of(self.pair.after):
            return self.now()


@dataclass(frozen=True, eq=False)
class _Attempt:
    """What a search with a multiple of tuned's change found."""

    factor: float
    judge: _Judge
    region: Region
    facts: Mapping[str, Any]


def _resume_file(resume: str | Path | None, factor: float) -> Path | None:
    """Where a search with this factor is kept: the file that was named, and others beside it."""
    if resume is None or factor == 1.0:
        return None if resume is None else Path(resume)
    return Path(resume).with_name(f"{Path(resume).name}.x{factor:g}")


def _snapshot(resume: Path | None, pair: LivePair, settings: dict[str, Any]) -> Snapshot | None:
    if resume is None:
        return None
    return Snapshot.at(resume, {**settings, "base": pair.fingerprint, "tuned": fingerprint(pair.after)})
