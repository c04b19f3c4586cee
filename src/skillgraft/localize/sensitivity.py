"""Regions by sensitivity, from the base alone: the least sensitive entries (TaLoS, P2) and the most sensitive (FISH).

TaLoS keeps the lowest share of the scope in rounds: after round r of R a share of density^(r/R) is left, and what was dropped
stays dropped. While re-scoring, the weights of dropped entries count `damp` times in the forward pass: without that the
scores would not change, and four rounds would equal one; `damp=1` therefore runs one round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from skillgraft.errors import InputError
from skillgraft.live import parameter_names
from skillgraft.localize.fisher import Labels, fisher_diagonal
from skillgraft.localize.ranking import Ranking
from skillgraft.readouts.readout import Encoded, Readout
from skillgraft.region import Region, Scope

DENSITY, ROUNDS, DAMP = 0.1, 4, 0.1  # P2's
OnRound = Callable[[int, int], None]


@dataclass(frozen=True)
class Sensed:
    """A region chosen by sensitivity, the last round's scores, and what there is to tell."""

    region: Region
    fisher: Mapping[str, Tensor] = field(repr=False)
    facts: Mapping[str, Any]


def least_sensitive(
    model: nn.Module,
    readout: Readout,
    rows: Sequence[Encoded],
    *,
    scope: str = "layers",
    density: float = DENSITY,
    rounds: int = ROUNDS,
    damp: float = DAMP,
    labels: Labels = "sampled",
    samples: int = 1,
    seed: int = 0,
    batch_size: int = 32,
    on_round: OnRound | None = None,
) -> Sensed:
    """TaLoS's region: exactly round(density · scope) entries; of equally sensitive ones the first by name and index."""
    if not 0 < density <= 1 or not 0 < damp <= 1 or rounds < 1:
        raise InputError(f"density and damp lie in (0, 1], rounds are at least 1; found {density}, {damp}, {rounds}")
    parameters, chosen = _scope_of(model, scope)
    rounds = 1 if damp == 1 else rounds
    kept = Region.full(chosen)
    fisher: dict[str, Tensor] = {}
    for number in range(1, rounds + 1):
        with _damped(parameters, kept, damp):
            fisher = fisher_diagonal(
                model, readout, rows, parameters, labels=labels, samples=samples, seed=seed, batch_size=batch_size
            )
        kept = _lowest(fisher, kept, max(1, round(density ** (number / rounds) * chosen.size)))
        if on_round:
            on_round(number, rounds)
    dead = sum(int((_at(fisher, name, at) == 0).sum()) for name, at in kept.sites.items())
    facts = {"rounds": rounds, "damp": damp, "insensitive_share": dead / len(kept), "rows": len(rows)}
    return Sensed(kept, fisher, facts)


def most_sensitive(
    model: nn.Module,
    readout: Readout,
    rows: Sequence[Encoded],
    *,
    scope: str = "layers",
    density: float = DENSITY,
    labels: Labels = "sampled",
    samples: int = 1,
    seed: int = 0,
    batch_size: int = 32,
) -> Sensed:
    """FISH: the entries with the highest Fisher information."""
    parameters, chosen = _scope_of(model, scope)
    fisher = fisher_diagonal(
        model, readout, rows, parameters, labels=labels, samples=samples, seed=seed, batch_size=batch_size
    )
    count = max(1, round(density * chosen.size))
    scores = {name: total.numpy() for name, total in fisher.items()}
    region = Ranking(chosen, scores, scores, most=count).top(count)
    return Sensed(region, fisher, {"rows": len(rows)})


def _scope_of(model: nn.Module, scope: str) -> tuple[dict[str, nn.Parameter], Scope]:
    names = parameter_names(model)
    chosen = Scope.select(scope, {name: tuple(parameter.shape) for name, parameter in names.items()})
    return {name: names[name] for name in chosen.shapes}, chosen


def _lowest(fisher: Mapping[str, Tensor], kept: Region, count: int) -> Region:
    """The `count` least sensitive of the kept entries."""
    scores, zeros = {}, {}
    for name, total in fisher.items():
        low = np.full(total.shape, -np.inf, np.float64)
        at = kept.sites.get(name, np.empty(0, np.int64))
        low.reshape(-1)[at] = -_at(fisher, name, at)
        scores[name], zeros[name] = low, np.zeros(total.shape, np.float32)
    return Ranking(kept.scope, scores, zeros, most=count).top(count)


def _at(fisher: Mapping[str, Tensor], name: str, at: Any) -> Any:
    return fisher[name].reshape(-1).numpy()[at]


@contextmanager
def _damped(parameters: Mapping[str, nn.Parameter], kept: Region, damp: float) -> Iterator[None]:
    """The model with every dropped entry times `damp`; the exact old numbers come back."""
    dropped = {name: ~torch.from_numpy(kept.mask(name)) for name in parameters}
    saved = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    try:
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter[dropped[name]] *= damp
        yield
    finally:
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(saved[name])
