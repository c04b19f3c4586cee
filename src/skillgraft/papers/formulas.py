"""Cells' numbers from the results of finished steps: thin functions in front of `measure`.

Formulas over `*found` take any number of tasks, each with the same few steps, one task after the other: a row of one task and
the row of all of them share a formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from skillgraft.compose.store import ContinualStore
from skillgraft.folders.ledger import LEDGER
from skillgraft.folders.weight_files import read_json
from skillgraft.measure.bounds import generalization_bound, log_all_regions
from skillgraft.measure.calibration import confidence_histogram, shifted, temperature_scaled
from skillgraft.measure.comparisons import (
    agreement,
    distance_from_linear,
    function_localisation,
    normalised_accuracy,
    relative_gain,
    same_scores,
    share_kept,
    train_test_gap,
)
from skillgraft.measure.intervals import Bootstrap, Estimate, estimate, interval, paired_difference
from skillgraft.measure.matrices import Consistency, alike, consistency, coverage_matrix, structure
from skillgraft.measure.metrics import METRICS
from skillgraft.papers.steps import scope_of
from skillgraft.predictions.predictions import Predictions
from skillgraft.values.graft import Graft
from skillgraft.values.region import Region

Where = Region | Graft
Facts = Mapping[str, Any]  # what a step recorded
BEHIND = 0.02  # points of accuracy below full fine-tuning's from which a vector counts as undertrained
_ROUNDING = 1e-9  # accuracies are fractions of whole rows
_COMPARED = 3  # steps of each task where a combination is compared: combined, single, full fine-tuning's single
kept, agree, gap, difference, identical = share_kept, agreement, train_test_gap, paired_difference, same_scores


def region_of(where: Where) -> Region:
    """A region, or that of a graft."""
    return where.region if isinstance(where, Graft) else where


def score(found: Predictions) -> Estimate:
    """The task's own metric (accuracy, or F1)."""
    return interval(found)


def shifted_score(found: Predictions, validation: Predictions) -> Estimate:
    """The same after one number per class is added to the scores, fitted on validation rows."""
    return interval(shifted(found, validation))


def ece(found: Predictions) -> Estimate:
    return interval(found, metric="ece")


def tempered_ece(found: Predictions, validation: Predictions) -> Estimate:
    """ECE at the temperature that fits the validation rows: the yardstick that needs held-out rows (P1 A.3)."""
    return interval(temperature_scaled(found, validation), metric="ece")


def overconfidence(found: Predictions) -> float:
    """Mean confidence − accuracy."""
    return float(found.confidence.mean() - found.hits.mean())


def ece_cut(graft: Predictions, tuned: Predictions) -> float:
    """By which share a graft's ECE is lower than tuned's."""
    return 1.0 - METRICS["ece"](graft) / METRICS["ece"](tuned)


def majority(found: Predictions) -> float:
    return METRICS["majority"](found)


def gain(graft: Predictions, tuned: Predictions, base: Predictions) -> Estimate:
    return relative_gain(graft, tuned, base=base)


def best(index: int) -> Callable[..., Estimate]:
    """Of pairs (in distribution, out of distribution) the one with the highest sum of scores; its first or second score."""

    def chosen(*found: Predictions) -> Estimate:
        scores = [METRICS["score"](each) for each in found]
        sums = [inside + outside for inside, outside in zip(scores[::2], scores[1::2], strict=True)]
        return score(found[2 * sums.index(max(sums)) + index])

    return chosen


def confident(bins: int, index: int) -> Callable[[Predictions], float]:
    """The share of rows whose confidence falls into a bin (P1 fig. 6)."""

    def share(found: Predictions) -> float:
        counts = confidence_histogram(found, bins=bins).counts
        return counts[index] / sum(counts)

    return share


def entries(where: Where) -> float:
    """How many entries a region has."""
    return float(len(region_of(where)))


def density(where: Where) -> float:
    return region_of(where).density


def scale(graft: Graft) -> float:
    """How many times tuned's change a graft carries."""
    return graft.scale


def jaccard(one: Where, other: Where) -> float:
    return region_of(one).jaccard(region_of(other))


def coverage(one: Where, other: Where) -> Estimate:
    """How much of the other region the one covers (P1 fig. 8a)."""
    covered = region_of(other)
    if not len(covered):
        return Estimate(None, reason="the region to be covered is empty")
    return Estimate(region_of(one).coverage(of=covered))


def likeness(names: Sequence[str]) -> Callable[..., str]:
    """A sentence on which tasks' regions are alike (P1 §5.1); a region or graft for each name."""

    def sentence(*found: Where) -> str:
        regions = {name: region_of(where) for name, where in zip(names, found, strict=True)}
        some = {name: region for name, region in regions.items() if len(region)}
        if len(some) < 2:
            return "Too few regions have entries to tell which tasks are alike."
        like = alike(coverage_matrix(some))
        groups = "; ".join(" and ".join(group) for group in like.groups)
        return f"By what their regions share, the tasks stand in the order {', '.join(like.order)}. Groups: {groups}."

    return sentence


