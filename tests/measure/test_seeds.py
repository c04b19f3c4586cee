"""Means over seeds against loops over seeds and rows; and what a handful of seeds may say."""

from __future__ import annotations

import doctest
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillgraft.errors import InputError
from skillgraft.measure import (
    METRICS,
    Bootstrap,
    Estimate,
    Predictions,
    SeedMean,
    interval,
    intervals,
    over_seeds,
    paired_ratio,
    share_kept,
)
from skillgraft.measure.evaluate import Evaluation

from .making import answering, predictions, random_predictions
from .test_intervals import resampled_rows, taken

ROWS = 30
FEW = Bootstrap(resamples=80, seed=4)


def of_seeds(count: int, *, rows: int = ROWS, first: int = 1) -> list[Predictions]:
    """Models of several seeds that answer the same rows, some better than others."""
    labels = random_predictions(rows, 2).labels
    found = []
    for seed in range(first, first + count):
        generator = np.random.default_rng(seed)
        scores = generator.normal(size=(rows, 2)) + (0.3 * seed) * np.eye(2)[labels]
        found.append(Predictions(scores, labels, task="toy"))
    return found


def slowly(measured: Sequence[Callable[[np.ndarray], float]], seeds: Sequence[int]) -> tuple[float, float]:
    """The hierarchical interval, one resample and one model at a time; `measured` gives a model's number on some rows."""
    different = list(dict.fromkeys(seeds))
    drawn = []
    for resample, rows in enumerate(resampled_rows(ROWS, FEW)):
        numbers: list[float] = []
        for choice in range(len(different)):
            seed = different[FEW.seed_draws(len(different))[choice, resample]]
            numbers += [number(rows) for number, its in zip(measured, seeds, strict=True) if its == seed]
        drawn.append(sum(numbers) / len(numbers))
    outside = int(0.025 * len(drawn))
    return sorted(drawn)[outside], sorted(drawn)[-1 - outside]


@pytest.mark.parametrize("metric", ["accuracy", "ece", "f1"])
def test_the_hierarchical_interval_is_that_of_a_loop_over_seeds_and_rows(metric: str) -> None:
    models = of_seeds(6)
    found = over_seeds([interval(each, metric=metric, bootstrap=FEW) for each in models], bootstrap=FEW)
    numbers = [lambda rows, one=one: METRICS[metric](taken(one, rows)) for one in models]
    assert (found.low, found.high) == pytest.approx(slowly(numbers, range(6)))
    assert found.value == pytest.approx(np.mean([METRICS[metric](each) for each in models]))
    assert found.seeds == pytest.approx([METRICS[metric](each) for each in models])
    assert found.interval_over == "seeds and rows"


def test_a_seed_of_an_average_is_drawn_as_a_whole() -> None:
    """Five seeds of two tasks, one of which lacks a seed; and ratios of two models."""
    graft, tuned = of_seeds(9), of_seeds(9, first=5)
    seeds = [0, 1, 2, 3, 4, 0, 1, 2, 4]
    kept = [share_kept(a, b, bootstrap=FEW) for a, b in zip(graft, tuned, strict=True)]
    found = over_seeds(kept, seeds, bootstrap=FEW)

    def ratio(a: Predictions, b: Predictions) -> Callable[[np.ndarray], float]:
        score = METRICS["score"]
        return lambda rows: score(taken(a, rows)) / score(taken(b, rows))

    assert (found.low, found.high) == pytest.approx(slowly(list(map(ratio, graft, tuned)), seeds))
    values = np.array([each.value for each in kept])
    assert found.value == pytest.approx(values.mean())
    assert found.seeds == pytest.approx(
        [values[[at for at, s in enumerate(seeds) if s == one]].mean() for one in range(5)]
    )


