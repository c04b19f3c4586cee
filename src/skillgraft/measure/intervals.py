"""Percentile bootstrap: how far a metric, or a comparison of several predictions, would move on other rows.

Predictions of the same rows are resampled together (paired), those of different rows independently.

    >>> from skillgraft.predictions.predictions import Predictions
    >>> predictions = Predictions([[1.0, 0.0]] * 8, [0, 0, 0, 0, 0, 0, 1, 1], task="sst2")
    >>> interval(predictions, metric="accuracy").as_json()
    {'value': 0.75, 'low': 0.5, 'high': 1.0}

A trap: ECE is biased upwards on few rows, and on a resample more so; its interval can lie above its value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from skillgraft.errors import InputError
from skillgraft.measure.metrics import Metric, Tally, metric_named
from skillgraft.predictions.predictions import AnyPredictions, FloatArray, same_rows
from skillgraft.values.printing import ENOUGH_SEEDS

# Numbers along axis 0 (one for each tally) → one number; NaN where it is undefined.
Formula = Callable[[FloatArray], FloatArray]

# Row counts held at a time: 2 MB stays in the cache, which is several times faster than all resamples at once.
_CHUNK_ENTRIES = 1 << 18


@dataclass(frozen=True)
class Estimate:
    """A number with its interval. What is undefined is None, and `reason` says why.

    `draws` are its values on resampled rows, from which means over seeds are made; they are not saved, nor compared.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    reason: str = ""
    draws: FloatArray | None = field(default=None, repr=False, compare=False)

    def as_json(self) -> dict[str, float | str | None]:
        """`{"value", "low", "high"}`, and `"reason"` where something is undefined."""
        numbers: dict[str, float | str | None] = {"value": self.value, "low": self.low, "high": self.high}
        return {**numbers, "reason": self.reason} if self.reason else numbers