def skill_bytes(store: Path) -> float:
    """The size of a store of grafts."""
    return float(sum(file.stat().st_size for file in store.iterdir()))


def skill_entries(name: str) -> Callable[[Path], float]:
    """How many entries of a store of grafts belong to a task alone."""
    return lambda store: float({kept.task: kept.entries for kept in ContinualStore.open(store).kept}[name])


def model_bytes(*folders: Path) -> float:
    """The size of the weights of tuned models."""
    return float(sum(file.stat().st_size for folder in folders for file in folder.glob("*.safetensors")))


def trained(base: str) -> Callable[[Path], float]:
    """How many numbers a fine-tune trained, over the entries of the base's layers."""
    return lambda folder: float(read_json(folder / LEDGER)["made"]["trained"]) / scope_of(base).size


def rows(found: Predictions) -> float:
    """How many rows a model was asked about."""
    return float(len(found))


def bound(
    *, any_region: bool = False, retrained: bool = True, bits: int = 32
) -> Callable[[Where, Predictions], Estimate]:
    """P1's theorems D.2 and D.4 for a region and as many training rows as were answered; 95 %.

    `any_region` counts all regions of that size, as one that was learned from the rows needs; otherwise it was fixed before.
    """

    def proved(where: Where, training: Predictions) -> Estimate:
        region = region_of(where)
        which = log_all_regions(len(region), region.scope.size) if any_region else 0.0
        nats = bits * math.log(2)
        proof = generalization_bound(
            len(region), len(training), log_levels=nats, log_regions=which, retrained=retrained
        )
        return Estimate(proof.value, reason="vacuous" if proof.vacuous else "")

    return proved


def layer_share(layer: str, kind: str = "") -> Callable[[Where], Estimate]:
    """The share of a region's entries (of one kind) that lie in a layer (P1 fig. 9)."""
    return lambda where: _share(_by_layer(region_of(where), kind), layer, kind)


def kind_share(kind: str) -> Callable[[Where], Estimate]:
    """The share of a region's entries that are of a kind (P1 fig. 10)."""
    return lambda where: _share(region_of(where).by_kind(), kind, "")


def _by_layer(region: Region, kind: str) -> dict[str, int]:
    cells = region.by_layer_and_kind()
    return {layer: cells.get((layer, kind), 0) if kind else count for layer, count in region.by_layer().items()}


def _share(counts: dict[str, int], name: str, kind: str) -> Estimate:
    total = sum(counts.values())
    return Estimate(counts[name] / total) if total else Estimate(None, reason=f"no {kind or 'entry'} in the region")


def accuracy(*found: Predictions) -> Estimate:
    """The mean over tasks of accuracy; tasks are resampled independently."""
    groups = [[METRICS["accuracy"].tally(each)] for each in found]
    return estimate(lambda numbers: numbers.mean(axis=0), *groups, bootstrap=Bootstrap())


def summed(*found: Predictions) -> Estimate:
    """The combined models' mean accuracy. What is undertrained is a remark."""
    combined, single, full = _each(found)
    mean = accuracy(*combined)
    return replace(mean, reason=undertrained(single, full))


def normalised(*found: Predictions) -> Estimate:
    """The mean over tasks of the combined model's accuracy / the single one's, whatever that is. A remark as in `summed`."""
    combined, single, full = _each(found)
    mean = normalised_accuracy(list(zip(combined, single, strict=True)))
    return replace(mean, reason=mean.reason or undertrained(single, full))


def compared(*found: Predictions) -> Estimate:
    """The same, but no number where a vector is undertrained: such a one normalises to 1 for free."""
    _combined, single, full = _each(found)
    reason = undertrained(single, full)
    return Estimate(None, reason=reason) if reason else normalised(*found)


def by_single(*found: Predictions) -> Estimate:
    """For a rule: the mean over tasks of the combined model's accuracy / that of the task's own vector, once it is thinned."""
    combined, single, _full = _each(found)
    return normalised_accuracy(list(zip(combined, single, strict=True)))


def by_full(*found: Predictions) -> Estimate:
    """For a rule: the same over full fine-tuning's own vector, as it is."""
    combined, _single, full = _each(found)
    return normalised_accuracy(list(zip(combined, full, strict=True)))


def undertrained(single: Sequence[Predictions], full: Sequence[Predictions]) -> str:
    """The tasks whose accuracy lies more than 2 points below full fine-tuning's, in words; "" if there is none."""
    right = METRICS["accuracy"]
    gaps = {mine.task: right(theirs) - right(mine) for mine, theirs in zip(single, full, strict=True)}
    behind = [f"{task} {100 * gap:.1f} points" for task, gap in gaps.items() if gap > BEHIND + _ROUNDING]
    return f"undertrained: single-task accuracy below full's: {', '.join(behind)}" if behind else ""


