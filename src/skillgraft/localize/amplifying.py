"""Grafts that carry a multiple of tuned's change: fewer entries have to do the work of all.

A region of a ten-thousandth keeps the direction of a skill, but most of the way that tuned went is outside it. So the region is
searched, and the graft cut, at reference + factor · (tuned − reference). Factor 1 is P1's graft.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from skillgraft.errors import InputError
from skillgraft.localize.smallest import OutOfReach

AUTO = "auto"
FACTORS = (1.0, 2.0, 4.0, 8.0)  # that "auto" tries
T = TypeVar("T")


def factors_of(amplify: float | str, *, reference: str = "base") -> tuple[float, ...]:
    """The factors to try: the one that is given, or those of "auto"."""
    if amplify != AUTO and (isinstance(amplify, str) or not (math.isfinite(amplify) and amplify > 0)):
        raise InputError(f"amplify is a number above 0, or {AUTO!r}; found {amplify!r}")
    if amplify != 1.0 and reference != "base":
        raise InputError(f"amplify is for grafts on the base: with the reference {reference!r} leave it at 1")
    return FACTORS if isinstance(amplify, str) else (float(amplify),)


def best_attempt(factors: Sequence[float], attempt: Callable[[float], T], score: Callable[[T], float]) -> T:
    """The attempt with the highest score, of equals the first; one alone needs no score.

    All factors are tried: searches at large factors are noisy, so that one may fail and the next one not. Where none keeps
    what it should, the error is the first one's.
    """
    best: tuple[float, T] | None = None
    failures: list[OutOfReach] = []
    for factor in factors:
        try:
            tried = attempt(factor)
        except OutOfReach as failure:
            failures.append(failure.with_traceback(None))  # which would hold the attempt's copy of the scope
            continue
        told = score(tried) if len(factors) > 1 else 0.0
        if best is None or told > best[0]:
            best = told, tried
    if best is None:
        raise failures[0]
    return best[1]
