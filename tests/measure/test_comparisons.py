from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings

from skillgraft.errors import InputError
from skillgraft.measure import (
    Bootstrap,
    Estimate,
    Predictions,
    agreement,
    disentanglement_error,
    function_localisation,
    normalised_accuracy,
    relative_gain,
    share_kept,
    train_test_gap,
)

from .making import answering, predictions, random_predictions

QUICK = Bootstrap(resamples=50)
TRUTH = [0] * 100


def right_on(rows: int, *, of: int = 100, task: str = "toy", metric: str = "accuracy") -> Predictions:
    """Right on the first rows and wrong on the others; the truth is always 0."""
    return answering([0] * rows + [1] * (of - rows), [0] * of, task=task, metric=metric)


@settings(max_examples=30, deadline=None)
@given(answers=predictions(padded=True))
def test_agreement_with_itself_is_1(answers: Predictions) -> None:
    assert agreement(answers, answers, bootstrap=QUICK) == Estimate(1.0, 1.0, 1.0)
    assert disentanglement_error([(answers, answers)] * 2, bootstrap=QUICK) == Estimate(0.0, 0.0, 0.0)


def test_agreement_counts_answers_not_hits() -> None:
    a, b = answering([0, 1, 2, 2], [0, 0, 0, 0], classes=3), answering([0, 1, 1, 2], [0, 0, 0, 0], classes=3)
    assert agreement(a, b).value == agreement(b, a).value == 0.75


def test_share_kept_by_hand() -> None:
    found = share_kept(right_on(76), right_on(80))
    assert found.value == pytest.approx(0.95)
    assert 0.85 < found.low < 0.95 < found.high <= 1


def test_share_kept_is_of_the_task_metric() -> None:
    labels = [1, 1, 1, 0]
    graft = answering([1, 0, 0, 0], labels, metric="f1")  # F1 = 2 / (1 + 3)
    tuned = answering([1, 1, 0, 0], labels, metric="f1")  # F1 = 4 / (2 + 3)
    assert share_kept(graft, tuned).value == pytest.approx(0.5 / 0.8)


def test_share_kept_of_nothing_has_a_reason() -> None:
    assert share_kept(right_on(10), right_on(0)) == Estimate(None, reason="tuned's score is 0")


def test_relative_gain_by_hand() -> None:
    found = relative_gain(right_on(75), right_on(80), base=right_on(60))
    assert found.value == pytest.approx(0.75)
    assert found.low < 0.75 < found.high <= 1
    assert found.reason == ""


def test_a_graft_below_base_has_a_negative_gain() -> None:
    assert relative_gain(right_on(50), right_on(80), base=right_on(60)).value == pytest.approx(-0.5)


def test_too_small_a_gain_is_no_skill() -> None:
    found = relative_gain(right_on(81), right_on(82), base=right_on(80))
    assert found == Estimate(None, reason="no skill to localise: tuned − base is 2.0 points, below 3")
    assert relative_gain(right_on(81), right_on(82), base=right_on(80), least=0.02).value == pytest.approx(0.5)
    assert relative_gain(right_on(70), right_on(60), base=right_on(80)).value is None


def test_exactly_three_points_are_a_skill_whatever_the_rounding() -> None:
    assert 0.83 - 0.80 < 0.03  # the trap
    for base in range(97):
        found = relative_gain(right_on(base + 3), right_on(base + 3), base=right_on(base), bootstrap=QUICK)
        assert found.value == pytest.approx(1.0)


def test_a_gain_that_may_be_none_has_no_interval() -> None:
    # Tuned is right on the rows that base gets wrong and wrong on many that base gets right: 3 points of pure noise.
    base, tuned = answering([0] * 50 + [1] * 50, TRUTH), answering([1] * 47 + [0] * 53, TRUTH)
    found = relative_gain(tuned, tuned, base=base)
    assert (found.value, found.low, found.high) == (pytest.approx(1.0), None, None)
    assert "no interval: tuned − base is not above 0 in " in found.reason


def test_normalised_accuracy_is_the_mean_over_tasks() -> None:
    pairs = [(right_on(40, task="a"), right_on(80, task="a")), (right_on(90, task="b"), right_on(90, task="b"))]
    found = normalised_accuracy(pairs)
    assert found.value == pytest.approx((0.5 + 1.0) / 2)
    assert found.low < 0.75 < found.high
    assert normalised_accuracy(pairs[:1]).value == pytest.approx(0.5)


def test_normalised_accuracy_uses_accuracy_for_f1_tasks_too() -> None:
    pair = (right_on(40, metric="f1"), right_on(80, metric="f1"))
    assert normalised_accuracy([pair]).value == pytest.approx(0.5)


def test_normalised_accuracy_needs_a_single_task_model_that_knows_something() -> None:
    pairs = [(right_on(5), right_on(10)), (right_on(5), right_on(0))]
    assert normalised_accuracy(pairs) == Estimate(None, reason="a single-task accuracy is 0")


def test_train_test_gap_by_hand() -> None:
    found = train_test_gap(right_on(19, of=20), right_on(70))
    assert found.value == pytest.approx(0.25)
    assert found.low < 0.25 < found.high


def test_train_test_gap_needs_one_task() -> None:
    with pytest.raises(InputError, match=r"two splits of one task, found a \(accuracy\) and b \(accuracy\)"):
        train_test_gap(right_on(1, task="a"), right_on(1, task="b"))


def test_disentanglement_error_by_hand() -> None:
    first = (answering([0, 1, 0, 1], [0] * 4, task="a"), answering([0, 0, 0, 1], [0] * 4, task="a"))  # ¼ change
    second = (answering([2, 2], [0, 1], classes=3, task="b"), answering([2, 0], [0, 1], classes=3, task="b"))  # ½
    assert disentanglement_error([first, second]).value == pytest.approx(0.75)


def test_disentanglement_error_reaches_the_number_of_tasks() -> None:
    apart = (right_on(0), right_on(100))
    assert disentanglement_error([apart, apart, apart], bootstrap=QUICK) == Estimate(3.0, 3.0, 3.0)


def test_function_localisation_is_accuracy_over_base() -> None:
    assert function_localisation(right_on(60), right_on(50)).value == pytest.approx(1.2)
    assert function_localisation(right_on(5), right_on(0)).reason == "base's accuracy is 0"


@pytest.mark.parametrize("compare", [normalised_accuracy, disentanglement_error])
def test_no_pairs_are_refused(compare: Callable[..., Estimate]) -> None:
    with pytest.raises(InputError, match="a pair of predictions for each task, found none"):
        compare([])


@pytest.mark.parametrize(
    "compare",
    [
        agreement,
        share_kept,
        function_localisation,
        lambda a, b: relative_gain(a, a, base=b),
        lambda a, b: relative_gain(a, b, base=a),
        lambda a, b: normalised_accuracy([(a, b)]),
        lambda a, b: disentanglement_error([(a, b)]),
    ],
)
def test_predictions_of_other_rows_are_refused(compare: Callable[[Predictions, Predictions], Estimate]) -> None:
    with pytest.raises(InputError, match=r"same rows in the same order, but .* labels differ"):
        compare(random_predictions(50, 2, seed=0), random_predictions(50, 2, seed=1))
