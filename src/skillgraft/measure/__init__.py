"""From predictions to numbers: metrics, intervals, comparisons between models, calibration. No model code here."""

from skillgraft.measure.bounds import Bound, generalization_bound, log_all_regions
from skillgraft.measure.calibration import (
    Histogram,
    Reliability,
    Shift,
    at_shift,
    at_temperature,
    confidence_histogram,
    fit_shift,
    fit_temperature,
    reliability,
    shifted,
    temperature_scaled,
)
from skillgraft.measure.comparisons import (
    Stability,
    agreement,
    disentanglement_error,
    function_localisation,
    normalised_accuracy,
    relative_gain,
    share_kept,
    stability,
    train_test_gap,
)
from skillgraft.measure.intervals import (
    Bootstrap,
    Estimate,
    SeedMean,
    interval,
    over_seeds,
    paired_difference,
    paired_ratio,
)
from skillgraft.measure.metrics import METRICS, Metric, calibration_error
from skillgraft.measure.summary import summary
from skillgraft.predictions.predictions import Predictions

__all__ = [
    "METRICS",
    "Bootstrap",
    "Bound",
    "Estimate",
    "Histogram",
    "Metric",
    "Predictions",
    "Reliability",
    "SeedMean",
    "Shift",
    "Stability",
    "agreement",
    "at_shift",
    "at_temperature",
    "calibration_error",
    "confidence_histogram",
    "disentanglement_error",
    "fit_shift",
    "fit_temperature",
    "function_localisation",
    "generalization_bound",
    "interval",
    "log_all_regions",
    "normalised_accuracy",
    "over_seeds",
    "paired_difference",
    "paired_ratio",
    "relative_gain",
    "reliability",
    "share_kept",
    "shifted",
    "stability",
    "summary",
    "temperature_scaled",
    "train_test_gap",
]
