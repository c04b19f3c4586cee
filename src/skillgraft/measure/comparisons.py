"""Comparisons between models from their predictions: how much of a skill a graft keeps, and how skills interfere.

Every function gives an `Estimate` (value, low, high) and None with a reason where the question has no answer.

    >>> truth = [0, 1, 0, 1]
    >>> tuned = Predictions([[1, 0], [0, 1], [1, 0], [0, 1]], truth, task="sst2")
    >>> graft = Predictions([[1, 0], [0, 1], [1, 0], [1, 0]], truth, task="sst2")
    >>> agreement(graft, tuned).value, share_kept(graft, tuned).value
    (0.75, 0.75)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from skillgraft.errors import InputError
from skillgraft.measure.intervals import Bootstrap, Estimate, estimate, paired, paired_ratio, quotient
from skillgraft.measure.metrics import LOSSES, METRICS, Tally, is_loss, mean_tally
from skillgraft.predictions.completions import Completions
from skillgraft.predictions.predictions import AnyPredictions, Predictions, classes_of, same_rows
from skillgraft.values.region import Region

# Below this gain of tuned over base there is no skill to localise: 3 points.
LEAST_GAIN = 0.03
# Scores are fractions of whole rows: 0.83 − 0.80 must count as 3 points though it is 0.0299… in floating point.
_ROUNDING = 1e-9

Pair = tuple[AnyPredictions, AnyPredictions]


def agreement(a: AnyPredictions, b: AnyPredictions, *, bootstrap: Bootstrap = Bootstrap()) -> Estimate:
    """The share of rows on which both predict the same class (P1 table 2), or generate the same text, right or wrong."""
    same_rows(a, b)
    if isinstance(a, Completions) or isinstance(b, Completions):
        return _same_texts(a, b, bootstrap)
    return estimate(lambda n: n[0], [mean_tally(a.predicted == b.predicted)], bootstrap=bootstrap)


def _same_texts(a: AnyPredictions, b: AnyPredictions, bootstrap: Bootstrap) -> Estimate:
    if not (isinstance(a, Completions) and isinstance(b, Completions) and a.texts and b.texts):
        return Estimate(None, reason="nothing was generated")
    same = [one == other for one, other in zip(a.texts, b.texts, strict=True)]
    return estimate(lambda n: n[0], [mean_tally(same)], bootstrap=bootstrap)


def share_kept(
    graft: AnyPredictions, tuned: AnyPredictions, *, metric: str = "score", bootstrap: Bootstrap = Bootstrap()
) -> Estimate:
    """graft's score / tuned's score (P1's "> 95 %"). A loss has none."""
    if metric in ("score", *LOSSES) and is_loss(tuned):
        return Estimate(None, reason=f"{tuned.metric} is a loss, which has only a relative gain")
    return paired_ratio(graft, tuned, metric=metric, bootstrap=bootstrap, undefined="tuned's score is 0")


def relative_gain(
    graft: AnyPredictions,
    tuned: AnyPredictions,
    *,
    base: AnyPredictions,
    least: float = LEAST_GAIN,
    bootstrap: Bootstrap = Bootstrap(),
) -> Estimate:
    """(graft − base) / (tuned − base), P1 eq. 5; undefined where tuned gains less than `least` over base.

    Of a loss it is the share of the improvement: `least` is then in the loss's own unit (nats for NLL).
    """
    group = paired("merit", graft, tuned, base)
    gain = group[1].total() - group[2].total()
    if gain < least - _ROUNDING:
        is_share = not is_loss(tuned)
        points = f"tuned − base is {100 * gain:.1f} points, below {100 * least:g}"
        points = points if is_share else f"tuned improves {tuned.metric} by {gain:.3f}, less than {least:g}"
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


def train_test_gap(train: AnyPredictions, test: AnyPredictions, *, bootstrap: Bootstrap = Bootstrap()) -> Estimate:
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


def function_localisation(
    edited: AnyPredictions, base: AnyPredictions, *, bootstrap: Bootstrap = Bootstrap()
) -> Estimate:
    """Accuracy of an edited model on a task / base's accuracy on it: one cell of P2's figures 1 and 3.

    Around 1 on tasks that the edit (tuning on another task, pruning) leaves alone.
    """
    return paired_ratio(edited, base, metric="accuracy", bootstrap=bootstrap, undefined="base's accuracy is 0")


def _disagreement(a: AnyPredictions, b: AnyPredictions) -> Tally:
    same_rows(a, b)
    return mean_tally(classes_of(a).predicted != classes_of(b).predicted)


def _some(pairs: Sequence[Pair]) -> Sequence[Pair]:
    if not pairs:
        raise InputError("expected a pair of predictions for each task, found none")
    return pairs


def same_scores(one: AnyPredictions, other: AnyPredictions) -> float:
    """The share of rows whose scores are the same, bit for bit; 1 means that nothing was forgotten (P1 §5.2)."""
    same_rows(one, other)
    if isinstance(one, Completions) and isinstance(other, Completions):
        return float((one.losses == other.losses).mean())
    one, other = classes_of(one), classes_of(other)
    return float((one.scores.view(np.int32) == other.scores.view(np.int32)).all(axis=1).mean())


Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Stability:
    """Regions (and predictions) of several training samples, pair by pair; the matrices are symmetric with ones inside."""

    jaccard: Matrix
    common: int  # entries that all regions share
    agreement: Matrix | None = None
    all_agree: float | None = None  # the share of rows on which all predict the same class

    @property
    def mean_jaccard(self) -> float:
        """Over all pairs."""
        return _mean(self.jaccard)

    @property
    def mean_agreement(self) -> float | None:
        """The share of rows on which two of them predict the same class, over all pairs."""
        return None if self.agreement is None else _mean(self.agreement)


def stability(regions: Sequence[Region], *, predictions: Sequence[Predictions] = ()) -> Stability:
    """Compare the regions of several training samples of one task, and what the grafted models say on the same test rows.

    P1's Θ_n, the number of regions that a task can give, is small where regions overlap much.
    """
    if len(regions) < 2:
        raise InputError(f"stability compares at least two regions, found {len(regions)}")
    if predictions and len(predictions) != len(regions):
        raise InputError(
            f"expected one set of predictions for each of the {len(regions)} regions, found {len(predictions)}"
        )
    common = regions[0]
    for region in regions[1:]:
        common &= region
    jaccard = _pairwise(len(regions), lambda a, b: regions[a].jaccard(regions[b]))
    if not predictions:
        return Stability(jaccard, len(common))
    same_rows(*predictions)
    classes = np.stack([one.predicted for one in predictions])
    agreement = _pairwise(len(predictions), lambda a, b: float((classes[a] == classes[b]).mean()))
    return Stability(jaccard, len(common), agreement, float((classes == classes[0]).all(axis=0).mean()))


def _pairwise(count: int, compare: Callable[[int, int], float]) -> Matrix:
    """A symmetric comparison of all with all."""
    found = np.eye(count)
    for a, b in combinations(range(count), 2):
        found[a, b] = found[b, a] = compare(a, b)
    found.flags.writeable = False
    return found


def _mean(matrix: Matrix) -> float:
    """Over the pairs, each once."""
    return float(matrix[np.triu_indices(len(matrix), k=1)].mean())


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
