"""A model whose scores lean towards some classes, set right: one number added per class, fitted on validation rows.

A base may tell classes apart and still say one of them about every row. Tuning then gains by moving a threshold, which is no
skill that has a place in the model: the shifted base tells how much of a gain is only that.

    >>> rows = Predictions([[4.0, 0.0], [5.0, 0.0], [6.0, 0.0], [7.0, 0.0], [4.5, 0.0]], [1, 1, 0, 0, 0], task="sst2")
    >>> shifted(rows, rows).predicted.tolist()
    [1, 0, 0, 0, 1]
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from skillgraft.errors import InputError
from skillgraft.measure.calibration import TEMPERATURES
from skillgraft.measure.predictions import Predictions

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
