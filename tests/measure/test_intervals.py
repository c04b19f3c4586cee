from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillgraft.errors import InputError
from skillgraft.measure import METRICS, Bootstrap, Estimate, Predictions, interval, paired_difference, paired_ratio
from skillgraft.measure.intervals import estimate, quotient
from skillgraft.measure.metrics import mean_tally

from .making import answering, predictions, random_predictions


def taken(answers: Predictions, rows: np.ndarray) -> Predictions:
    return Predictions(answers.scores[rows], answers.labels[rows], task=answers.task, metric=answers.metric)


def resampled_rows(rows: int, bootstrap: Bootstrap) -> np.ndarray:
    """Which rows each resample holds, found by measuring the mean of a one-hot column for each row."""
    tallies = [mean_tally(np.arange(rows) == row) for row in range(rows)]
    counts = np.rint(bootstrap.draws(tallies) * rows).astype(int).T
    return np.array([np.repeat(np.arange(rows), count) for count in counts])


@pytest.mark.parametrize("classes", [2, 3])
def test_draws_are_the_metric_of_the_resampled_rows(classes: int) -> None:
    answers = random_predictions(23, classes, metric="f1" if classes == 2 else "accuracy")
    bootstrap = Bootstrap(resamples=40, seed=3)
    rows = resampled_rows(23, bootstrap)
    assert rows.shape == (40, 23)
    for name, metric in METRICS.items():
        if metric.of_classes is not None and (name != "f1" or classes == 2):
            brute = [metric(taken(answers, each)) for each in rows]
            np.testing.assert_allclose(bootstrap.draws([metric.tally(answers)])[0], brute, err_msg=name)


def test_draws_do_not_depend_on_what_is_drawn_with_them() -> None:
    answers = random_predictions(50, 3)
    names, bootstrap = ["ece", "accuracy", "balanced_accuracy"], Bootstrap(resamples=30)
    together = bootstrap.draws([METRICS[name].tally(answers) for name in names])
    for draws, name in zip(together, names, strict=True):
        np.testing.assert_allclose(draws, bootstrap.draws([METRICS[name].tally(answers)])[0], rtol=1e-12)


def test_rows_are_drawn_uniformly_with_replacement() -> None:
    rows = resampled_rows(10, Bootstrap(resamples=4000))
    shares = np.bincount(rows.ravel(), minlength=10) / rows.size
    np.testing.assert_allclose(shares, 0.1, atol=0.01)
    distinct = np.mean([len(set(each)) for each in rows]) / 10
    assert distinct == pytest.approx(1 - 0.9**10, abs=0.01)


def test_groups_and_seeds_draw_other_rows() -> None:
    tally = METRICS["nll"].tally(random_predictions(40, 2))
    first = Bootstrap(seed=1).draws([tally])
    assert np.array_equal(first, Bootstrap(seed=1).draws([tally]))
    assert not np.array_equal(first, Bootstrap(seed=2).draws([tally]))
    assert not np.array_equal(first, Bootstrap(seed=1).draws([tally], group=1))


def test_interval_of_accuracy_is_close_to_the_normal_one() -> None:
    answers = answering([1] * 800 + [0] * 200, [1] * 1000)
    found = interval(answers, metric="accuracy", bootstrap=Bootstrap(resamples=4000))
    half = 1.96 * np.sqrt(0.8 * 0.2 / 1000)
    assert found.value == pytest.approx(0.8)
    assert (found.low, found.high) == (pytest.approx(0.8 - half, abs=0.003), pytest.approx(0.8 + half, abs=0.003))


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    generator, covered = np.random.default_rng(0), 0
    for trial in range(200):
        answers = answering((generator.random(150) < 0.7).astype(int), [1] * 150)
        found = interval(answers, metric="accuracy", bootstrap=Bootstrap(resamples=400, seed=trial, level=0.9))
        covered += found.low <= 0.7 <= found.high
    assert 0.84 <= covered / 200 <= 0.96


