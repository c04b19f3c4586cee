"""Regions by sensitivity, from the base and a task's rows: the least sensitive entries (TaLoS, P2) and the most sensitive (FISH).

TaLoS keeps the lowest share of the scope in rounds: after round r of R a share of density^(r/R) is left, and what was dropped
stays dropped. While re-scoring, the weights of dropped entries count `damp` times in the forward pass: without that the
scores would not change, and four rounds would equal one; `damp=1` therefore runs one round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from skillgraft.errors import InputError
from skillgraft.folders.movement import BUCKETS
from skillgraft.live.grafted import as_numpy, parameter_names
from skillgraft.readouts.readout import Encoded, Readout
from skillgraft.regions.fisher import Labels, fisher_diagonal
from skillgraft.regions.ranking import Ranking, bucket_of
from skillgraft.values.region import Indices, Region, Scope

DENSITY, ROUNDS, DAMP = 0.1, 4, 0.1  # P2's
MaskOf = Callable[[str], npt.NDArray[np.bool_]]
OnRound = Callable[[int, int], None]


@dataclass(frozen=True)
class Sensed:
    """A region chosen from the base, what there is to tell, and the last round's sensitivities where they decided."""

    region: Region
    facts: Mapping[str, Any] = field(default_factory=dict)
    fisher: Mapping[str, Tensor] = field(default_factory=dict, repr=False)


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
    if not 0 < damp <= 1 or rounds < 1:
        raise InputError(f"damp lies in (0, 1], rounds are at least 1; found {damp}, {rounds}")
    parameters, chosen = in_scope(model, scope)
    share_of(chosen, density)
    rounds = 1 if damp == 1 else rounds
    kept = Region.full(chosen)
    fisher: dict[str, Tensor] = {}
    for number in range(1, rounds + 1):
        with multiplied(parameters, _outside(kept), damp):
            fisher = fisher_diagonal(
                model, readout, rows, parameters, labels=labels, samples=samples, seed=seed, batch_size=batch_size
            )
        kept = lowest(fisher, kept, share_of(chosen, density ** (number / rounds)))
        if on_round:
            on_round(number, rounds)
    dead = sum(int((_at(fisher, name, at) == 0).sum()) for name, at in kept.sites.items())
    facts = {"rounds": rounds, "damp": damp, "insensitive_share": dead / len(kept), "rows": len(rows)}
    return Sensed(kept, facts, fisher)


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
    parameters, chosen = in_scope(model, scope)
    count = share_of(chosen, density)
    fisher = fisher_diagonal(
        model, readout, rows, parameters, labels=labels, samples=samples, seed=seed, batch_size=batch_size
    )

    def scores(name: str) -> npt.NDArray[np.floating[Any]]:
        return as_numpy(fisher[name])

    return Sensed(Ranking(chosen, scores, scores, most=count).top(count), {"rows": len(rows)}, fisher)


def in_scope(model: nn.Module, scope: str) -> tuple[dict[str, nn.Parameter], Scope]:
    """The model's parameters that a scope names, and the scope."""
    names = parameter_names(model)
    chosen = Scope.select(scope, {name: tuple(parameter.shape) for name, parameter in names.items()})
    return {name: names[name] for name in chosen.shapes}, chosen


def share_of(scope: Scope, density: float) -> int:
    """This share of a scope as a number of entries, at least one."""
    if not 0 < density <= 1:
        raise InputError(f"a density lies in (0, 1], found {density}")
    return max(1, round(density * scope.size))


def lowest(fisher: Mapping[str, Tensor], kept: Region, count: int) -> Region:
    """The `count` least sensitive of the kept entries; of equally sensitive ones the first by name and index.

    The edge is found by counting numbers by their leading bits and then by the others, so that no copy of the scope is joined,
    sorted or kept: half of it can be asked for.
    """
    most = len(kept) - count + 1  # the `count`-th lowest is so many-th of the highest
    leading, above = bucket_of(_tally(_patterns(fisher, kept), lambda bits: bits >> np.uint32(16)), most)
    within = (bits[bits >> np.uint32(16) == leading] for bits in _patterns(fisher, kept))
    rest, _ = bucket_of(_tally(within, lambda bits: bits & np.uint32(0xFFFF)), most - above)
    edge = np.uint32(leading << 16 | rest)
    ties = count - sum(int((bits < edge).sum()) for bits in _patterns(fisher, kept))
    sites = {}
    for (name, at), bits in zip(kept.sites.items(), _patterns(fisher, kept), strict=True):
        chosen, equal = bits < edge, np.flatnonzero(bits == edge)
        chosen[equal[:ties]] = True
        ties -= min(ties, len(equal))
        sites[name] = at[chosen]
    return Region(kept.scope, sites)


def _patterns(fisher: Mapping[str, Tensor], kept: Region) -> Iterator[npt.NDArray[np.uint32]]:
    """The bits of each tensor's kept numbers in float32: none is below 0, so they sort as the numbers do."""
    for name, at in kept.sites.items():
        yield _at(fisher, name, at).astype(np.float32, copy=False).view(np.uint32)


def _tally(
    patterns: Iterable[npt.NDArray[np.uint32]], part: Callable[[npt.NDArray[np.uint32]], npt.NDArray[np.uint32]]
) -> npt.NDArray[np.int64]:
    found = np.zeros(BUCKETS, np.int64)
    for bits in patterns:
        found += np.bincount(part(bits), minlength=BUCKETS)
    return found


def _at(fisher: Mapping[str, Tensor], name: str, at: Indices) -> npt.NDArray[np.floating[Any]]:
    numbers: npt.NDArray[np.floating[Any]] = as_numpy(fisher[name]).reshape(-1)[at]
    return numbers


def _outside(region: Region) -> MaskOf:
    return lambda name: ~region.mask(name)


@contextmanager
def multiplied(parameters: Mapping[str, nn.Parameter], mask_of: MaskOf, factor: float) -> Iterator[None]:
    """The model with the masked entries times `factor`; the exact old numbers come back.

    Only those are held meanwhile: masks are asked for whenever they are needed, one tensor at a time.
    """
    saved: dict[str, Tensor] = {}
    try:
        for name, parameter in parameters.items():
            saved[name] = parameter.detach()[_there(mask_of(name), parameter)]
            _write(parameter, mask_of(name), saved[name] * factor)
        yield
    finally:
        for name, numbers in saved.items():
            _write(parameters[name], mask_of(name), numbers)


@torch.no_grad()
def _write(parameter: nn.Parameter, mask: npt.NDArray[np.bool_], numbers: Tensor) -> None:
    parameter[_there(mask, parameter)] = numbers


def _there(mask: npt.NDArray[np.bool_], parameter: nn.Parameter) -> Tensor:
    return torch.from_numpy(mask).to(parameter.device)
