"""The metrics, one table: `METRICS[name](predictions)` is a float, all of them fractions except NLL and
perplexity. A row of the table is about classes, about completions, or about both; `merit` is the score, more being better.

Each metric here is a function of the *column sums* of a small table with one line per row of the split (accuracy: one
column of hits; ECE: one column for each bin). So one formula gives the value and, from the sums of resampled rows, the
whole bootstrap in one matrix product. scikit-learn and torchmetrics are the judges of these formulas in the tests.

    >>> predictions = Predictions([[2.0, 0.0], [0.0, 1.0]], [0, 0], task="sst2")
    >>> METRICS["accuracy"](predictions), round(calibration_error(bins=10)(predictions), 3)
    (0.5, 0.425)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from skillgraft.errors import InputError, did_you_mean
from skillgraft.predictions.completions import Completions
from skillgraft.predictions.predictions import AnyPredictions, FloatArray, Predictions, classes_of

ECE_BINS = 15


@dataclass(frozen=True, eq=False)
class Tally:
    """A number that depends on the rows only through sums: `value(column sums, number of rows)`.

    `columns` is (rows, k); `value` takes sums of shape (…, k) and gives numbers of shape (…).
    """

    columns: FloatArray
    value: Callable[[FloatArray, int], FloatArray]

    def __len__(self) -> int:
        return len(self.columns)

    def at(self, sums: FloatArray) -> FloatArray:
        """The number for each vector of sums over as many rows as the tally has."""
        return self.value(sums, len(self))

    def total(self) -> float:
        """The number for the rows as they are."""
        return float(self.at(self.columns.sum(axis=0)))


@dataclass(frozen=True)
class Metric:
    """A function from predictions to a number which the bootstrap can take apart by rows: of classes, of completions, of both."""

    of_classes: Callable[[Predictions], Tally] | None = None
    of_completions: Callable[[Completions], Tally] | None = None

    def tally(self, predictions: AnyPredictions) -> Tally:
        if isinstance(predictions, Completions):
            if self.of_completions is None:
                classes_of(predictions)  # refused in words
                raise AssertionError
            return self.of_completions(predictions)
        if self.of_classes is None:
            raise InputError(
                f"task {predictions.task!r} has classes: this is a metric of completions; ask for accuracy"
            )
        return self.of_classes(predictions)

    def __call__(self, predictions: AnyPredictions) -> float:
        return self.tally(predictions).total()


def mean_tally(column: npt.ArrayLike) -> Tally:
    """The mean of one number per row."""
    return Tally(np.asarray(column, dtype=np.float64)[:, None], lambda sums, rows: sums[..., 0] / rows)


def bin_of(confidence: FloatArray, bins: int) -> npt.NDArray[np.intp]:
    """The equal-width bin of each confidence: bin m is (m/bins, (m+1)/bins], so 1.0 is in the last one.

    This is how the implementation P1 uses does it (A.3 writes the bins closed on the left, which leaves out 1.0).
    torchmetrics closes them on the left and gives confidence 1.0 a bin of its own; the values differ only on an edge.
    """
    return np.maximum(np.searchsorted(bin_edges(bins), confidence, side="left") - 1, 0)


def bin_edges(bins: int) -> FloatArray:
    """The bins + 1 equally spaced edges from 0 to 1."""
    if bins < 1:
        raise InputError(f"bins must be at least 1, found {bins}")
    return np.linspace(0.0, 1.0, bins + 1)


def calibration_error(bins: int = ECE_BINS) -> Metric:
    """The metric ECE (P1 A.3, eq. 6) with this many bins: the mean of |confidence − accuracy| over bins, by size."""
    bin_edges(bins)
    return Metric(partial(_calibration_error, bins=bins))


def _accuracy(predictions: Predictions) -> Tally:
    return mean_tally(predictions.hits)


def _f1(predictions: Predictions) -> Tally:
    """F1 of label 1: 2·hits / (answered 1 + truly 1), and 0 when nothing is 1."""
    if predictions.classes != 2:
        raise InputError(f"F1 of label 1 needs 2 classes, found {predictions.classes}; use balanced_accuracy")
    answered, truly = predictions.predicted == 1, predictions.labels == 1
    return Tally(_columns(answered & truly, answered, truly), lambda sums, _: _f1_of(*np.moveaxis(sums, -1, 0)))


def _f1_of(hits: FloatArray, answered: FloatArray, truly: FloatArray) -> FloatArray:
    return 2 * hits / np.maximum(answered + truly, 1)


def _balanced_accuracy(predictions: Predictions) -> Tally:
    """The mean over classes of the share of their rows that is right; classes without rows do not count."""
    truly = _one_hot(predictions.labels, predictions.classes)
    return Tally(np.hstack([truly * predictions.hits[:, None], truly]), _mean_recall)


def _mean_recall(sums: FloatArray, _rows: int) -> FloatArray:
    hits, truly = np.split(sums, 2, axis=-1)
    recalls: FloatArray = (hits / np.maximum(truly, 1)).sum(axis=-1) / (truly > 0).sum(axis=-1)
    return recalls


def _calibration_error(predictions: Predictions, *, bins: int) -> Tally:
    gaps = predictions.confidence - predictions.hits
    columns = _one_hot(bin_of(predictions.confidence, bins), bins) * gaps[:, None]
    return Tally(columns, lambda sums, rows: np.abs(sums).sum(axis=-1) / rows)


def _nll(predictions: Predictions) -> Tally:
    """The mean of −log p(true label), in nats."""
    return mean_tally(-predictions.log_probabilities[np.arange(len(predictions)), predictions.labels])


def _brier(predictions: Predictions) -> Tally:
    """The mean squared distance of the probabilities from the truth, summed over classes: from 0 to 2."""
    return mean_tally(
        ((predictions.probabilities - _one_hot(predictions.labels, predictions.classes)) ** 2).sum(axis=1)
    )


def _majority(predictions: Predictions) -> Tally:
    """What one constant answer scores on these rows: the most frequent label, or always 1 where the metric is F1."""
    return Tally(_one_hot(predictions.labels, predictions.classes), _MAJORITY[predictions.metric])


# Metric of the task → score of the constant answer, from how often each label occurs.
_MAJORITY: Mapping[str, Callable[[FloatArray, int], FloatArray]] = {
    "accuracy": lambda counts, rows: counts.max(axis=-1) / rows,
    "f1": lambda counts, rows: _f1_of(counts[..., 1], np.full_like(counts[..., 1], rows), counts[..., 1]),
}


def _score(predictions: Predictions) -> Tally:
    """The task's own metric."""
    return METRICS[predictions.metric].tally(predictions)