@settings(max_examples=40, deadline=None)
@given(answers=predictions(padded=True), seed=st.integers(0, 2**32))
def test_intervals_of_means_hold_their_value(answers: Predictions, seed: int) -> None:
    # On a handful of rows a percentile interval may be a single point at an end; half the rows right is symmetric.
    half = answering([0, 1] * len(answers), [0] * (2 * len(answers)))
    found = interval(half, metric="accuracy", bootstrap=Bootstrap(resamples=300, seed=seed))
    assert found.low <= found.value <= found.high
    for name in ("accuracy", "ece", "brier", "nll"):
        ends = interval(answers, metric=name, bootstrap=Bootstrap(resamples=50, seed=seed))
        assert ends.low <= ends.high


def test_an_interval_holds_exactly_its_level_of_draws() -> None:
    bootstrap = Bootstrap(resamples=1000)
    draws = np.random.default_rng(0).permutation(1000).astype(float)
    assert bootstrap.ends(draws) == (25.0, 974.0)


def test_undefined_draws_count_against_both_ends() -> None:
    bootstrap = Bootstrap(resamples=1000)
    draws = np.arange(1000.0)
    draws[500:510] = np.nan
    assert bootstrap.ends(draws) == (15.0, 984.0)
    draws[500:526] = np.nan
    assert bootstrap.ends(draws) == (-np.inf, np.inf)


def test_quotient_is_nan_unless_the_denominator_is_positive() -> None:
    np.testing.assert_array_equal(quotient(np.ones(3), np.array([2.0, 0.0, -1.0])), [0.5, np.nan, np.nan])


def test_pairs_are_resampled_together() -> None:
    a = random_predictions(60, 2)
    assert paired_difference(a, a) == Estimate(0.0, 0.0, 0.0)
    assert paired_ratio(a, a) == Estimate(1.0, 1.0, 1.0)


def test_paired_difference_and_ratio_by_hand() -> None:
    labels = [0] * 10
    a, b = answering([0] * 8 + [1] * 2, labels), answering([0] * 5 + [1] * 5, labels)
    difference, ratio = paired_difference(a, b), paired_ratio(a, b)
    assert difference.value == pytest.approx(0.3)
    assert 0 <= difference.low < 0.3 < difference.high <= 1
    assert ratio.value == pytest.approx(1.6)
    assert 1 <= ratio.low < 1.6 < ratio.high


def test_a_ratio_to_nothing_has_a_reason() -> None:
    a, never = answering([0, 0], [0, 0]), answering([1, 1], [0, 0])
    assert paired_ratio(a, never) == Estimate(None, reason="the denominator is 0")


def test_a_ratio_that_is_often_undefined_has_no_interval() -> None:
    labels = [0] * 4
    rare = answering([0, 1, 1, 1], labels)  # no hit at all in (3/4)^4 of the resamples
    found = paired_ratio(answering([0] * 4, labels), rare)
    assert (found.value, found.low, found.high) == (4.0, None, None)
    assert found.reason.startswith("no interval: the denominator is 0 in ")
    assert found.reason.endswith(" of 1000 resamples")
    assert found.as_json() == {"value": 4.0, "low": None, "high": None, "reason": found.reason}


def test_groups_are_independent() -> None:
    column = np.random.default_rng(0).random(100)
    bootstrap = Bootstrap()
    together = estimate(lambda n: n[0] - n[1], [mean_tally(column), mean_tally(column)], bootstrap=bootstrap)
    apart = estimate(lambda n: n[0] - n[1], [mean_tally(column)], [mean_tally(column)], bootstrap=bootstrap)
    assert (together.low, together.high) == (0, 0)
    assert apart.low < -0.05 < 0.05 < apart.high


@pytest.mark.parametrize("wrong", [{"resamples": 0}, {"seed": -1}, {"level": 1.0}, {"level": 0.0}])
def test_wrong_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match="expected resamples ≥ 1, seed ≥ 0 and a level between 0 and 1"):
        Bootstrap(**wrong)  # type: ignore[arg-type]


def test_a_thousand_resamples_of_five_thousand_rows_are_fast() -> None:
    answers = random_predictions(5000, 2)
    interval(answers)  # warm up
    start = time.process_time()
    for name in ("accuracy", "ece", "f1"):
        interval(answers, metric=name)
    assert time.process_time() - start < 2.0  # about 0.15 s on a free core