@settings(max_examples=30, deadline=None)
@given(model=predictions(), metric=st.sampled_from(["accuracy", "ece", "nll"]))
def test_one_seeds_interval_is_the_plain_one(model: Predictions, metric: str) -> None:
    plain = interval(model, metric=metric, bootstrap=FEW)
    for enough in (1, 5):
        found = over_seeds([plain], enough=enough, bootstrap=FEW)
        assert (found.value, found.low, found.high) == (plain.value, plain.low, plain.high)
        assert (found.seeds, found.std) == ((plain.value,), None)


def test_below_five_seeds_the_interval_is_over_rows() -> None:
    """That of the mean over these very seeds, row by row."""
    models = of_seeds(4)
    found = over_seeds([interval(each, bootstrap=FEW) for each in models], bootstrap=FEW)
    means = [np.mean([METRICS["score"](taken(one, rows)) for one in models]) for rows in resampled_rows(ROWS, FEW)]
    assert (found.low, found.high) == pytest.approx((sorted(means)[2], sorted(means)[-3]))
    assert found.interval_over == "rows"
    assert found.std == pytest.approx(np.std([METRICS["score"](each) for each in models], ddof=1))


def test_seeds_that_differ_widen_the_interval_and_equal_ones_do_not_narrow_it() -> None:
    """All seeds answer the same rows, so ten equal models know no more about these than one does."""
    one = interval(of_seeds(1)[0])
    equal = over_seeds([one] * 10)
    assert (equal.low, equal.high) == pytest.approx((one.low, one.high))
    labels = [1] * 200
    apart = [interval(answering([1] * right + [0] * (200 - right), labels)) for right in (100, 120, 140, 160, 180)]
    rows, both = over_seeds(apart, enough=9), over_seeds(apart)
    assert both.low < rows.low - 0.03
    assert both.high > rows.high + 0.03


def test_hierarchical_intervals_cover_the_truth_where_seeds_differ() -> None:
    """Seven seeds around a true accuracy of 0.7: rows alone cover it far too seldom."""
    generator, covered = np.random.default_rng(0), {"rows": 0, "seeds and rows": 0}
    for trial in range(150):
        rates = np.clip(generator.normal(0.7, 0.08, size=7), 0, 1)
        models = [answering((generator.random(120) < rate).astype(int), [1] * 120) for rate in rates]
        found = [interval(each, bootstrap=Bootstrap(resamples=300, seed=trial)) for each in models]
        for enough in (1, 99):
            mean = over_seeds(found, enough=enough, bootstrap=Bootstrap(resamples=300, seed=trial))
            assert mean.low is not None
            assert mean.high is not None
            covered[mean.interval_over] += mean.low <= 0.7 <= mean.high
    assert 0.85 <= covered["seeds and rows"] / 150 <= 1.0
    assert covered["rows"] / 150 < 0.75


def test_numbers_without_rows_have_an_interval_over_seeds_from_five_on() -> None:
    sizes = [Estimate(float(size)) for size in (10, 20, 30, 40, 50)]
    few, many = over_seeds(sizes[:4]), over_seeds(sizes)
    assert (few.low, few.high, few.interval_over) == (None, None, "")
    assert many.interval_over == "seeds"
    assert many.low is not None
    assert many.high is not None
    assert 10 < many.low < many.value < many.high < 50


def test_intervals_from_records_are_averaged_below_five_seeds() -> None:
    found = over_seeds([Estimate(0.8, 0.7, 0.9), Estimate(0.6, 0.5, 0.7)])
    assert (found.low, found.high) == pytest.approx((0.6, 0.8))
    assert over_seeds([Estimate(0.8, 0.7, 0.9), Estimate(0.6)]).low is None


def test_what_is_often_undefined_has_no_interval() -> None:
    labels = [0] * 4
    rare = paired_ratio(answering([0] * 4, labels), answering([0, 1, 1, 1], labels))
    for count in (2, 6):
        assert over_seeds([rare] * count) == SeedMean(4.0, None, None, (4.0,) * count)


