"""What uniform convergence proves about a grafted model (P1 appendix D).

A graft of s entries, each of which takes one of q values, in one of Θ regions, is one of Θ·q^s models. A union bound over them
says how far test and training loss can be apart; losses lie in [0, 1], so that a bound above 1 says nothing.

    >>> bound = generalization_bound(850, 4096, delta=0.05)
    >>> round(bound.value, 2), bound.vacuous
    (4.29, True)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from skillgraft.errors import InputError

FLOAT32_LEVELS = 32 * math.log(2)  # log q of 32-bit numbers, as the paper counts them


@dataclass(frozen=True)
class Bound:
    """test(graft) − test(best model) ≤ `value`, with probability 1 − `delta` over the n training rows.

    The parts: `variance` = 2·√((values + regions + confidence) / n), where the three are in nats; `bias`, what the best model in
    the region loses against the best model; `error` = 4·ε₁ (+ ε₂ without re-training).
    """

    n: int
    delta: float
    values: float  # s · log q: which numbers stand in the region
    regions: float  # log Θ_n: which region it is
    confidence: float  # log(1/δ), or log(2/δ) without re-training
    bias: float
    error: float

    @property
    def variance(self) -> float:
        return 2 * math.sqrt((self.values + self.regions + self.confidence) / self.n)

    @property
    def value(self) -> float:
        return self.variance + self.bias + self.error

    @property
    def vacuous(self) -> bool:
        """Whether it says nothing: no loss is above 1."""
        return self.value > 1


def generalization_bound(
    entries: int,
    n: int,
    *,
    log_levels: float = FLOAT32_LEVELS,
    log_regions: float = 0.0,
    delta: float = 0.05,
    retrained: bool = True,
    bias: float = 0.0,
    quantisation_error: float = 0.0,
    training_gap: float = 0.0,
) -> Bound:
    """The bound of theorem D.2 for a model re-trained inside a region of `entries`, of D.4 for a graft as it is.

    `log_levels` is log q, `log_regions` is log Θ_n, both natural: 0 regions' worth for one that was fixed before any data were
    seen (BitFit), at most `log_all_regions` for one that was learned from them. `quantisation_error` is ε₁ (assumption D.1);
    `training_gap` is ε₂ (D.3), by how much the graft's training loss is above the re-trained model's: for grafts alone.
    With `bias` left at 0 the comparison is with the best model inside the region.
    """
    _check(entries, n, delta, log_levels, log_regions, quantisation_error, training_gap)
    if retrained and training_gap:
        raise InputError(
            "training_gap (ε₂) belongs to grafts that were not re-trained; leave it out or say retrained=False"
        )
    return Bound(
        n,
        delta,
        values=entries * log_levels,
        regions=log_regions,
        confidence=math.log((1 if retrained else 2) / delta),
        bias=bias,
        error=4 * quantisation_error + training_gap,
    )


def log_all_regions(entries: int, scope_size: int) -> float:
    """log of d^s, the paper's own count of all regions of s entries among d: the most that `log_regions` can be."""
    if not 0 <= entries <= scope_size or scope_size < 1:
        raise InputError(f"a region has from 0 to all {scope_size:,} entries of its scope, found {entries:,}")
    return entries * math.log(scope_size)


def _check(entries: int, n: int, delta: float, *not_negative: float) -> None:
    if entries < 0 or n < 1 or not 0 < delta < 1:
        raise InputError(f"expected entries ≥ 0, n ≥ 1 and delta between 0 and 1; found {entries}, {n} and {delta}")
    if any(not math.isfinite(number) or number < 0 for number in not_negative):
        raise InputError(f"logarithms and errors are finite and not negative, found {list(not_negative)}")