@dataclass(frozen=True)
class Bootstrap:
    """How intervals are drawn. Equal settings draw equal rows, whatever is measured on them."""

    resamples: int = 1000
    seed: int = 0
    level: float = 0.95

    def __post_init__(self) -> None:
        if self.resamples < 1 or self.seed < 0 or not 0 < self.level < 1:
            raise InputError(f"expected resamples ≥ 1, seed ≥ 0 and a level between 0 and 1, found {self}")

    def draws(self, tallies: Sequence[Tally], *, group: int = 0) -> FloatArray:
        """The tallies' numbers on resampled rows, (tallies, resamples); all of them on the same rows.

        Another `group` number draws other rows.
        """
        columns = np.hstack([tally.columns for tally in tallies])
        sums = np.concatenate([counts @ columns for counts in self._row_counts(len(columns), group=group)])
        ends = np.cumsum([tally.columns.shape[1] for tally in tallies])[:-1]
        return np.stack([tally.at(part) for tally, part in zip(tallies, np.split(sums, ends, axis=1), strict=True)])

    def _row_counts(self, rows: int, *, group: int) -> Iterator[FloatArray]:
        """How often each resample draws each row, a few resamples at a time."""
        generator = np.random.default_rng([self.seed, group])
        step = max(1, _CHUNK_ENTRIES // rows)
        for start in range(0, self.resamples, step):
            size = min(step, self.resamples - start)
            drawn = generator.integers(rows, size=(size, rows)) + rows * np.arange(size)[:, None]
            yield np.bincount(drawn.ravel(), minlength=size * rows).reshape(size, rows).astype(np.float64)

    def seed_draws(self, seeds: int) -> npt.NDArray[np.int64]:
        """Which seeds each resample draws with replacement, (seeds, resamples); apart from how it draws rows."""
        return np.random.default_rng([self.seed, 0, 1]).integers(seeds, size=(seeds, self.resamples))

    def ends(self, draws: FloatArray) -> tuple[float, float]:
        """The interval's ends. Undefined draws (NaN) count against both, so too many of them make an end infinite."""
        tail = (1 - self.level) / 2
        undefined = np.isnan(draws)
        low = np.quantile(np.where(undefined, -np.inf, draws), tail, method="higher")
        high = np.quantile(np.where(undefined, np.inf, draws), 1 - tail, method="lower")
        return float(low), float(high)


def estimate(formula: Formula, *groups: Sequence[Tally], bootstrap: Bootstrap, undefined: str = "") -> Estimate:
    """A formula over tallies, with its interval. Tallies of one group are about the same rows; groups are independent.

    `undefined` says what it means that the formula gives NaN.
    """
    value = float(formula(np.array([tally.total() for group in groups for tally in group])))
    if math.isnan(value):
        return Estimate(None, reason=undefined)
    draws = formula(np.concatenate([bootstrap.draws(group, group=number) for number, group in enumerate(groups)]))
    low, high = bootstrap.ends(draws)
    if math.isinf(low) or math.isinf(high):
        share = f"{int(np.isnan(draws).sum())} of {bootstrap.resamples} resamples"
        return Estimate(value, reason=f"no interval: {undefined} in {share}", draws=draws)
    return Estimate(value, low, high, draws=draws)


def quotient(top: FloatArray, bottom: FloatArray) -> FloatArray:
    """top / bottom where bottom is above 0, else NaN: the ratios measured here mean nothing otherwise."""
    ratio: FloatArray = np.full(np.shape(bottom), np.nan)
    np.divide(top, bottom, out=ratio, where=np.greater(bottom, 0))
    return ratio


def interval(
    predictions: AnyPredictions, *, metric: str | Metric = "score", bootstrap: Bootstrap = Bootstrap()
) -> Estimate:
    """A metric of predictions with its interval."""
    return estimate(lambda n: n[0], [metric_named(metric).tally(predictions)], bootstrap=bootstrap)


def paired_difference(
    a: AnyPredictions, b: AnyPredictions, *, metric: str | Metric = "score", bootstrap: Bootstrap = Bootstrap()
) -> Estimate:
    """The metric of `a` minus that of `b`, both about the same rows."""
    return estimate(lambda n: n[0] - n[1], paired(metric, a, b), bootstrap=bootstrap)


def paired_ratio(
    a: AnyPredictions,
    b: AnyPredictions,
    *,
    metric: str | Metric = "score",
    bootstrap: Bootstrap = Bootstrap(),
    undefined: str = "the denominator is 0",
) -> Estimate:
    """The metric of `a` divided by that of `b`, both about the same rows."""
    pair = paired(metric, a, b)
    return estimate(lambda n: quotient(n[0], n[1]), pair, bootstrap=bootstrap, undefined=undefined)


def paired(metric: str | Metric, *predictions: AnyPredictions) -> list[Tally]:
    """One tally for each predictions, after checking that they are about the same rows: a group for `estimate`."""
    same_rows(*predictions)
    return [metric_named(metric).tally(each) for each in predictions]


@dataclass(frozen=True)
class SeedMean:
    """The mean over seeds with its interval; `seeds` has each seed's own number.

    `interval_over` says what is resampled: rows, seeds, or both ("seeds and rows"); "" where there is no interval.
    """

    value: float
    low: float | None
    high: float | None
    seeds: tuple[float, ...]
    interval_over: str = ""

    @property
    def std(self) -> float | None:
        """The standard deviation over seeds; None for a single one."""
        return seed_std(self.seeds)


def seed_std(numbers: Sequence[float]) -> float | None:
    """The standard deviation that so many numbers estimate (n − 1); None below two."""
    return float(np.std(numbers, ddof=1)) if len(numbers) > 1 else None


def over_seeds(
    found: Sequence[Estimate],
    seeds: Sequence[int] = (),
    *,
    enough: int = ENOUGH_SEEDS,
    bootstrap: Bootstrap = Bootstrap(),
) -> SeedMean:
    """The mean of estimates; `seeds` says which seed each belongs to (by default one of its own).

    A seed with several estimates (one for each task of an average) is resampled as a whole. An estimate that comes from a record
    has no draws: below `enough` seeds the ends of such intervals are averaged, from then on only seeds are resampled.

    Two or three seeds tell little about other seeds. Below `enough` the interval is therefore over rows alone, and the seeds' own
    numbers belong beside it. From then on it is a hierarchical bootstrap: every resample draws seeds, and rows within them. All
    seeds answer the same test rows, so the seeds of one resample share the rows that it draws, and noise that all of them have in
    common is not averaged away.

    >>> from skillgraft.measure import Predictions, interval
    >>> scores = [[0, 1], [0, 1], [1, 0], [1, 0]], [[0, 1], [1, 0], [1, 0], [1, 0]]
    >>> found = over_seeds([interval(Predictions(each, [1, 0, 0, 0], task="sst2")) for each in scores])
    >>> found.value, found.seeds, found.interval_over
    (0.875, (0.75, 1.0), 'rows')
    """
    values = _values(found)
    groups = _groups(seeds or range(len(found)), len(found))
    mean, own = float(values.mean()), tuple(float(values[group].mean()) for group in groups)
    drawn = [each.draws for each in found if each.draws is not None]
    if len(groups) >= enough:
        draws = _resampled(_draws(found, bootstrap), groups, bootstrap)
        return _with_ends(mean, own, *bootstrap.ends(draws), over="seeds and rows" if drawn else "seeds")
    if len(drawn) == len(found):
        return _with_ends(mean, own, *bootstrap.ends(_draws(found, bootstrap).mean(axis=0)), over="rows")
    lows, highs = ([getattr(each, end) for each in found] for end in ("low", "high"))
    if None in lows or None in highs:
        return SeedMean(mean, None, None, own)
    return _with_ends(mean, own, float(np.mean(lows)), float(np.mean(highs)), over="rows")


def _values(found: Sequence[Estimate]) -> FloatArray:
    values = [each.value for each in found if each.value is not None]
    if not found or len(values) < len(found):
        raise InputError(f"a mean over seeds needs a number of each, found {len(values)} of {len(found)}")
    return np.array(values)


def _groups(seeds: Sequence[int], count: int) -> list[list[int]]:
    """The estimates of each seed."""
    if len(seeds) != count:
        raise InputError(f"{count} estimates need as many seeds, found {len(seeds)}")
    return [[at for at, seed in enumerate(seeds) if seed == one] for one in dict.fromkeys(seeds)]


def _draws(found: Sequence[Estimate], bootstrap: Bootstrap) -> FloatArray:
    """(estimates, resamples). What depends on no rows is the same in every resample."""
    rows = [np.full(bootstrap.resamples, each.value) if each.draws is None else each.draws for each in found]
    odd = [len(row) for row in rows if len(row) != bootstrap.resamples]
    if odd:
        raise InputError(f"expected estimates of {bootstrap.resamples} resamples, found one of {odd[0]}")
    return np.stack(rows)


def _resampled(draws: FloatArray, groups: Sequence[Sequence[int]], bootstrap: Bootstrap) -> FloatArray:
    """The mean over the estimates of as many seeds as there are, drawn with replacement for every resample."""
    chosen = bootstrap.seed_draws(len(groups))
    sums = np.stack([draws[group].sum(axis=0) for group in groups])
    sizes = np.array([len(group) for group in groups])
    mean: FloatArray = np.take_along_axis(sums, chosen, axis=0).sum(axis=0) / sizes[chosen].sum(axis=0)
    return mean


def _with_ends(mean: float, own: tuple[float, ...], low: float, high: float, *, over: str) -> SeedMean:
    """No interval where too many resamples are undefined, as in a single estimate."""
    if math.isinf(low) or math.isinf(high):
        return SeedMean(mean, None, None, own)
    return SeedMean(mean, low, high, own, over)
