"""Regions by sensitivity, from the base and a task's rows: the least sensitive entries (TaLoS, P2) and the most sensitive (FISH).

TaLoS keeps the lowest share of the scope in rounds: after round r of R a share of density^(r/R) is left, and what was dropped
stays dropped. While re-scoring, the weights of dropped entries count `damp` times in the forward pass: without that the
scores would not change, and four rounds would equal one; `damp=1` therefore runs one round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from skillgraft.errors import InputError
from skillgraft.live.grafted import as_numpy, parameter_names
from skillgraft.opening.processes import ALONE, Processes
from skillgraft.opening.shards import is_split, own, own_shape, span, stretch
from skillgraft.readouts.readout import Encoded, Readout
from skillgraft.regions.fisher import Averaging, fisher_diagonal
from skillgraft.regions.ranking import Ranking, at_positions, over, starts_of
from skillgraft.values.region import Region, Scope
from skillgraft.values.topmost import Bits, edge_of

DENSITY, ROUNDS, DAMP = 0.1, 4, 0.1  # P2's
MaskOf = Callable[[str], npt.NDArray[np.bool_]]


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
    processes: Processes = ALONE,
    **averaging: Unpack[Averaging],
) -> Sensed:
    """TaLoS's region: exactly round(density · scope) entries; of equally sensitive ones the first by name and index."""
    if not 0 < damp <= 1 or rounds < 1:
        raise InputError(f"damp lies in (0, 1], rounds are at least 1; found {damp}, {rounds}")
    parameters, chosen = in_scope(model, scope)
    share_of(chosen, density)
    rounds = 1 if damp == 1 else rounds
    firsts = {name: stretch(parameter)[0] for name, parameter in parameters.items()}
    kept = _held(chosen, parameters)
    fisher: dict[str, Tensor] = {}
    for number in range(1, rounds + 1):
        with multiplied(parameters, _outside(kept), damp):
            fisher = fisher_diagonal(model, readout, rows, parameters, processes=processes, **averaging)
        kept = lowest(fisher, kept, share_of(chosen, density ** (number / rounds)), firsts, processes)
    dead = sum(int((numbers == 0).sum()) for numbers in _numbers(fisher, kept, firsts))
    share = int(processes.summed(torch.tensor(dead))) / share_of(chosen, density)
    facts = {"rounds": rounds, "damp": damp, "insensitive_share": share, "rows": len(rows)}
    return Sensed(_joined(kept, processes), facts, fisher)


def most_sensitive(
    model: nn.Module,
    readout: Readout,
    rows: Sequence[Encoded],
    *,
    scope: str = "layers",
    density: float = DENSITY,
    processes: Processes = ALONE,
    **averaging: Unpack[Averaging],
) -> Sensed:
    """FISH: the entries with the highest Fisher information."""
    parameters, chosen = in_scope(model, scope)
    count = share_of(chosen, density)
    fisher = fisher_diagonal(model, readout, rows, parameters, processes=processes, **averaging)

    def scores(name: str) -> npt.NDArray[np.floating[Any]]:
        return as_numpy(fisher[name])

    firsts = {name: stretch(parameter)[0] for name, parameter in parameters.items()}
    ranking = Ranking(chosen, scores, scores, most=count, firsts=firsts, processes=processes)
    return Sensed(ranking.top(count), {"rows": len(rows)}, fisher)


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


def lowest(
    fisher: Mapping[str, Tensor],
    kept: Region,
    count: int,
    firsts: Mapping[str, int] = MappingProxyType({}),
    processes: Processes = ALONE,
) -> Region:
    """The `count` least sensitive of the kept entries; of equally sensitive ones the first by name and index.

    Of a model that is split each process has the kept entries of its own stretches, which begin at `firsts`, and gets its own.

    The edge is found by counting numbers by their leading bits and then by the others, so that no copy of the scope is joined,
    sorted or kept: half of it can be asked for.
    """

    def patterns() -> Iterator[Bits]:
        # None is below 0, so that their bits sort as the numbers do; turned over, the least sensitive are the largest.
        return (~each.astype(np.float32, copy=False).view(np.uint32) for each in _numbers(fisher, kept, firsts))

    edge = edge_of(patterns, count, over(processes))
    equal = {name: int((bits == edge.bits).sum()) for name, bits in zip(kept.sites, patterns(), strict=True)}
    taken = processes.shared_out({name: equal.get(name, 0) for name in kept.scope.shapes}, edge.ties)
    sites = {}
    for (name, at), bits in zip(kept.sites.items(), patterns(), strict=True):
        chosen = bits > edge.bits
        chosen[np.flatnonzero(bits == edge.bits)[: taken[name]]] = True
        sites[name] = at[chosen]
    return Region(kept.scope, {name: at for name, at in sites.items() if len(at)})


def _held(scope: Scope, parameters: Mapping[str, Tensor]) -> Region:
    """All entries that this process holds."""
    if not any(map(is_split, parameters.values())):
        return Region.full(scope)
    sites = {name: np.arange(*stretch(parameters[name])) for name in scope.shapes}
    return Region(scope, {name: at for name, at in sites.items() if len(at)})


def _joined(mine: Region, processes: Processes) -> Region:
    """Every process's part of a region in one."""
    if not processes.split:
        return mine
    starts = dict(zip(mine.scope.shapes, starts_of(mine.scope), strict=False))
    positions = [at.astype(np.int64) + starts[name] for name, at in mine.sites.items()]
    joined = torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *positions]))
    return at_positions(mine.scope, np.sort(processes.gathered(joined).numpy()))


def _numbers(
    fisher: Mapping[str, Tensor], kept: Region, firsts: Mapping[str, int]
) -> Iterator[npt.NDArray[np.floating[Any]]]:
    """Each tensor's kept numbers."""
    for name, at in kept.sites.items():
        yield as_numpy(fisher[name]).reshape(-1)[at - firsts.get(name, 0)]


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
            saved[name] = _entries(parameter)[_there(mask_of(name), parameter)]
            _write(parameter, mask_of(name), saved[name] * factor)
        yield
    finally:
        for name, numbers in saved.items():
            _write(parameters[name], mask_of(name), numbers)


@torch.no_grad()
def _write(parameter: nn.Parameter, mask: npt.NDArray[np.bool_], numbers: Tensor) -> None:
    _entries(parameter)[_there(mask, parameter)] = numbers


def _there(mask: npt.NDArray[np.bool_], parameter: nn.Parameter) -> Tensor:
    return torch.from_numpy(mask[span(parameter)] if is_split(parameter) else mask).to(parameter.device)


def _entries(parameter: nn.Parameter) -> Tensor:
    """What this process holds of a parameter, written to like it."""
    return own(parameter.detach()).view(own_shape(parameter)) if is_split(parameter) else parameter.detach()
