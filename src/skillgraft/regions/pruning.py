"""The pruning test (P2 figure 1): which entries a model can do without, found on one task and tried on every other.

found = pruning_sensitivity("MiniLM", ["sst2", "trec"], data=Data(train_rows=256, test_rows=200))
found.ratios["sst2"]["trec"][0.1].value      # trec without the 10 % that sst2 is least sensitive to, / base
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from skillgraft.errors import InputError, did_you_mean
from skillgraft.measure.comparisons import function_localisation
from skillgraft.measure.intervals import Bootstrap, Estimate
from skillgraft.measure.matrices import Matrix
from skillgraft.opening.device import working_format
from skillgraft.opening.source import Source
from skillgraft.predictions.predictions import AnyPredictions
from skillgraft.regions.fisher import fisher_diagonal
from skillgraft.regions.sensitivity import in_scope, lowest, multiplied, share_of
from skillgraft.task_model import TaskModel
from skillgraft.tasks.data import Data, TaskLike, load_tasks
from skillgraft.values.region import Region, Scope

SHARES = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4)
OnTask = Callable[[int, int], None]


@dataclass(frozen=True)
class Pruned:
    """What pruning does: `ratios[found on][scored on][share]` = accuracy / base's, and the base's predictions by task."""

    ratios: Mapping[str, Mapping[str, Mapping[float, Estimate]]]
    base: Mapping[str, AnyPredictions]

    def at(self, share: float) -> Matrix:
        """One heat map of figure 1: rows are the tasks that found the entries, columns those that are scored."""
        return Matrix.of(list(self.ratios), list(self.base), lambda found, scored: self.ratios[found][scored][share])

    def as_json(self) -> dict[str, Any]:
        """The ratios, by the tasks' names and the share."""
        return {
            finder: {
                scored: {f"{share:g}": ratio.as_json() for share, ratio in by_share.items()}
                for scored, by_share in by_task.items()
            }
            for finder, by_task in self.ratios.items()
        }


def pruning_sensitivity(
    base: str | Path,
    tasks: Sequence[TaskLike],
    *,
    found_on: Sequence[str] | None = None,
    shares: Sequence[float] = SHARES,
    split: str = "test",
    data: Data = Data(),
    scope: str = "layers",
    samples: int = 1,
    bootstrap: Bootstrap = Bootstrap(),
    on_task: OnTask | None = None,
) -> Pruned:
    """Set the share of the scope with the lowest Fisher information on task i to 0, score on task j, divide by base.

    Entries are found on the training rows of `data`, in one round without damping; scored are its test rows, or its
    validation rows. One model is loaded, and every pruning is undone exactly. `found_on` names the tasks i, all of them by
    default.
    """
    loaded = {task.name: task for task in load_tasks(tasks)}
    finders = list(loaded) if found_on is None else found_on
    for name in finders:
        if name not in loaded:
            raise InputError(f"entries are found on one of the tasks, found {name!r}; {did_you_mean(name, loaded)}")
    training = {name: data.examples(loaded[name], "train") for name in finders}
    dtype = working_format(Source.of(base).format, None)  # squared gradients vanish in float16
    opened = TaskModel.open(base, list(loaded.values()), data=data, dtype=dtype, splits=(split,))
    parameters, chosen = in_scope(opened.model, scope)
    counts = {share: share_of(chosen, share) for share in shares}
    before = opened.predict(split=split)
    ratios: dict[str, dict[str, dict[float, Estimate]]] = {}
    for number, (name, examples) in enumerate(training.items(), start=1):
        readout = opened.rows.readout(name)
        rows = readout.encode(examples)
        fisher = fisher_diagonal(opened.model, readout, rows, parameters, samples=samples, seed=data.seed)
        ratios[name] = {other: {} for other in loaded}
        for share, region in _nested(fisher, chosen, counts):
            with _without(parameters, region):
                after = opened.predict(split=split)
            for other, found in after.items():
                ratios[name][other][share] = function_localisation(found, before[other], bootstrap=bootstrap)
        if on_task:
            on_task(number, len(training))
    return Pruned(ratios, before)


def _nested(fisher: Mapping[str, Tensor], scope: Scope, counts: Mapping[float, int]) -> Iterator[tuple[float, Region]]:
    """For each share so many of the least sensitive entries; a smaller share lies inside a larger one."""
    region = Region.full(scope)
    for share in sorted(counts, reverse=True):
        region = lowest(fisher, region, counts[share])
        yield share, region


def _without(parameters: Mapping[str, nn.Parameter], region: Region) -> AbstractContextManager[None]:
    """The model with the region's entries set to 0; the exact old numbers come back."""
    return multiplied(parameters, region.mask, 0.0)
