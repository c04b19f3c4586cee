"""Every metric three ways: by hand, by a loop over rows, and by scikit-learn or torchmetrics."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillgraft.errors import InputError
from skillgraft.measure import METRICS, Predictions, calibration_error
from skillgraft.measure.metrics import bin_of, metric_named

from .making import answering, predictions, random_predictions, with_probabilities

HAND = with_probabilities([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.3, 0.7]], [0, 1, 1, 0])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("score", 0.5),
        ("accuracy", 0.5),
        ("f1", 0.5),  # 1 hit, 2 answers, 2 rows
        ("balanced_accuracy", 0.5),
        ("nll", -(math.log(0.9) + math.log(0.4) + math.log(0.8) + math.log(0.3)) / 4),
        ("brier", 2 * (0.01 + 0.36 + 0.04 + 0.49) / 4),
        ("ece", (0.1 + 0.6 + 0.2 + 0.7) / 4),  # every row has a bin of its own
        ("majority", 0.5),
    ],
)
def test_by_hand(name: str, value: float) -> None:
    assert METRICS[name](HAND) == pytest.approx(value, abs=1e-6)


def test_ece_pools_the_rows_of_a_bin() -> None:
    answered = with_probabilities([[0.90, 0.10], [0.92, 0.08], [0.55, 0.45]], [0, 1, 1])
    # Of 15 bins, 0.90 and 0.92 share one: |1.82 − 1| of 3 rows; 0.55 stands alone: |0.55 − 0|.
    assert METRICS["ece"](answered) == pytest.approx((0.82 + 0.55) / 3, abs=1e-6)
    assert calibration_error(bins=1)(answered) == pytest.approx(abs(0.90 + 0.92 + 0.55 - 1) / 3, abs=1e-6)


def test_metrics_of_unequal_classes_by_hand() -> None:
    answered = answering([0, 0, 0, 0, 1, 2], [0, 0, 0, 1, 1, 0], classes=3)
    assert METRICS["accuracy"](answered) == pytest.approx(4 / 6)
    assert METRICS["balanced_accuracy"](answered) == pytest.approx((3 / 4 + 1 / 2) / 2)  # class 2 has no rows
    assert METRICS["majority"](answered) == pytest.approx(4 / 6)


def test_score_and_majority_follow_the_task_metric() -> None:
    labels, answers = [1, 1, 1, 0, 0, 0, 0], [1, 0, 0, 1, 0, 0, 0]
    by_accuracy, by_f1 = (answering(answers, labels, metric=metric) for metric in ("accuracy", "f1"))
    assert METRICS["score"](by_accuracy) == pytest.approx(4 / 7)
    assert METRICS["majority"](by_accuracy) == pytest.approx(4 / 7)
    assert METRICS["score"](by_f1) == pytest.approx(2 * 1 / (2 + 3))
    assert METRICS["majority"](by_f1) == pytest.approx(2 * 3 / (7 + 3))  # always answering 1


def test_f1_without_any_1_is_0() -> None:
    assert METRICS["f1"](answering([0, 0], [0, 0])) == 0
    assert METRICS["majority"](answering([0, 0], [0, 0], metric="f1")) == 0


def test_f1_of_three_classes_is_refused() -> None:
    with pytest.raises(InputError, match="needs 2 classes, found 3"):
        METRICS["f1"](random_predictions(5, 3))


def test_an_unknown_metric_is_refused_with_a_hint() -> None:
    with pytest.raises(InputError, match="unknown metric 'acuracy'; did you mean 'accuracy'"):
        metric_named("acuracy")


def test_no_bins_are_refused() -> None:
    with pytest.raises(InputError, match="bins must be at least 1, found 0"):
        calibration_error(bins=0)


def test_bins_are_closed_on_the_right() -> None:
    confidence = np.array([0.5, np.nextafter(0.5, 1), 1.0, np.nextafter(1.0, 0), 0.0])
    assert bin_of(confidence, 4).tolist() == [1, 2, 3, 3, 0]
    edges = np.linspace(0, 1, 16)
    assert bin_of(edges[1:], 15).tolist() == list(range(15))


@pytest.mark.parametrize("classes", [3, 5, 15])
def test_a_model_that_cannot_tell_is_exactly_on_an_edge(classes: int) -> None:
    answered = Predictions(np.full((1, classes), 0.7), [0], task="toy")
    assert bin_of(answered.confidence, 15).tolist() == [15 // classes - 1]


def torchmetrics_ece(answered: Predictions, *, bins: int = 15) -> float:
    import torch
    from torchmetrics.functional.classification import multiclass_calibration_error

    probabilities, labels = torch.tensor(answered.probabilities), torch.tensor(answered.labels)
    return float(
        multiclass_calibration_error(probabilities, labels, num_classes=answered.classes, n_bins=bins, norm="l1")
    )


def test_an_edge_is_where_torchmetrics_differs() -> None:
    # Confidence ½ is an edge of 4 bins: it joins 0.45 below it here, and 0.55 above it there.
    below, above = np.log([0.45, 0.3, 0.25]), np.log([0.55, 0.25, 0.2])
    on_edge = Predictions([[0.0, 0.0, -np.inf], below, above], [0, 1, 0], task="toy")
    assert on_edge.confidence[0] == 0.5
    assert calibration_error(bins=4)(on_edge) == pytest.approx((abs(0.5 + 0.45 - 1) + 0.45) / 3, abs=1e-6)
    assert torchmetrics_ece(on_edge, bins=4) == pytest.approx((0.45 + abs(0.5 + 0.55 - 2)) / 3, abs=1e-6)


def test_confidence_1_shares_the_last_bin() -> None:
    # torchmetrics gives confidence 1.0 a 16th bin, so that the two rows cannot make up for each other.
    answered = Predictions([[200.0, 0.0], [np.log(0.95), np.log(0.05)]], [1, 0], task="toy")
    assert answered.confidence[0] == 1.0
    assert METRICS["ece"](answered) == pytest.approx((1.95 - 1) / 2, abs=1e-6)
    assert torchmetrics_ece(answered) == pytest.approx((1.0 + 0.05) / 2, abs=1e-6)


def brute_ece(answered: Predictions, bins: int) -> float:
    total = 0.0
    for low in range(bins):
        rows = [i for i, c in enumerate(answered.confidence) if low / bins < c <= (low + 1) / bins]
        total += abs(sum(answered.confidence[i] for i in rows) - sum(answered.hits[i] for i in rows))
    return total / len(answered)


def brute_f1(answered: Predictions) -> float:
    pairs = list(zip(answered.predicted.tolist(), answered.labels.tolist(), strict=True))
    hits, wrong = pairs.count((1, 1)), pairs.count((1, 0)) + pairs.count((0, 1))
    return 2 * hits / (2 * hits + wrong) if hits else 0.0


def brute_brier(answered: Predictions) -> float:
    rows = zip(answered.probabilities, answered.labels, strict=True)
    return sum((p - (c == label)) ** 2 for row, label in rows for c, p in enumerate(row)) / len(answered)


BRUTE: dict[str, Callable[[Predictions], float]] = {
    "accuracy": lambda p: sum(a == b for a, b in zip(p.predicted, p.labels, strict=True)) / len(p),
    "ece": lambda p: brute_ece(p, 15),
    "nll": lambda p: -sum(row[label] for row, label in zip(p.log_probabilities, p.labels, strict=True)) / len(p),
    "brier": brute_brier,
    "majority": lambda p: max(p.labels.tolist().count(c) for c in range(p.classes)) / len(p),
}


@settings(max_examples=50, deadline=None)
@given(answered=predictions(classes=3, padded=True))
def test_equals_a_loop_over_rows(answered: Predictions) -> None:
    for name, brute in BRUTE.items():
        assert METRICS[name](answered) == pytest.approx(brute(answered), abs=1e-9), name


@settings(max_examples=50, deadline=None)
@given(answered=predictions(classes=2))
def test_f1_equals_a_loop_over_rows(answered: Predictions) -> None:
    assert METRICS["f1"](answered) == pytest.approx(brute_f1(answered))


@pytest.mark.parametrize("seed", range(4))
def test_equals_scikit_learn(seed: int) -> None:
    from sklearn import metrics

    two, four = random_predictions(97, 2, seed=seed), random_predictions(113, 4, seed=seed)
    assert METRICS["f1"](two) == pytest.approx(metrics.f1_score(two.labels, two.predicted))
    for answered in (two, four):
        labels = list(range(answered.classes))
        measured = {
            "accuracy": metrics.accuracy_score(answered.labels, answered.predicted),
            "balanced_accuracy": metrics.balanced_accuracy_score(answered.labels, answered.predicted),
            "nll": metrics.log_loss(answered.labels, answered.probabilities, labels=labels),
            "brier": metrics.brier_score_loss(
                answered.labels, answered.probabilities, labels=labels, scale_by_half=False
            ),
        }
        for name, value in measured.items():
            assert METRICS[name](answered) == pytest.approx(value), name


@pytest.mark.parametrize("bins", [1, 10, 15, 20])
def test_ece_equals_torchmetrics_away_from_edges(bins: int) -> None:
    for answered in (random_predictions(200, 2), random_predictions(200, 5, seed=1)):
        assert calibration_error(bins)(answered) == pytest.approx(torchmetrics_ece(answered, bins=bins), abs=1e-6)


@settings(max_examples=50, deadline=None)
@given(answered=predictions(padded=True), bins=st.integers(1, 40))
def test_ranges(answered: Predictions, bins: int) -> None:
    assert 0 <= calibration_error(bins)(answered) <= 1 + 1e-12
    assert 0 <= METRICS["brier"](answered) <= 2 + 1e-12
    assert METRICS["nll"](answered) >= 0
    assert 0 < METRICS["majority"](answered) <= 1 or answered.metric == "f1"
    assert 0 <= METRICS["balanced_accuracy"](answered) <= 1
