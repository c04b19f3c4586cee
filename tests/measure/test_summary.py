from __future__ import annotations

import doctest
import importlib
import json
import subprocess
import sys

import numpy as np
import pytest

from skillgraft.measure import METRICS, Bootstrap, Predictions, calibration_error, interval, share_kept, summary

from .making import answering, random_predictions

METRIC_KEYS = {"score", "accuracy", "balanced_accuracy", "ece", "nll", "brier"}
PLAIN_KEYS = {"task", "metric", "n", "majority", "bins", "intervals"}


def test_summary_of_one_model() -> None:
    answers = random_predictions(60, 3)
    found = summary(answers, bins=10, resamples=200, seed=4)
    assert set(found) == METRIC_KEYS | PLAIN_KEYS
    assert (found["task"], found["metric"], found["n"], found["bins"]) == ("toy", "accuracy", 60, 10)
    assert found["intervals"] == {"level": 0.95, "resamples": 200, "seed": 4}
    assert found["majority"] == METRICS["majority"](answers)
    bootstrap = Bootstrap(resamples=200, seed=4)
    assert found["ece"] == interval(answers, metric=calibration_error(10), bootstrap=bootstrap).as_json()
    assert found["accuracy"] == found["score"] == interval(answers, metric="accuracy", bootstrap=bootstrap).as_json()


def test_two_classes_have_f1_and_score_follows_the_task() -> None:
    found = summary(random_predictions(60, 2, metric="f1"), resamples=50)
    assert found["score"] == found["f1"] != found["accuracy"]


def test_summary_beside_base_and_tuned() -> None:
    truth = [0] * 50
    graft, tuned, base = (answering([0] * right + [1] * (50 - right), truth) for right in (40, 45, 25))
    found = summary(graft, base=base, tuned=tuned)
    assert set(found) == METRIC_KEYS | PLAIN_KEYS | {"f1", "gain", "agreement", "share_kept", "relative_gain"}
    assert found["gain"]["value"] == pytest.approx(0.3)
    assert found["agreement"]["value"] == pytest.approx(0.9)
    assert found["share_kept"] == share_kept(graft, tuned).as_json()
    assert found["relative_gain"]["value"] == pytest.approx(0.75)
    assert "relative_gain" not in summary(graft, tuned=tuned)
    assert set(summary(tuned, base=base)) == METRIC_KEYS | PLAIN_KEYS | {"f1", "gain"}


def test_a_missing_number_carries_its_reason() -> None:
    answers = random_predictions(40, 2)
    cell = summary(answers, base=answers, tuned=answers)["relative_gain"]
    assert cell["value"] is None
    assert cell["reason"].startswith("no skill to localise")


def test_summary_is_strict_json_and_repeats() -> None:
    answers = Predictions([[1.0, 2.0, -np.inf], [0.0, 0.0, 0.0]], [0, 2], task="copa")
    found = summary(answers, base=answers, tuned=answers)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found == summary(answers, base=answers, tuned=answers)


@pytest.mark.parametrize(
    "name",
    [
        "predictions.predictions",
        *(f"measure.{name}" for name in ("metrics", "intervals", "comparisons", "calibration")),
    ],
)
def test_examples_in_the_modules_run(name: str) -> None:
    found = doctest.testmod(importlib.import_module(f"skillgraft.{name}"))
    assert found.attempted > 0
    assert found.failed == 0


def test_importing_measure_loads_nothing_heavy() -> None:
    heavy = ["torch", "sklearn", "scipy", "torchmetrics", "transformers"]
    code = f"import sys, skillgraft.measure; sys.exit(any(name in sys.modules for name in {heavy}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