def test_seeds_are_drawn_uniformly_and_apart_from_rows() -> None:
    chosen = Bootstrap(resamples=4000).seed_draws(5)
    assert chosen.shape == (5, 4000)
    np.testing.assert_allclose(np.bincount(chosen.ravel()) / chosen.size, 0.2, atol=0.01)
    assert not np.array_equal(Bootstrap(seed=1).seed_draws(5), Bootstrap(seed=2).seed_draws(5))


def test_the_example_is_true() -> None:
    tried = doctest.testmod(intervals)
    assert (tried.attempted, tried.failed) == (7, 0)


def test_draws_are_neither_compared_nor_written() -> None:
    found = interval(of_seeds(1)[0], bootstrap=FEW)
    assert found.draws is not None
    assert found == Estimate(found.value, found.low, found.high)
    assert set(found.as_json()) == {"value", "low", "high"}
    assert "draws" not in repr(found)


@pytest.mark.parametrize(
    ("found", "seeds", "message"),
    [
        ([], (), "needs a number of each, found 0 of 0"),
        ([Estimate(0.5), Estimate(None, reason="why")], (), "found 1 of 2"),
        ([Estimate(0.5)] * 3, (0, 1), "3 estimates need as many seeds, found 2"),
        ([Estimate(0.5, draws=np.zeros(7))], (), "expected estimates of 1000 resamples, found one of 7"),
    ],
)
def test_what_is_refused(found: list[Estimate], seeds: tuple[int, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        over_seeds(found, seeds)


def evaluation(seeds: Sequence[int]) -> Evaluation:
    """A base, and for every seed a tuned model and a graft, about the same rows."""
    base, *tuned = of_seeds(len(seeds) + 1)
    grafts = of_seeds(len(seeds), first=len(seeds) + 2)
    full, small = ({f"{name}@{seed}": one for seed, one in zip(seeds, models, strict=True)}
                   for name, models in (("full", tuned), ("small", grafts)))  # fmt: skip
    return Evaluation("masked", {"toy": {"base": base, **full, **small}}, tuple(full))


@pytest.mark.parametrize("count", [2, 4, 5, 7])
def test_models_named_by_seed_have_a_row_of_their_mean(count: int) -> None:
    found = evaluation(range(count))
    models, summaries = found["toy"], found.summaries()["toy"]
    assert list(summaries) == [*models, f"full, {count} seeds", f"small, {count} seeds"]
    wanted = over_seeds([interval(models[f"small@{seed}"]) for seed in range(count)])
    mean = summaries[f"small, {count} seeds"]
    assert mean["score"] == {"value": wanted.value, "low": wanted.low, "high": wanted.high, "seeds": list(wanted.seeds),
                             "std": wanted.std, "interval_over": "rows" if count < 5 else "seeds and rows"}  # fmt: skip
    kept = over_seeds([share_kept(models[f"small@{seed}"], models[f"full@{seed}"]) for seed in range(count)])
    assert (mean["share_kept"]["value"], mean["share_kept"]["seeds"]) == (kept.value, list(kept.seeds))
    row = next(line for line in found.table().splitlines() if line.startswith(f"small, {count}"))
    assert ("±" in row) == (count >= 5)


def test_names_without_a_seed_stay_as_they_are() -> None:
    found = evaluation([3])
    assert list(found.summaries()["toy"]) == ["base", "full@3", "small@3"]
    models = {name.replace("@", "-"): each for name, each in found["toy"].items()}
    again = Evaluation("masked", {"toy": models}, ("full-3",))
    assert again.summaries()["toy"]["small-3"] == found.summaries()["toy"]["small@3"]


def test_what_a_seed_lacks_the_mean_lacks() -> None:
    names = {"base": 20, "full@0": 18, "full@1": 25, "small@0": 21, "small@1": 22}
    models = {name: answering([1] * right + [0] * (30 - right), [1] * 30) for name, right in names.items()}
    mean = Evaluation("masked", {"toy": models}, ("full@0", "full@1")).summaries()["toy"]["small, 2 seeds"]
    assert mean["relative_gain"]["value"] is None
    assert mean["relative_gain"]["reason"].endswith(", of 1 of 2 seeds")
