"""From predictions to numbers: metrics, intervals, comparisons between models, calibration. No model code here."""

from skillgraft.measure.bounds import Bound, generalization_bound, log_all_regions
from skillgraft.measure.calibration import (
    Histogram,
    Reliability,
    at_temperature,
    confidence_histogram,
    fit_temperature,
    reliability,
    temperature_scaled,
)
from skillgraft.measure.comparisons import (
    agreement,
    disentanglement_error,
    function_localisation,
    normalised_accuracy,
    relative_gain,
    share_kept,
    train_test_gap,
)
from skillgraft.measure.intervals import Bootstrap, Estimate, interval, paired_difference, paired_ratio
from skillgraft.measure.metrics import METRICS, Metric, calibration_error
from skillgraft.measure.predictions import Predictions
from skillgraft.measure.shifting import Shift, at_shift, fit_shift, shifted
from skillgraft.measure.stability import Stability, stability
from skillgraft.measure.summary import summary

__all__ = [
    "METRICS",
    "Bootstrap",
    "Bound",
    "Estimate",
    "Histogram",
    "Metric",
    "Predictions",
    "Reliability",
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
