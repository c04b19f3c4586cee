"""How nearly linear a model's scores are along its delta (P2), from predictions."""

from __future__ import annotations

import numpy as np

from skillgraft.measure.intervals import Bootstrap, Estimate, estimate, quotient
from skillgraft.measure.metrics import Tally, mean_tally
from skillgraft.measure.predictions import Predictions, same_rows


def distance_from_linear(
    own: Predictions, linear: Predictions, *, base: Predictions, bootstrap: Bootstrap = Bootstrap()
) -> Estimate:
    """‖f − f_lin‖ / ‖f − f_0‖ over all rows' scores: own scores, those of the linearised model, and base's.

    0 where the model is linear along its delta; around 1 linearisation explains nothing of what the delta does. Absent
    choices do not count.
    """
    same_rows(own, linear, base)
    undefined = "the delta changes no score"
    group = [_squares(own, linear), _squares(own, base)]
    return estimate(lambda n: np.sqrt(quotient(n[0], n[1])), group, bootstrap=bootstrap, undefined=undefined)


def _squares(a: Predictions, b: Predictions) -> Tally:
    """The squared distance of two models' scores, row by row."""
    there = np.isfinite(a.scores) & np.isfinite(b.scores)
    apart = np.subtract(a.scores, b.scores, dtype=np.float64, where=there, out=np.zeros(a.scores.shape))
    return mean_tally(np.square(apart).sum(axis=1))
