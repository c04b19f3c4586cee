"""Cells' numbers from the folders of finished steps: thin readers in front of `measure`."""

from __future__ import annotations

from pathlib import Path

from skillgraft.measure.comparisons import agreement, relative_gain, share_kept, train_test_gap
from skillgraft.measure.intervals import Estimate, interval
from skillgraft.measure.metrics import METRICS
from skillgraft.measure.predictions import Predictions
from skillgraft.reproduce.jobs import SAID, region_of


def read(step: Path) -> Predictions:
    return Predictions.load(step / SAID)


def score(said: Path) -> Estimate:
    """The task's own metric (accuracy, or F1)."""
    return interval(read(said))


def ece(said: Path) -> Estimate:
    return interval(read(said), metric="ece")


def majority(said: Path) -> float:
    return METRICS["majority"](read(said))


def kept(graft: Path, tuned: Path) -> Estimate:
    return share_kept(read(graft), read(tuned))


def gain(graft: Path, tuned: Path, base: Path) -> Estimate:
    return relative_gain(read(graft), read(tuned), base=read(base))


def agree(graft: Path, tuned: Path) -> Estimate:
    return agreement(read(graft), read(tuned))


def gap(train: Path, test: Path) -> Estimate:
    return train_test_gap(read(train), read(test))


def entries(step: Path) -> float:
    """How many entries a step's region has."""
    return float(len(region_of(step)))


def density(step: Path) -> float:
    return region_of(step).density