def localised(found: Predictions, base: Predictions) -> Estimate:
    """Accuracy over the base's (P2 fig. 3)."""
    return function_localisation(found, base)


def disturbed(found: Predictions, base: Predictions) -> Estimate:
    """How far accuracy over the base's is from 1, upwards or downwards: 0 where a skill leaves a task alone."""
    ratio = localised(found, base)
    return ratio if ratio.value is None else Estimate(abs(ratio.value - 1))


def distance(own: Predictions, linear: Predictions, base: Predictions) -> Estimate:
    """‖f − f_lin‖ / ‖f − f_0‖: 0 where the model is linear along its delta."""
    return distance_from_linear(own, linear, base=base)


def learning_rate(facts: Facts) -> Estimate:
    """The one that was chosen; the remark has all that were tried, with their validation scores."""
    tried = ", ".join(f"{lr}: {100 * score:.1f}" for lr, score in facts["validation"].items())
    return Estimate(facts["lr"], reason=f"validation scores {tried}")


def fact(*path: str) -> Callable[[Facts], float]:
    """A number that stands in a record, by the names that lead to it."""

    def found(facts: Facts) -> float:
        value: Any = facts
        for name in path:
            value = value[name]
        return float(value)

    return found


def cost(method: str, what: str) -> Callable[[Sequence[Facts]], float]:
    """What a step of a method of training costs."""
    return lambda costs: float({each["name"]: each for each in costs}[method][what])


def cost_over_full(method: str, what: str) -> Callable[[Sequence[Facts]], float]:
    """The same over full fine-tuning's in the same run."""
    return lambda costs: cost(method, what)(costs) / cost("full", what)(costs)


def error(first: int, second: int) -> Callable[[Facts], Estimate]:
    """ξ at the indices of two scales."""
    return lambda facts: Estimate(**facts["errors"][first][second])


def mean_error(facts: Facts) -> float:
    """The mean of ξ over the whole map."""
    return float(np.mean([[cell["value"] for cell in row] for row in facts["errors"]]))


def pruned(task: str, share: str) -> Callable[[Facts], Estimate]:
    """A task's accuracy without a share of the entries that one task found, over base's (P2 fig. 1)."""
    return lambda facts: Estimate(**_found_by_one(facts)[1][task][share])


def pruned_mean(share: str, *, own: bool) -> Callable[[Facts], Estimate]:
    """The mean over the tasks that did not find the entries, or the one that did."""

    def mean(facts: Facts) -> Estimate:
        finder, ratios = _found_by_one(facts)
        chosen = [at[share]["value"] for task, at in ratios.items() if (task == finder) == own]
        known = [value for value in chosen if value is not None]
        return Estimate(float(np.mean(known))) if known else Estimate(None, reason="no other task has a score to lose")

    return mean


def _found_by_one(facts: Facts) -> tuple[str, Facts]:
    ((finder, ratios),) = facts.items()
    return finder, ratios


def selected(layer: str, kind: str) -> Callable[[Region], Estimate]:
    """The share of a layer's entries of a kind that a region has (P2 figs. 4 and 5)."""

    def share(region: Region) -> Estimate:
        shape = _structure(region)
        found = shape.shares[shape.layers.index(layer), shape.kinds.index(kind)]
        return Estimate(None, reason=f"{layer} has no {kind}") if np.isnan(found) else Estimate(float(found))

    return share


def empty(kind: str, axis: str) -> Callable[[Region], Estimate]:
    """The share of the rows (or columns) of all matrices of a kind in which a region has no entry."""

    def share(region: Region) -> Estimate:
        matrices = [matrix for matrix in _structure(region).matrices if matrix.kind == kind]
        total, bare = (sum(getattr(matrix, name) for matrix in matrices) for name in (axis, f"empty_{axis}"))
        return Estimate(bare / total) if total else Estimate(None, reason=f"no matrix is of kind {kind}")

    return share


def mean_jaccard(*regions: Region) -> float:
    """The mean jaccard of several tasks' regions."""
    return _consistency(regions).mean_jaccard


def jaccard_by_chance(*regions: Region) -> float:
    """The mean jaccard of random regions of these sizes."""
    return _consistency(regions).chance


def in_all(*regions: Region) -> float:
    """How many entries all of the regions have, over the mean size of a region."""
    return _consistency(regions).common / float(np.mean([len(region) for region in regions]))


def _each(found: Sequence[Predictions]) -> tuple[Sequence[Predictions], Sequence[Predictions], Sequence[Predictions]]:
    combined, single, full = (found[index::_COMPARED] for index in range(_COMPARED))
    return combined, single, full


_structure = lru_cache(maxsize=16)(structure)


def _consistency(regions: Sequence[Region]) -> Consistency:
    return consistency({str(index): region for index, region in enumerate(regions)})
