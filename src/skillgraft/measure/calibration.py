"""Is a model as sure as it is right: reliability bins, confidence histograms, and temperature scaling.

Temperature scaling is the yardstick that grafts are held against (P1 §4.1): it needs held-out rows, grafting does not.

    >>> rows = Predictions([[4.0, 0.0]] * 4, [0, 0, 0, 1], task="sst2")
    >>> round(fit_temperature(rows), 3)  # 4 / log 3: confidence becomes 3/4
    3.641
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from skillgraft.errors import InputError
from skillgraft.measure.metrics import ECE_BINS, bin_edges, bin_of
from skillgraft.predictions.predictions import Predictions

# Where the search ends: rows that are all right ask for 0, rows worse than chance for infinity.
TEMPERATURES = (0.01, 100.0)


@dataclass(frozen=True)
class Reliability:
    """A reliability diagram's numbers, one for each bin; None in a bin without rows."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    confidence: tuple[float | None, ...]
    accuracy: tuple[float | None, ...]


@dataclass(frozen=True)
class Histogram:
    """How many rows fall between neighbouring edges; bins are open on the left and closed on the right."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


def reliability(predictions: Predictions, *, bins: int = ECE_BINS) -> Reliability:
    """Mean confidence and accuracy by bin. Law: Σ counts · |confidence − accuracy| / rows is the ECE."""
    histogram = confidence_histogram(predictions, bins=bins)
    where = bin_of(predictions.confidence, bins)

    def means(numbers: npt.NDArray[Any]) -> tuple[float | None, ...]:
        sums = np.bincount(where, weights=numbers, minlength=bins)
        return tuple(float(s) / n if n else None for s, n in zip(sums, histogram.counts, strict=True))

    return Reliability(histogram.edges, histogram.counts, means(predictions.confidence), means(predictions.hits))


def confidence_histogram(predictions: Predictions, *, bins: int = ECE_BINS) -> Histogram:
    """How often each confidence occurs (P1 fig. 6)."""
    counts = np.bincount(bin_of(predictions.confidence, bins), minlength=bins)
    return Histogram(tuple(bin_edges(bins).tolist()), tuple(counts.tolist()))


def fit_temperature(validation: Predictions) -> float:
    """The temperature that minimises the NLL of softmax(scores / T), within `TEMPERATURES`.

    The NLL is convex in 1/T, so its slope there, mean(E_p[score] − score of the label), has one sign change at most.
    """
    from scipy.optimize import brentq

    # Against the label's own score first: rows that are all right then give a slope ≤ 0 without rounding noise.
    gaps = validation.scores - validation.scores[np.arange(len(validation)), validation.labels, None].astype(np.float64)
    gaps[np.isneginf(gaps)] = 0.0  # a missing choice has weight 0, and 0 · −inf would be NaN

    def slope(log_temperature: float) -> float:
        logits = validation.scores / np.exp(log_temperature)
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return float(((weights * gaps).sum(axis=1) / weights.sum(axis=1)).mean())

    cold, hot = np.log(TEMPERATURES)
    if slope(cold) <= 0:
        return TEMPERATURES[0]
    if slope(hot) >= 0:
        return TEMPERATURES[1]
    return float(np.exp(brentq(slope, cold, hot, xtol=1e-10)))


def at_temperature(predictions: Predictions, temperature: float) -> Predictions:
    """The predictions with scores / temperature. Law: no predicted class changes."""
    if not 0 < temperature < np.inf:
        raise InputError(f"temperature must be a finite number above 0, found {temperature}")
    with np.errstate(over="ignore"):  # a quotient beyond float32 becomes inf, which Predictions refuses
        scores = (predictions.scores / np.float64(temperature)).astype(np.float32)
    # Rounding can make two scores equal, and the tie would go to the first: the predicted one goes up by one step.
    moved = np.flatnonzero(scores.argmax(axis=1) != predictions.predicted)
    top = predictions.predicted[moved]
    scores[moved, top] = np.nextafter(scores[moved, top], np.float32(np.inf))
    steps = [*filter(None, [predictions.made_by.get("temperature")]), repr(float(temperature))]
    return replace(predictions, scores=scores, made_by={**predictions.made_by, "temperature": " * ".join(steps)})


def temperature_scaled(predictions: Predictions, validation: Predictions) -> Predictions:
    """The predictions at the temperature that fits the validation rows of the same task best."""
    if predictions.task != validation.task:
        found = f"rows of {validation.task}; use at_temperature to carry one over"
        raise InputError(f"expected validation rows of {predictions.task} to fit a temperature for it, found {found}")
    return at_temperature(predictions, fit_temperature(validation))


# Where the search ends: a class that no validation row has asks for minus infinity.
LARGEST = 100.0


@dataclass(frozen=True)
class Shift:
    """Scores become scores / temperature + offsets; the first class has offset 0."""

    temperature: float
    offsets: tuple[float, ...]


def fit_shift(validation: Predictions) -> Shift:
    """The temperature and the offsets that minimise the NLL together: a convex problem in 1/T and the offsets."""
    from scipy.optimize import minimize

    missing = np.isneginf(validation.scores)
    scores = np.where(missing, 0.0, validation.scores.astype(np.float64))
    rows, labels = np.arange(len(validation)), validation.labels

    def loss_and_slope(point: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[Any]]:
        logits = point[0] * scores + np.concatenate([[0.0], point[1:]])
        logits[missing] = -np.inf
        logits -= logits.max(axis=1, keepdims=True)
        weights = np.exp(logits)
        sums = weights.sum(axis=1, keepdims=True)
        loss = (np.log(sums[:, 0]) - logits[rows, labels]).mean()
        excess = weights / sums
        excess[rows, labels] -= 1.0
        return float(loss), np.concatenate([[(excess * scores).sum(axis=1).mean()], excess.mean(axis=0)[1:]])

    classes = scores.shape[1]
    cold, hot = TEMPERATURES
    bounds = [(1 / hot, 1 / cold), *[(-LARGEST, LARGEST)] * (classes - 1)]
    start = np.concatenate([[1.0], np.zeros(classes - 1)])
    found = minimize(loss_and_slope, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"gtol": 1e-8})
    return Shift(1 / float(found.x[0]), (0.0, *(float(offset) for offset in found.x[1:])))


def at_shift(predictions: Predictions, shift: Shift) -> Predictions:
    """The predictions with scores / temperature + offsets."""
    if len(shift.offsets) != predictions.scores.shape[1]:
        found = f"{predictions.scores.shape[1]} classes of {predictions.task}"
        raise InputError(f"expected as many classes as the {len(shift.offsets)} offsets of the shift, found {found}")
    scores = predictions.scores / shift.temperature + np.array(shift.offsets)
    offsets = " ".join(f"{offset:.6g}" for offset in shift.offsets)
    made_by = {**predictions.made_by, "shift": f"/ {shift.temperature:.6g} + {offsets}"}
    return replace(predictions, scores=scores.astype(np.float32), made_by=made_by)


def shifted(predictions: Predictions, validation: Predictions) -> Predictions:
    """The predictions at the shift that fits the validation rows of the same task best."""
    if predictions.task != validation.task:
        raise InputError(f"expected validation rows of {predictions.task} to fit a shift, found {validation.task}'s")
    return at_shift(predictions, fit_shift(validation))
