"""Cells' numbers from the folders of finished steps: thin readers in front of `measure`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from skillgraft import graft_file
from skillgraft.compose.store import Store
from skillgraft.ledger import LEDGER
from skillgraft.measure.bounds import generalization_bound, log_all_regions
from skillgraft.measure.calibration import confidence_histogram, temperature_scaled
from skillgraft.measure.comparisons import agreement, relative_gain, share_kept, train_test_gap
from skillgraft.measure.intervals import Estimate, interval, paired_difference
from skillgraft.measure.matrices import alike, coverage_matrix
from skillgraft.measure.metrics import METRICS
from skillgraft.measure.predictions import Predictions, same_rows
from skillgraft.measure.shifting import shifted
from skillgraft.names import kind_of
from skillgraft.region import Region
from skillgraft.reproduce.content import scope_of
from skillgraft.reproduce.jobs.artefacts import GRAFT, MODEL, SAID, region_of
from skillgraft.reproduce.jobs.continual import SKILLS
from skillgraft.weight_files import read_json


def read(step: Path) -> Predictions:
    return Predictions.load(step / SAID)


def score(said: Path) -> Estimate:
    """The task's own metric (accuracy, or F1)."""
    return interval(read(said))


def shifted_score(said: Path, validation: Path) -> Estimate:
    """The same after one number per class is added to the scores, fitted on validation rows."""
    return interval(shifted(read(said), read(validation)))


def ece(said: Path) -> Estimate:
    return interval(read(said), metric="ece")


def tempered_ece(said: Path, validation: Path) -> Estimate:
    """ECE at the temperature that fits the validation rows: the yardstick that needs held-out rows (P1 A.3)."""
    return interval(temperature_scaled(read(said), read(validation)), metric="ece")


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


def best(place: int) -> Callable[..., Estimate]:
    """Of pairs (in distribution, out of distribution) the one with the highest sum of scores; its first or second score."""

    def chosen(*said: Path) -> Estimate:
        scores = [METRICS["score"](read(each)) for each in said]
        sums = [inside + outside for inside, outside in zip(scores[::2], scores[1::2], strict=True)]
        return score(said[2 * sums.index(max(sums)) + place])

    return chosen


def confident(bins: int, place: int) -> Callable[[Path], float]:
    """The share of rows whose confidence falls into a bin (P1 fig. 6)."""

    def share(said: Path) -> float:
        counts = confidence_histogram(read(said), bins=bins).counts
        return counts[place] / sum(counts)

    return share


def entries(step: Path) -> float:
    """How many entries a step's region has."""
    return float(len(region_of(step)))


def density(step: Path) -> float:
    return region_of(step).density


def scale(step: Path) -> float:
    """How many times tuned's change a step's graft carries."""
    return graft_file.load(step / GRAFT).scale


def jaccard(one: Path, other: Path) -> float:
    return region_of(one).jaccard(region_of(other))


def coverage(one: Path, other: Path) -> Estimate:
    """How much of the other step's region the one's covers (P1 fig. 8a)."""
    covered = region_of(other)
    if not len(covered):
        return Estimate(None, reason="the region to be covered is empty")
    return Estimate(region_of(one).coverage(of=covered))


def likeness(names: Sequence[str]) -> Callable[..., str]:
    """A sentence on which tasks' regions are alike (P1 §5.1); a step with a region for each name."""

    def told(*steps: Path) -> str:
        regions = {name: region_of(step) for name, step in zip(names, steps, strict=True)}
        some = {name: region for name, region in regions.items() if len(region)}
        if len(some) < 2:
            return "Too few regions have entries to tell which tasks are alike."
        found = alike(coverage_matrix(some))
        groups = "; ".join(" and ".join(group) for group in found.groups)
        return f"By what their regions share, the tasks stand in the order {', '.join(found.order)}. Groups: {groups}."

    return told


def difference(one: Path, other: Path) -> Estimate:
    """The one's score minus the other's, on the same rows."""
    return paired_difference(read(one), read(other))


def same_scores(one: Path, other: Path) -> float:
    """The share of rows whose scores are the same, bit for bit; 1 means that nothing was forgotten."""
    a, b = read(one), read(other)
    same_rows(a, b)
    return float((a.scores.view(np.int32) == b.scores.view(np.int32)).all(axis=1).mean())


def skill_bytes(step: Path) -> float:
    """The size of a store of grafts."""
    return float(sum(file.stat().st_size for file in (step / SKILLS).iterdir()))


def skill_entries(name: str) -> Callable[[Path], float]:
    """How many entries of a store of grafts belong to a task alone."""
    return lambda step: float({kept.task: kept.entries for kept in Store.open(step / SKILLS).kept}[name])


def model_bytes(*steps: Path) -> float:
    """The size of the weights of tuned models."""
    return float(sum(file.stat().st_size for step in steps for file in (step / MODEL).glob("*.safetensors")))


def trained(base: str) -> Callable[[Path], float]:
    """How many numbers a tuning step trained, over the entries of the base's layers."""
    return lambda step: float(read_json(step / MODEL / LEDGER)["made"]["trained"]) / scope_of(base).size


def rows(said: Path) -> float:
    """How many rows a model was asked about."""
    return float(len(read(said)))


def bound(*, any_region: bool = False, retrained: bool = True, bits: int = 32) -> Callable[[Path, Path], Estimate]:
    """P1's theorems D.2 and D.4 for a step's region and as many training rows as were answered; 95 %.

    `any_region` counts all regions of that size, as one that was learned from the rows needs; otherwise it was fixed before.
    """

    def proved(found: Path, training: Path) -> Estimate:
        region = region_of(found)
        which = log_all_regions(len(region), region.scope.size) if any_region else 0.0
        nats = bits * math.log(2)
        proof = generalization_bound(
            len(region), len(read(training)), log_levels=nats, log_regions=which, retrained=retrained
        )
        return Estimate(proof.value, reason="vacuous" if proof.vacuous else "")

    return proved


def layer_share(layer: str, kind: str = "") -> Callable[[Path], Estimate]:
    """The share of a region's entries (of one kind) that lie in a layer (P1 fig. 9)."""
    return lambda step: _share(_region(step, kind).by_layer(), layer, kind)


def kind_share(kind: str) -> Callable[[Path], Estimate]:
    """The share of a region's entries that are of a kind (P1 fig. 10)."""
    return lambda step: _share(_region(step, "").by_kind(), kind, "")


@cache
def _region(step: Path, kind: str) -> Region:
    region = region_of(step)
    sites = {name: at for name, at in region.sites.items() if not kind or kind_of(name) == kind}
    return Region(region.scope, sites)


def _share(counts: dict[str, int], name: str, kind: str) -> Estimate:
    total = sum(counts.values())
    return Estimate(counts[name] / total) if total else Estimate(None, reason=f"no {kind or 'entry'} in the region")
