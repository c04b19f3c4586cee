"""Localize a skill in any torch model, with any loss on any batches: no task, no folder, no readout.

    graft = localize_live(base, tuned, batches, loss=lambda model, batch: model(**batch).loss, density=1e-4)

The base model is given back as it was, bit for bit. Refused: batches that can be gone through only once, a loss that is not
one finite number, tuned numbers of other shapes or formats than the base's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from skillgraft.errors import InputError, listed
from skillgraft.folders.checkpoint import Checkpoint, MemoryTensors, Tensors, content_digest
from skillgraft.live.grafted import as_numpy, fingerprint_of, grafted, parameter_names, saved_names
from skillgraft.opening.processes import Processes
from skillgraft.opening.runtime import Runtime
from skillgraft.predictions.predict import evaluating
from skillgraft.regions.methods import METHODS
from skillgraft.regions.problem import Loss, Problem, Step, holding_all, starting_region
from skillgraft.regions.search import Searching, SearchPlan, Snapshots
from skillgraft.training.loop import borrowed_random
from skillgraft.values.graft import Graft
from skillgraft.values.info import versions
from skillgraft.values.names import body_prefix, is_head
from skillgraft.values.numbers import Array, bits, same_bits
from skillgraft.values.region import Region, Scope

State = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class LivePair:
    """A model with the base's numbers, and tuned's under the same prefix-free names.

    `before` shares the model's memory where it can: it tells the base's numbers while the model holds them.
    """

    model: nn.Module
    before: MemoryTensors
    after: Tensors
    fingerprint: str

    @classmethod
    def of(cls, base: nn.Module | State, tuned: nn.Module | State | str | Path) -> LivePair:
        """Of two models, or a model and a state dict, or a model and tuned's folder."""
        model = _model(base, tuned)
        names = _names(model)
        before = MemoryTensors({name: as_numpy(tensor) for name, tensor in names.items()})
        pair = cls(model, before, _tuned(model, names, tuned), fingerprint_of(model))
        _check_same_form(pair.before, pair.after)
        return pair

    @cached_property
    def content(self) -> str:
        """Digest of the base's numbers."""
        return content_digest(self.before)

    @cached_property
    def heads(self) -> dict[str, Array]:
        """Tuned's own heads: they travel whole."""
        return {
            name: self.after.flat(name).reshape(self.after.shapes[name]).copy()
            for name in parameter_names(self.model)
            if is_head(name)
            and name in self.after.shapes
            and not same_bits(self.before.flat(name), self.after.flat(name))
        }

    def outside(self, scope: Scope) -> dict[str, int]:
        """Tensor → entries that changed though neither the scope nor a head holds them."""
        rest = [
            n for n in self.before.arrays if n in self.after.shapes and n not in scope.shapes and n not in self.heads
        ]
        changed = {name: int((bits(self.before.flat(name)) != bits(self.after.flat(name))).sum()) for name in rest}
        return {name: count for name, count in changed.items() if count}

    def cut(self, region: Region) -> Graft:
        """The graft of this region, tuned's heads with it."""
        return Graft(
            region,
            {name: self.before.flat(name)[at] for name, at in region.sites.items()},
            {name: self.after.flat(name)[at] for name, at in region.sites.items()},
            heads=self.heads,
            base_fingerprint=self.fingerprint,
        )


def _model(base: nn.Module | State, tuned: object) -> nn.Module:
    """A model that holds the base's numbers: the base itself, or a copy of tuned with them."""
    if isinstance(base, nn.Module):
        return base
    if not isinstance(tuned, nn.Module):
        raise InputError("a loss needs a model to run: give base or tuned as a torch module, found none")
    model = copy.deepcopy(tuned)
    try:
        model.load_state_dict(base)
    except RuntimeError as error:
        raise InputError(f"base's numbers do not fit the tuned model: {error}") from error
    return model


