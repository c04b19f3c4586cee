from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillgraft.errors import InputError
from skillgraft.measure import (
    METRICS,
    Predictions,
    at_temperature,
    calibration_error,
    confidence_histogram,
    fit_temperature,
    reliability,
    temperature_scaled,
)
from skillgraft.measure.calibration import TEMPERATURES

from .making import predictions, random_predictions, with_probabilities


@settings(max_examples=60, deadline=None)
@given(answers=predictions(padded=True), temperature=st.floats(0.01, 100))
def test_temperature_never_changes_the_answer(answers: Predictions, temperature: float) -> None:
    assert np.array_equal(at_temperature(answers, temperature).predicted, answers.predicted)


def test_temperature_keeps_the_answer_where_rounding_makes_a_tie() -> None:
    one = np.float32(1)
    scores = np.stack([[one, np.nextafter(one, np.float32(2))]] * 2 + [[np.float32(0), np.float32(1e-45)]] * 2)
    answers = Predictions(scores, [1, 1, 1, 1], task="toy")
    for temperature in np.linspace(1.01, 50, 200):
        assert at_temperature(answers, float(temperature)).predicted.tolist() == [1, 1, 1, 1]


def test_temperature_by_hand() -> None:
    answers = Predictions([[2.0, 0.0, -np.inf]], [0], task="toy", made_by={"model": "m"})
    halved = at_temperature(answers, 2.0)
    assert halved.scores.tolist() == [[1.0, 0.0, -np.inf]]
    assert halved.made_by == {"model": "m", "temperature": "2.0"}
    assert at_temperature(halved, 0.5).made_by["temperature"] == "2.0 * 0.5"
    assert at_temperature(answers, 1.0).scores.tolist() == answers.scores.tolist()


@pytest.mark.parametrize("wrong", [0.0, -1.0, np.inf, np.nan])
def test_wrong_temperatures_are_refused(wrong: float) -> None:
    with pytest.raises(InputError, match="temperature must be a finite number above 0"):
        at_temperature(random_predictions(2, 2), wrong)


def test_scores_beyond_float32_are_refused() -> None:
    with pytest.raises(InputError, match=r"a score of \+inf"):
        at_temperature(Predictions([[1e38, 0.0]], [0], task="toy"), 0.01)


def test_fitted_temperature_by_hand() -> None:
    # Logit gap g, right 3 times of 4: confidence ¾ needs g / T = log 3.
    answers = Predictions([[0.0, 5.0]] * 4, [1, 1, 1, 0], task="toy")
    assert fit_temperature(answers) == pytest.approx(5 / np.log(3))


@pytest.mark.parametrize("seed", range(3))
def test_fitted_temperature_is_the_best_on_a_grid(seed: int) -> None:
    answers = at_temperature(random_predictions(60, 3, seed=seed), 0.3)
    fitted = fit_temperature(answers)
    best = METRICS["nll"](at_temperature(answers, fitted))
    assert all(best <= METRICS["nll"](at_temperature(answers, t)) + 1e-9 for t in fitted * np.geomspace(0.5, 2, 41))


def test_fitting_undoes_a_temperature() -> None:
    answers = random_predictions(80, 3)
    assert fit_temperature(at_temperature(answers, 0.25)) == pytest.approx(4 * fit_temperature(answers), rel=1e-4)


def test_fitting_ignores_missing_choices() -> None:
    short = Predictions([[0.0, 5.0]] * 4, [1, 1, 1, 0], task="toy")
    padded = Predictions([[0.0, 5.0, -np.inf]] * 4, [1, 1, 1, 0], task="toy")
    assert fit_temperature(padded) == pytest.approx(fit_temperature(short))


def test_fitting_stops_where_there_is_no_best() -> None:
    always_right, never_right = (Predictions([[4.0, 0.0]] * 3, [label] * 3, task="toy") for label in (0, 1))
    assert fit_temperature(always_right) == TEMPERATURES[0]
    assert fit_temperature(never_right) == TEMPERATURES[1]


def test_rows_that_are_all_right_ask_for_the_lowest_temperature_despite_rounding() -> None:
    for seed in range(20):
        answers = random_predictions(50, 4, seed=seed)
        right = Predictions(answers.scores, answers.predicted, task="toy")
        assert fit_temperature(right) == TEMPERATURES[0]


def test_temperature_scaling_calibrates_an_over_confident_model() -> None:
    test, validation = (at_temperature(random_predictions(2000, 2, seed=seed), 0.05) for seed in (0, 1))
    scaled = temperature_scaled(test, validation)
    assert METRICS["accuracy"](scaled) == METRICS["accuracy"](test)
    assert METRICS["ece"](test) > 0.1
    assert METRICS["ece"](scaled) < 0.03


def test_a_temperature_of_another_task_is_refused() -> None:
    with pytest.raises(InputError, match=r"validation rows of sst2 .*found rows of qnli"):
        temperature_scaled(random_predictions(4, 2, task="sst2"), random_predictions(4, 2, task="qnli"))


def test_reliability_by_hand() -> None:
    answers = with_probabilities([[0.8, 0.2], [0.9, 0.1], [0.4, 0.6]], [0, 1, 1])
    found = reliability(answers, bins=4)
    assert found.edges == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert found.counts == (0, 0, 1, 2)
    assert found.confidence == (None, None, pytest.approx(0.6), pytest.approx(0.85))
    assert found.accuracy == (None, None, 1.0, 0.5)


@settings(max_examples=40, deadline=None)
@given(answers=predictions(padded=True), bins=st.integers(1, 30))
def test_ece_is_the_area_of_the_reliability_diagram(answers: Predictions, bins: int) -> None:
    found = reliability(answers, bins=bins)
    bars = zip(found.counts, found.confidence, found.accuracy, strict=True)
    area = sum(count * abs(c - a) for count, c, a in bars if count) / len(answers)
    assert area == pytest.approx(calibration_error(bins)(answers), abs=1e-12)
    assert sum(found.counts) == len(answers)


def test_confidence_histogram_by_hand() -> None:
    answers = Predictions([[200.0, 0.0], [0.0, 0.0], [0.0, 0.1]], [0, 0, 0], task="toy")
    found = confidence_histogram(answers, bins=2)
    assert (found.edges, found.counts) == ((0.0, 0.5, 1.0), (1, 2))  # exactly ½ is in the lower bin
