"""Cells' numbers about task vectors (P2), from the folders of finished steps: thin readers in front of `measure`.

Formulas over `*said` take any number of tasks, each with the same few steps, one task after the other: a row of one task and
the row of all of them share a formula.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from skillgraft.measure.comparisons import function_localisation, normalised_accuracy
from skillgraft.measure.intervals import Bootstrap, Estimate, estimate
from skillgraft.measure.linearity import distance_from_linear
from skillgraft.measure.metrics import METRICS
from skillgraft.measure.predictions import Predictions
from skillgraft.measure.structure import Consistency, Structure, consistency, structure
from skillgraft.names import kind_of
from skillgraft.reproduce.formulas import read
from skillgraft.reproduce.jobs.artefacts import read_facts, region_of

BEHIND = 0.02  # points of accuracy below full fine-tuning's from which a vector counts as undertrained
_ROUNDING = 1e-9  # accuracies are fractions of whole rows
_COMPARED = 3  # steps of each task where a combination is compared: combined, single, full fine-tuning's single


def accuracy(*said: Path) -> Estimate:
    """The mean over tasks of accuracy; tasks are resampled independently."""
    return _mean_accuracy([read(each) for each in said])


def summed(*said: Path) -> Estimate:
    """The combined models' mean accuracy. What is undertrained is a remark."""
    combined, single, full = _each(said)
    found = _mean_accuracy(combined)
    return Estimate(found.value, found.low, found.high, reason=undertrained(single, full))


def normalised(*said: Path) -> Estimate:
    """The mean over tasks of the combined model's accuracy / the single one's, whatever that is. A remark as in `summed`."""
    combined, single, full = _each(said)
    found = normalised_accuracy(list(zip(combined, single, strict=True)))
    return Estimate(found.value, found.low, found.high, reason=found.reason or undertrained(single, full))


def compared(*said: Path) -> Estimate:
    """The same, but no number where a vector is undertrained: such a one normalises to 1 for free."""
    _combined, single, full = _each(said)
    reason = undertrained(single, full)
    return Estimate(None, reason=reason) if reason else normalised(*said)


def undertrained(single: Sequence[Predictions], full: Sequence[Predictions]) -> str:
    """The tasks whose accuracy lies more than 2 points below full fine-tuning's, in words; "" if there is none."""
    gaps = {mine.task: _accuracy(theirs) - _accuracy(mine) for mine, theirs in zip(single, full, strict=True)}
    behind = [f"{task} {100 * gap:.1f} points" for task, gap in gaps.items() if gap > BEHIND + _ROUNDING]
    return f"undertrained: single-task accuracy below full's: {', '.join(behind)}" if behind else ""


def localised(said: Path, base: Path) -> Estimate:
    """Accuracy over the base's (P2 fig. 3)."""
    return function_localisation(read(said), read(base))


def disturbed(said: Path, base: Path) -> Estimate:
    """How far accuracy over the base's is from 1, upwards or downwards: 0 where a skill leaves a task alone."""
    ratio = localised(said, base)
    return ratio if ratio.value is None else Estimate(abs(ratio.value - 1))


def distance(own: Path, linear: Path, base: Path) -> Estimate:
    """‖f − f_lin‖ / ‖f − f_0‖: 0 where the model is linear along its delta."""
    return distance_from_linear(read(own), read(linear), base=read(base))


def learning_rate(best: Path) -> Estimate:
    """The one that was chosen; the remark has all that were tried, with their validation scores."""
    facts = read_facts(best)
    tried = ", ".join(f"{lr}: {100 * score:.1f}" for lr, score in facts["validation"].items())
    return Estimate(facts["lr"], reason=f"validation scores {tried}")


def fact(*path: str) -> Callable[[Path], float]:
    """A number that a step has written down, by the names that lead to it."""

    def found(step: Path) -> float:
        value: Any = read_facts(step)
        for name in path:
            value = value[name]
        return float(value)

    return found


def cost(way: str, what: str) -> Callable[[Path], float]:
    """What a step of a way of training costs."""
    return fact("ways", way, what)


def cost_over_full(way: str, what: str) -> Callable[[Path], float]:
    """The same over full fine-tuning's in the same run."""
    return lambda step: cost(way, what)(step) / cost("full", what)(step)


def error(first: int, second: int) -> Callable[[Path], Estimate]:
    """ξ at the places of two scales."""
    return lambda step: Estimate(**read_facts(step)["errors"][first][second])


def mean_error(step: Path) -> float:
    """The mean of ξ over the whole map."""
    return float(np.mean([[cell["value"] for cell in row] for row in read_facts(step)["errors"]]))


def pruned(task: str, share: str) -> Callable[[Path], Estimate]:
    """A task's accuracy without a share of entries, over base's (P2 fig. 1)."""
    return lambda step: Estimate(**read_facts(step)["ratios"][task][share])


def pruned_mean(share: str, *, own: bool) -> Callable[[Path], Estimate]:
    """The mean over the tasks that did not find the entries, or the one that did."""

    def mean(step: Path) -> Estimate:
        facts = read_facts(step)
        ratios = [at[share] for task, at in facts["ratios"].items() if (task == facts["found_on"]) == own]
        known = [ratio["value"] for ratio in ratios if ratio["value"] is not None]
        return Estimate(float(np.mean(known))) if known else Estimate(None, reason="no other task has a score to lose")

    return mean


def selected(layer: str, kind: str) -> Callable[[Path], Estimate]:
    """The share of a layer's entries of a kind that a region has (P2 figs. 4 and 5)."""

    def share(step: Path) -> Estimate:
        shape = _structure(step)
        found = shape.shares[shape.layers.index(layer), shape.kinds.index(kind)]
        return Estimate(None, reason=f"{layer} has no {kind}") if np.isnan(found) else Estimate(float(found))

    return share


def empty(kind: str, axis: str) -> Callable[[Path], Estimate]:
    """The share of the rows (or columns) of all matrices of a kind in which a region has no entry."""

    def share(step: Path) -> Estimate:
        matrices = [matrix for matrix in _structure(step).matrices if kind_of(matrix.name) == kind]
        total, bare = (sum(getattr(matrix, name) for matrix in matrices) for name in (axis, f"empty_{axis}"))
        return Estimate(bare / total) if total else Estimate(None, reason=f"no matrix is of kind {kind}")

    return share


def alike(*steps: Path) -> float:
    """The mean jaccard of several tasks' regions."""
    return _consistency(steps).mean_jaccard


def alike_by_chance(*steps: Path) -> float:
    """The mean jaccard of random regions of these sizes."""
    return _consistency(steps).chance


def in_all(*steps: Path) -> float:
    """How many entries all of the regions have, over the mean size of a region."""
    regions = [region_of(step) for step in steps]
    return _consistency(steps).common / float(np.mean([len(region) for region in regions]))


def _each(said: Sequence[Path]) -> tuple[list[Predictions], list[Predictions], list[Predictions]]:
    combined, single, full = ([read(each) for each in said[place::_COMPARED]] for place in range(_COMPARED))
    return combined, single, full


def _mean_accuracy(said: Sequence[Predictions]) -> Estimate:
    groups = [[METRICS["accuracy"].tally(each)] for each in said]
    return estimate(lambda numbers: numbers.mean(axis=0), *groups, bootstrap=Bootstrap())


def _accuracy(said: Predictions) -> float:
    return METRICS["accuracy"](said)


@cache
def _structure(step: Path) -> Structure:
    return structure(region_of(step))


def _consistency(steps: Sequence[Path]) -> Consistency:
    return consistency({str(place): region_of(step) for place, step in enumerate(steps)})