def _names(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and saved buffers under prefix-free names; a tied one once."""
    short, stored = _short_names(model), model.state_dict().keys()
    buffers = {short[name]: tensor for name, tensor in model.named_buffers() if name in stored}
    return {**parameter_names(model), **buffers}


def _short_names(model: nn.Module) -> dict[str, str]:
    """Every name by which a tensor may be called (the model's, its folder's, without prefix) → its prefix-free name."""
    saved = saved_names(model)
    prefix = body_prefix(saved[name] for name, _ in model.named_parameters())
    short = {raw: name.removeprefix(prefix) for raw, name in saved.items()}
    return {**{name: name for name in short.values()}, **{saved[raw]: name for raw, name in short.items()}, **short}


def _tuned(model: nn.Module, names: Mapping[str, Tensor], tuned: nn.Module | State | str | Path) -> Tensors:
    short = _short_names(model)
    if isinstance(tuned, str | Path):
        folder = Checkpoint.open(tuned)
        _check_known(folder.shapes.keys() - folder.twins.keys() - short.keys())
        return folder
    state = tuned.state_dict() if isinstance(tuned, nn.Module) else tuned
    _check_known(state.keys() - short.keys())
    found = {short[name]: as_numpy(tensor) for name, tensor in state.items()}
    return MemoryTensors({name: found[name] for name in names if name in found})


def _check_known(odd: set[str]) -> None:
    if odd:
        raise InputError(
            f"tuned has {len(odd)} tensors that base does not have: {listed(sorted(odd))}; "
            "give base and tuned of one architecture"
        )


def _check_same_form(before: Tensors, after: Tensors) -> None:
    for name in sorted(before.shapes.keys() & after.shapes.keys()):
        ours, theirs = (f"{list(side.shapes[name])} of {np.dtype(side.dtypes[name])}" for side in (before, after))
        if ours != theirs:
            raise InputError(
                f"{name} is {ours} in base and {theirs} in tuned; give base and tuned of one shape and format"
            )


Score = Callable[[nn.Module], float]
# Fields of a plan and of a runtime that belong to a search between folders, and what to do here instead.
OF_FOLDERS: Mapping[str, str] = {
    "batch_size": "give batches of the size you want",
    "max_rank": "localize folders: an adapter belongs to one",
    "labels": "give batches with the labels you want",
    "control_strength": "add what should stay to your own loss",
    "densities": "call localize_live for each budget",
    "curve": "call localize_live for each budget",
    "device": "move the model",
    "dtype": "convert base and tuned",
}


def localize_live(
    base: nn.Module | State,
    tuned: nn.Module | State | str | Path,
    batches: Iterable[Any],
    *,
    loss: Loss,
    score: Score | None = None,
    batches_per_step: int | None = None,
    seed: int = 0,
    resume: str | Path | None = None,
    runtime: Runtime = Runtime(),
    **asked: Any,
) -> Graft:
    """The graft of the region in which `tuned` keeps what `loss` measures (the learned region: P1 §2.3).

    `loss(model, batch)` is the mean loss of a batch. `score(model)`, higher being better, compares the steps of a search and is
    what `keep` keeps. A step takes all batches ("budgeted": one), or the next `batches_per_step`, each counting the same.
    `asked` are fields of `SearchPlan` and options of its method. One of base and tuned may be a state dict, tuned also a model
    folder. In a torch process group each process takes its share of a step's batches, which must come in one order everywhere.
    Killed and called again with the same arguments, a search goes on from the file `resume`.
    """
    runtime.check_whole("localize_live")
    _check_here({**asked, "device": runtime.device, "dtype": runtime.dtype})
    plan = SearchPlan.of(**asked).seeded(seed)
    _check_score(plan, score)
    if batches_per_step is None and METHODS[plan.method].step_rows:
        batches_per_step = 1
    pair, processes = LivePair.of(base, tuned), Processes.here()
    facts = {"batches_per_step": batches_per_step, "seed": seed}
    with borrowed_random(pair.model), grafted(pair.model, pair.cut(Region(Scope.of(plan.scope, {}), {}))):
        steps = _Steps(batches, batches_per_step, seed, processes)
        problem = Problem.between(
            pair.model,
            pair.after,
            steps=steps,
            loss=loss,
            scope=plan.scope,
            reference=plan.reference,
            processes=processes,
        )
        start = starting_region(plan.start, pair.before, pair.after, problem.scope)
        snapshots = Snapshots(
            Path(resume) if resume is not None else None,
            lambda: {**facts, "base": pair.content, "tuned": content_digest(pair.after), "processes": processes.count},
        )
        searching = Searching(problem, plan, _LiveScorer(pair, score), snapshots, runtime, compares=score is not None)
        outcome = searching.best(start)
    if processes.is_main:
        snapshots.delete(outcome.scales(plan))
    recipe = {name: value for name, value in plan.plain.items() if name not in OF_FOLDERS}
    recipe |= {**facts, "scale": outcome.scale, **({"search": outcome.found.facts} if outcome.found.facts else {})}
    return (outcome.scale * pair.cut(outcome.region)).with_info(
        method=plan.method,
        recipe=recipe,
        outside_scope=pair.outside(problem.scope) or None,
        versions=versions(),
        command=runtime.command or None,
    )


def _check_here(asked: Mapping[str, Any]) -> None:
    """Nothing that was asked for is passed over."""
    for name in asked:
        if name in OF_FOLDERS and asked[name] is not None:
            raise InputError(f"{name!r} is for folders; here {OF_FOLDERS[name]}")


def _check_score(plan: SearchPlan, score: Score | None) -> None:
    if score is not None:
        return
    if plan.keeps:
        raise InputError("a share to keep is a share of a score: give score=, a function of the model")
    if isinstance(plan.scale, str):
        raise InputError(f"scale={plan.scale!r} compares scores: give score=, a function of the model, or a number")


@dataclass(frozen=True, eq=False)
class _LiveScorer:
    """The caller's score of the model as it stands, of a region, and of all of tuned."""

    pair: LivePair
    given: Score | None

    @torch.no_grad()
    def score_now(self) -> float:
        assert self.given is not None
        return float(self.given(self.pair.model))

    def score(self, problem: Problem, region: Region) -> float:
        with problem.holding(region):
            return self.score_now()

    def trial(self, problem: Problem, region: Region) -> dict[str, float]:
        found = self.score(problem, region)
        return {"merit": found, "score": found}

    def base_score(self) -> float:
        with evaluating(self.pair.model):
            return self.score_now()

    def tuned_score(self) -> float:
        with holding_all(self.pair.model, self.pair.after):
            return self.score_now()


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
        epoch, part = divmod(step, -(-self.count // size))
        first, last = part * size, min(part * size + size, self.count)
        torch.manual_seed(int(np.random.SeedSequence((self.seed, epoch)).generate_state(1)[0]))
        mine = islice(self.batches, first + self.processes.index, last, self.processes.count)
        return ((batch, 1.0 / (last - first)) for batch in mine)

    @cached_property
    def count(self) -> int:
        try:
            count = len(self.batches) if isinstance(self.batches, Sized) else sum(1 for _ in self.batches)
        except TypeError:  # a DataLoader over a stream has no length
            count = sum(1 for _ in self.batches)
        if count == 0:
            raise InputError("there are no batches to learn from; expected at least one")
        return count
