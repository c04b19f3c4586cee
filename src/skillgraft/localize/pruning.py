"""The pruning test (P2 figure 1): which entries a model can do without, found on one task and tried on every other.

found = pruning_sensitivity("MiniLM", ["sst2", "trec"], rows=200)
found.ratios["sst2"]["trec"][0.1].value      # trec without the 10 % that sst2 is least sensitive to, / base
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from skillgraft.errors import InputError, did_you_mean, listed
from skillgraft.localize.fisher import fisher_diagonal
from skillgraft.localize.sensitivity import in_scope, lowest, multiplied, share_of
from skillgraft.localize.workplace import Rows
from skillgraft.measure.comparisons import function_localisation
from skillgraft.measure.intervals import Bootstrap, Estimate
from skillgraft.measure.matrices import Matrix
from skillgraft.measure.predict import predict
from skillgraft.measure.predictions import Predictions
from skillgraft.readouts.loading import open_readouts
from skillgraft.readouts.readout import Encoded, Readout
from skillgraft.region import Region, Scope
from skillgraft.tasks import Task, load_task, measured_split, training_split

SHARES = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4)
OnTask = Callable[[int, int], None]


@dataclass(frozen=True)
class Pruned:
    """What pruning does: `ratios[found on][scored on][share]` = accuracy / base's, and what base said by task."""

    ratios: Mapping[str, Mapping[str, Mapping[float, Estimate]]]
    base: Mapping[str, Predictions]

    def at(self, share: float) -> Matrix:
        """One heat map of figure 1: rows are the tasks that found the entries, columns those that are scored."""
        return Matrix.of(list(self.ratios), list(self.base), lambda found, scored: self.ratios[found][scored][share])


@dataclass(frozen=True)
class _Judge:
    """One loaded model, and the rows of every task."""

    model: nn.Module
    parameters: Mapping[str, nn.Parameter]
    scope: Scope
    tasks: Mapping[str, tuple[Readout, Sequence[Encoded]]]

    def said(self) -> dict[str, Predictions]:
        return {name: predict(self.model, readout, rows) for name, (readout, rows) in self.tasks.items()}

    def said_without(
        self, fisher: Mapping[str, Tensor], counts: Mapping[float, int]
    ) -> Iterator[tuple[float, dict[str, Predictions]]]:
        """What the model says with so many of the least sensitive entries set to 0, for each share."""
        region = Region.full(self.scope)
        for share in sorted(counts, reverse=True):  # a smaller share lies inside a larger one
            region = lowest(fisher, region, counts[share])
            with multiplied(self.parameters, {name: region.mask(name) for name in region}, 0.0):
                said = self.said()
            yield share, said


def pruning_sensitivity(
    base: str | Path,
    tasks: Sequence[str | Path | Task],
    *,
    found_on: Sequence[str] | None = None,
    shares: Sequence[float] = SHARES,
    rows: int | None = None,
    split: str = "test",
    data: Rows = Rows(),
    scope: str = "layers",
    samples: int = 1,
    bootstrap: Bootstrap = Bootstrap(),
    on_task: OnTask | None = None,
) -> Pruned:
    """Set the share of the scope with the lowest Fisher information on task i to 0, score on task j, divide by base.

    Entries are found on the training rows of `data`, in one round without damping; scored are `rows` of the test split, or
    the validation rows of `data`. One model is loaded, and every pruning is undone exactly. `found_on` names the tasks i, all
    of them by default.
    """
    loaded = [task if isinstance(task, Task) else load_task(task) for task in tasks]
    names = [task.name for task in loaded]
    if not names or len(set(names)) < len(names):
        raise InputError(f"expected tasks with different names, found {listed(names) or 'none'}")
    finders = names if found_on is None else found_on
    for name in finders:
        if name not in names:
            raise InputError(f"entries are found on one of the tasks, found {name!r}; {did_you_mean(name, names)}")
    training = {
        task.name: training_split(task, shots=data.shots, rows=data.rows, seed=data.seed).train
        for task in loaded
        if task.name in finders
    }
    scored = rows if split == "test" else data.rows
    measured = [measured_split(task, split, shots=data.shots, rows=scored, seed=data.seed) for task in loaded]
    opened = open_readouts(base, loaded, readout=data.readout, max_length=data.max_length)
    parameters, chosen = in_scope(opened.model, scope)
    counts = {share: share_of(chosen, share) for share in shares}
    encoded = [(read, read.encode(examples)) for read, examples in zip(opened.readouts, measured, strict=True)]
    judge = _Judge(opened.model, parameters, chosen, dict(zip(names, encoded, strict=True)))
    said = judge.said()
    ratios: dict[str, dict[str, dict[float, Estimate]]] = {}
    for number, (name, examples) in enumerate(training.items(), start=1):
        readout = judge.tasks[name][0]
        rows_of_task = readout.encode(examples)
        fisher = fisher_diagonal(judge.model, readout, rows_of_task, parameters, samples=samples, seed=data.seed)
        ratios[name] = {other: {} for other in names}
        for share, pruned in judge.said_without(fisher, counts):
            for other, theirs in pruned.items():
                ratios[name][other][share] = function_localisation(theirs, said[other], bootstrap=bootstrap)
        if on_task:
            on_task(number, len(training))
    return Pruned(ratios, said)
