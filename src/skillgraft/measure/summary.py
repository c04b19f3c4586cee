"""Everything a table shows about one model on one split, as plain JSON-ready numbers.

Every table shows the majority-class score; a number that is missing carries its reason.
"""

from __future__ import annotations

from typing import Any

from skillgraft.measure.comparisons import agreement, relative_gain, share_kept
from skillgraft.measure.intervals import Bootstrap, Estimate, interval, paired_difference
from skillgraft.measure.metrics import ECE_BINS, METRICS, Metric, calibration_error
from skillgraft.predictions.predictions import Predictions


def summary(
    predictions: Predictions,
    *,
    base: Predictions | None = None,
    tuned: Predictions | None = None,
    bins: int = ECE_BINS,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """The metrics of predictions with 95 % intervals, and how they compare with base and tuned where these are given.

    Against base: `gain` (score − base's score). Against tuned: `agreement`, `share_kept`. With both: `relative_gain`.
    Fractions, not percentages. `score` is the task's own metric; `f1` is there for two classes only.
    """
    bootstrap = Bootstrap(resamples=resamples, seed=seed)
    measured = {
        name: interval(predictions, metric=metric, bootstrap=bootstrap)
        for name, metric in _metrics(predictions, bins=bins).items()
    }
    compared = _comparisons(predictions, base=base, tuned=tuned, bootstrap=bootstrap)
    return {
        "task": predictions.task,
        "metric": predictions.metric,
        "n": len(predictions),
        "majority": METRICS["majority"](predictions),
        "bins": bins,
        "intervals": {"level": bootstrap.level, "resamples": resamples, "seed": seed},
        **{name: found.as_json() for name, found in {**measured, **compared}.items()},
    }


def _metrics(predictions: Predictions, *, bins: int) -> dict[str, Metric]:
    names = ["score", "accuracy", *(["f1"] if predictions.classes == 2 else []), "balanced_accuracy", "nll", "brier"]
    return {**{name: METRICS[name] for name in names}, "ece": calibration_error(bins)}


def _comparisons(
    graft: Predictions, *, base: Predictions | None, tuned: Predictions | None, bootstrap: Bootstrap
) -> dict[str, Estimate]:
    found = {}
    if base is not None:
        found["gain"] = paired_difference(graft, base, bootstrap=bootstrap)
    if tuned is not None:
        found["agreement"] = agreement(graft, tuned, bootstrap=bootstrap)
        found["share_kept"] = share_kept(graft, tuned, bootstrap=bootstrap)
    if base is not None and tuned is not None:
        found["relative_gain"] = relative_gain(graft, tuned, base=base, bootstrap=bootstrap)
    return found
