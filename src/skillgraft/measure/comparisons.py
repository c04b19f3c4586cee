"""Comparisons between models from their predictions: how much of a skill a graft keeps, and how skills interfere.

Every function gives an `Estimate` (value, low, high) and None with a reason where the question has no answer.

    >>> truth = [0, 1, 0, 1]
    >>> tuned = Predictions([[1, 0], [0, 1], [1, 0], [0, 1]], truth, task="sst2")
    >>> graft = Predictions([[1, 0], [0, 1], [1, 0], [1, 0]], truth, task="sst2")
    >>> agreement(graft, tuned).value, share_kept(graft, tuned).value
    (0.75, 0.75)
"""

from __future__ import annotations

from collections.abc import Sequence

from skillgraft.errors import InputError
from skillgraft.measure.intervals import Bootstrap, Estimate, estimate, paired, paired_ratio, quotient
from skillgraft.measure.metrics import METRICS, Tally, mean_tally
from skillgraft.measure.predictions import Predictions, same_rows

# Below this gain of tuned over base there is no skill to localise: 3 points.
LEAST_GAIN = 0.03
# Scores are fractions of whole rows: 0.83 − 0.80 must count as 3 points though it is 0.0299… in floating point.
_ROUNDING = 1e-9

Pair = tuple[Predictions, Predictions]


def agreement(a: Predictions, b: Predictions, *, bootstrap: Bootstrap = Bootstrap()) -> Estimate:
    """The share of rows on which both predict the same class, right or wrong (P1 table 2)."""
    same_rows(a, b)
    return estimate(lambda n: n[0], [mean_tally(a.predicted == b.predicted)], bootstrap=bootstrap)


def share_kept(graft: Predictions, tuned: Predictions, *, bootstrap: Bootstrap = Bootstrap()) -> Estimate:
    """graft's score / tuned's score (P1's "> 95 %")."""
    return paired_ratio(graft, tuned, bootstrap=bootstrap, undefined="tuned's score is 0")


def relative_gain(
    graft: Predictions,
    tuned: Predictions,
    *,
    base: Predictions,
    least: float = LEAST_GAIN,
    bootstrap: Bootstrap = Bootstrap(),
) -> Estimate:
    """(graft − base) / (tuned − base), P1 eq. 5; undefined where tuned gains less than `least` over base."""
    group = paired("score", graft, tuned, base)
    gain = group[1].total() - group[2].total()
    if gain < least - _ROUNDING:
        points = f"tuned − base is {100 * gain:.1f} points, below {100 * least:g}"
        return Estimate(None, reason=f"no skill to localise: {points}")
    undefined = "tuned − base is not above 0"
    return estimate(lambda n: quotient(n[0] - n[2], n[1] - n[2]), group, bootstrap=bootstrap, undefined=undefined)


def normalised_accuracy(pairs: Sequence[Pair], *, bootstrap: Bootstrap = Bootstrap()) -> Estimate:
    """The mean over tasks of accuracy / the same method's single-task accuracy (P2, addition).

    One pair (combined model, single-task model) for each task; tasks are resampled independently.
    """
    groups = [paired("accuracy", combined, single) for combined, single in _some(pairs)]
    undefined = "a single-task accuracy is 0"
    return estimate(
        lambda n: quotient(n[0::2], n[1::2]).mean(axis=0), *groups, bootstrap=bootstrap, undefined=undefined
    )


def train_test_gap(train: Predictions, test: Predictions, *, bootstrap: Bootstrap = Bootstrap()) -> Estimate:
    """The score on the training rows minus the score on the test rows (P1 §4.3)."""
    if (train.task, train.metric) != (test.task, test.metric):
        found = f"{train.task} ({train.metric}) and {test.task} ({test.metric})"
        raise InputError(f"a train–test gap needs two splits of one task, found {found}")
    splits = [[METRICS["score"].tally(split)] for split in (train, test)]
    return estimate(lambda n: n[0] - n[1], *splits, bootstrap=bootstrap)


def disentanglement_error(pairs: Sequence[Pair], *, bootstrap: Bootstrap = Bootstrap()) -> Estimate:
    """ξ: the sum over tasks of the share of rows whose prediction changes when the other deltas join (P2 fig. 2).

    One pair for each task: predictions at base + α_t·delta_t alone, and at base + Σ_s α_s·delta_s. From 0 to the
    number of tasks; tasks are resampled independently.
    """
    groups = [[_disagreement(alone, together)] for alone, together in _some(pairs)]
    return estimate(lambda n: n.sum(axis=0), *groups, bootstrap=bootstrap)


def function_localisation(edited: Predictions, base: Predictions, *, bootstrap: Bootstrap = Bootstrap()) -> Estimate:
    """Accuracy of an edited model on a task / base's accuracy on it: one cell of P2's figures 1 and 3.

    Around 1 on tasks that the edit (tuning on another task, pruning) leaves alone.
    """
    return paired_ratio(edited, base, metric="accuracy", bootstrap=bootstrap, undefined="base's accuracy is 0")


def _disagreement(a: Predictions, b: Predictions) -> Tally:
    same_rows(a, b)
    return mean_tally(a.predicted != b.predicted)


def _some(pairs: Sequence[Pair]) -> Sequence[Pair]:
    if not pairs:
        raise InputError("expected a pair of predictions for each task, found none")
    return pairs
