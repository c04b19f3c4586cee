from __future__ import annotations

import numpy as np
import pytest

from skillgraft.errors import InputError
from skillgraft.measure import METRICS, Predictions, Shift, at_shift, fit_shift, shifted

from .making import random_predictions


def leaning(rows: int = 400, classes: int = 3, *, seed: int = 0) -> Predictions:
    """Scores that tell the classes apart and lean towards the last one."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(classes, size=rows)
    scores = draw.normal(size=(rows, classes)) + 2.0 * np.eye(classes)[labels] + 3.0 * np.eye(classes)[-1]
    return Predictions(scores, labels, task="toy")


def test_a_model_that_leans_is_set_right() -> None:
    validation, test = leaning(seed=0), leaning(seed=1)
    accuracy = METRICS["accuracy"]
    assert accuracy(test) < 0.6 < 0.75 < accuracy(shifted(test, validation))
    assert fit_shift(validation).offsets[2] - fit_shift(validation).offsets[1] < -2


def test_two_classes_are_logistic_regression() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    answers = leaning(classes=2)
    gaps = (answers.scores[:, 1] - answers.scores[:, 0])[:, None].astype(np.float64)
    fitted = linear_model.LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(gaps, answers.labels)
    shift = fit_shift(answers)
    assert 1 / shift.temperature == pytest.approx(float(fitted.coef_[0, 0]), rel=1e-4)
    assert shift.offsets[1] == pytest.approx(float(fitted.intercept_[0]), rel=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_no_shift_nearby_fits_better(seed: int) -> None:
    answers, nll = random_predictions(60, 4, seed=seed), METRICS["nll"]
    best = fit_shift(answers)
    least = nll(at_shift(answers, best))
    for change in np.random.default_rng(seed).normal(scale=0.05, size=(50, 4)):
        offsets = tuple(np.add(best.offsets, [0.0, *change[1:]]))
        temperature = min(best.temperature * float(np.exp(change[0])), 100.0)
        assert nll(at_shift(answers, Shift(temperature, offsets))) >= least - 1e-6


def test_scores_that_point_the_wrong_way_are_not_turned_round() -> None:
    answers = leaning(classes=2)
    wrong = Predictions(answers.scores, 1 - answers.labels, task="toy")
    assert fit_shift(wrong).temperature == pytest.approx(100.0)


def test_shift_by_hand() -> None:
    answers = Predictions([[2.0, 0.0, -np.inf]], [0], task="toy", made_by={"model": "m"})
    moved = at_shift(answers, Shift(2.0, (0.0, 1.5, 3.0)))
    assert moved.scores.tolist() == [[1.0, 1.5, -np.inf]]
    assert moved.made_by == {"model": "m", "shift": "/ 2 + 0 1.5 3"}


def test_missing_choices_take_no_part() -> None:
    short = leaning(classes=2)
    padded = Predictions(np.pad(short.scores, ((0, 0), (0, 1)), constant_values=-np.inf), short.labels, task="toy")
    assert fit_shift(padded).offsets[:2] == pytest.approx(fit_shift(short).offsets, abs=1e-4)


def test_a_class_without_validation_rows_stays_finite() -> None:
    answers = Predictions([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]] * 4, [0, 1] * 4, task="toy")
    assert -100.0 <= fit_shift(answers).offsets[2] < 0


def test_shifts_of_other_tasks_and_other_classes_are_refused() -> None:
    answers = leaning()
    other = Predictions(answers.scores, answers.labels, task="other")
    with pytest.raises(InputError, match="expected validation rows of toy to fit a shift, found other's"):
        shifted(answers, other)
    with pytest.raises(InputError, match="as the 2 offsets of the shift, found 3 classes of toy"):
        at_shift(answers, Shift(1.0, (0.0, 1.0)))