def _columns(*columns: npt.NDArray[np.bool_]) -> FloatArray:
    return np.stack(columns, axis=1).astype(np.float64)


def _one_hot(index: npt.NDArray[np.integer], size: int) -> FloatArray:
    return np.asarray(np.eye(size)[index], dtype=np.float64)


def _nll_of_completions(found: Completions) -> Tally:
    """Nats per token of the true completions."""
    return Tally(np.stack([found.losses, found.tokens], axis=1), lambda sums, _: sums[..., 0] / sums[..., 1])


def _perplexity(found: Completions) -> Tally:
    nll = _nll_of_completions(found)
    return Tally(nll.columns, lambda sums, rows: np.exp(nll.value(sums, rows)))


def _token_accuracy(found: Completions) -> Tally:
    """The share of the true completions' tokens that were the likeliest next ones."""
    return Tally(
        np.stack([found.hits, found.tokens], axis=1).astype(float), lambda sums, _: sums[..., 0] / sums[..., 1]
    )


def _exact_match(found: Completions) -> Tally:
    """The share of rows whose answer is the true completion, spaces around it aside."""
    return mean_tally([one.strip() == true.strip() for one, true in _answered(found)])


def _contains(found: Completions) -> Tally:
    """The share of rows whose answer holds the true completion."""
    return mean_tally([true.strip() in one for one, true in _answered(found)])


def _of_callable(found: Completions) -> Tally:
    """The mean of what the task's own callable gave."""
    _answered(found)
    return mean_tally(found.values)


def _answered(found: Completions) -> list[tuple[str, str]]:
    if not found.texts:
        raise InputError(
            f"task {found.task!r}: nothing was generated, which this metric needs; evaluate with generation"
        )
    return list(zip(found.texts, found.references, strict=True))


def _score_of_completions(found: Completions) -> Tally:
    """The task's own metric."""
    return METRICS[found.metric].tally(found)


def _merit_of_completions(found: Completions) -> Tally:
    """The score such that more is better."""
    tally = _score_of_completions(found)
    return Tally(tally.columns, lambda sums, rows: -tally.value(sums, rows)) if is_loss(found) else tally


LOSSES = ("nll", "perplexity")  # less is better


def is_loss(predictions: AnyPredictions) -> bool:
    """Whether less of the task's own metric is better; then there is no share kept, only a relative gain."""
    return predictions.metric in LOSSES


METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "score": Metric(_score, _score_of_completions),
        "merit": Metric(_score, _merit_of_completions),
        "accuracy": Metric(_accuracy),
        "right": Metric(_accuracy, _token_accuracy),
        "f1": Metric(_f1),
        "balanced_accuracy": Metric(_balanced_accuracy),
        "ece": calibration_error(),
        "nll": Metric(_nll, _nll_of_completions),
        "brier": Metric(_brier),
        "majority": Metric(_majority),
        "perplexity": Metric(of_completions=_perplexity),
        "token_accuracy": Metric(of_completions=_token_accuracy),
        "exact_match": Metric(of_completions=_exact_match),
        "contains": Metric(of_completions=_contains),
        "callable": Metric(of_completions=_of_callable),
    }
)


def metric_named(metric: str | Metric) -> Metric:
    """A metric by its name in the table, or the metric itself."""
    if isinstance(metric, Metric):
        return metric
    if metric not in METRICS:
        raise InputError(f"unknown metric {metric!r}; {did_you_mean(metric, METRICS)}")
    return METRICS[metric]
