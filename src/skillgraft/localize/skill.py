"""From a base and a tuned folder to a graft: find the region of a task's skill, cut the graft, tell what it keeps.

    located = localize_skill("MiniLM", "tuned", "sst2", budget=1e-4, data=Rows(shots=64))
    located.graft.info["scores"]["validation"]["graft"]["accuracy"]

Everything about data and folders is checked before the model is loaded. Scores are those of the validation rows; the test
rows are `evaluate`'s alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from skillgraft.checkpoint import Checkpoint, Tensors
from skillgraft.errors import InputError
from skillgraft.extraction import extract, open_tuned
from skillgraft.graft import Graft
from skillgraft.graft_file import load_region
from skillgraft.live import grafted
from skillgraft.localize.methods import Found, method
from skillgraft.localize.problem import Problem, Reference, Step
from skillgraft.localize.smallest import smallest_budget
from skillgraft.measure.metrics import METRICS
from skillgraft.measure.predict import by_length, predict
from skillgraft.measure.predictions import Predictions
from skillgraft.measure.summary import summary
from skillgraft.movement import count_of, most_moved
from skillgraft.readouts.loading import open_readouts
from skillgraft.readouts.readout import Batch, Encoded, Readout, loss_of
from skillgraft.region import Region, Scope
from skillgraft.tasks import Task, load_task, training_split
from skillgraft.training.batches import BatchOrder

EMPTY = "empty"
MOST = 0.1  # of the scope: beyond that a region is not small, and a search for the smallest gives up


@dataclass(frozen=True)
class Located:
    """What was found: the graft (with its scores in the provenance), and the scores of every density asked for."""

    graft: Graft
    curve: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Rows:
    """Which rows a search learns from, and how they are read. Defaults are P1's: batches of 1024, the true labels."""

    shots: int | None = None
    rows: int | None = None
    seed: int = 0
    batch_size: int = 1024
    max_length: int | None = None
    readout: str = "auto"
    labels: str = "true"  # or "tuned": learn from what the tuned model says (P1 D.4)

    def __post_init__(self) -> None:
        if self.labels not in ("true", "tuned"):
            raise InputError(f"labels are 'true' or 'tuned', found {self.labels!r}")


def localize_skill(
    base: str | Path,
    tuned: str | Path,
    task: str | Path | Task,
    *,
    name: str = "learned",
    scope: str = "layers",
    start: float | str | Path = 1e-5,
    budget: float | None = None,
    keep: float | None = None,
    densities: Sequence[float] = (),
    reference: Reference = "base",
    data: Rows = Rows(),
    **options: Any,
) -> Located:
    """Localize one task's skill by the method `name`, whose own settings are `options`.

    `budget` takes that many entries; `keep` the fewest that keep this share of tuned's score; neither: γ > ½.
    `start` is γ_base: a density, "empty", or a region file. `densities` are points of a curve over nested budgets.
    """
    if budget is not None and keep is not None:
        raise InputError("give a budget or a share to keep, not both")
    if keep is not None and not 0 < keep <= 1:
        raise InputError(f"a share to keep lies between 0 and 1, found {keep}")
    search = method(name)
    with _workplace(base, tuned, task, scope, reference, data) as place:
        begin = _start(start, place)
        if name == "learned":
            options.setdefault("score", place.score_now)
        found = search(place.problem, begin, most=_most(place.problem.scope, budget, keep, densities), **options)
        region = _region(found, place, budget, keep)
        scores = place.scores(region)
        curve = tuple(_point(found, place, density) for density in densities)
    plain = {key: value for key, value in options.items() if not callable(value)}
    asked = {"start": str(start), "budget": budget, "keep": keep, "scope": scope, "reference": reference}
    recipe = {**asked, **asdict(data), **plain}
    return Located(place.cut(region).with_info(method=name, recipe=recipe, scores={"validation": scores}), curve)


@dataclass(frozen=True, eq=False)
class _Workplace:
    """A loaded base with tuned's heads on it, the task's encoded rows, and the problem between base and tuned."""

    source: Checkpoint
    target: Tensors
    whole: Graft
    model: nn.Module
    readout: Readout
    train: Sequence[Encoded]
    validation: Sequence[Encoded]
    problem: Problem

    @cached_property
    def judged(self) -> Sequence[Encoded]:
        """The rows whose scores are told: validation, or training where there are none."""
        return self.validation or self.train

    def score_now(self) -> float:
        """The model as it stands, on training and validation rows: how steps of a search are compared (as P1 does)."""
        return METRICS["score"](predict(self.model, self.readout, [*self.train, *self.validation]))

    def said(self, region: Region) -> Predictions:
        """What the base says with tuned's numbers in this region."""
        with self.problem.borrowed():
            self.problem.put_on(region)
            return predict(self.model, self.readout, self.judged)

    @cached_property
    def base_said(self) -> Predictions:
        return self.said(Region(self.problem.scope, {}))

    @cached_property
    def tuned_said(self) -> Predictions:
        return self.said(Region.full(self.problem.scope))

    def scores(self, region: Region) -> dict[str, Any]:
        base, tuned = self.base_said, self.tuned_said
        graft = summary(self.said(region), base=base, tuned=tuned)
        return {"base": summary(base), "tuned": summary(tuned, base=base), "graft": graft}

    def cut(self, region: Region) -> Graft:
        """The graft of this region."""
        return Graft(
            region,
            {name: self.source.flat(name)[at] for name, at in region.sites.items()},
            {name: self.target.flat(name)[at] for name, at in region.sites.items()},
            heads=self.whole.heads,
            base_fingerprint=self.whole.base_fingerprint,
            info=self.whole.info.updated(
                task=self.readout.task.name,
                labels=list(self.readout.task.labels) or None,
                readout=dict(self.readout.settings),
                outside_scope=None,
            ),
        )


@contextmanager
def _workplace(
    base: str | Path, tuned: str | Path, task: str | Path | Task, scope: str, reference: Reference, data: Rows
) -> Iterator[_Workplace]:
    """Open everything; data and folders are checked before the model is loaded."""
    loaded = task if isinstance(task, Task) else load_task(task)
    split = training_split(loaded, shots=data.shots, rows=data.rows, seed=data.seed)
    whole = extract(base, tuned)
    source = Checkpoint.open(base)
    target = open_tuned(Path(tuned), source)
    opened = open_readouts(base, [loaded], readout=data.readout, max_length=data.max_length)
    readout = opened.readouts[0]
    train, validation = readout.encode(split.train), readout.encode(split.validation)
    heads_alone = whole & Region(whole.region.scope, {})
    with grafted(opened.model, heads_alone):
        if data.labels == "tuned":
            with grafted(opened.model, whole.without_heads()):
                train = _relabelled(opened.model, readout, train)
        steps = _steps(readout, train, data.batch_size, data.seed)
        problem = Problem.between(
            opened.model, target, steps=steps, loss=_loss(readout), scope=scope, reference=reference
        )
        yield _Workplace(source, target, whole, opened.model, readout, train, validation, problem)


def _steps(readout: Readout, rows: Sequence[Encoded], batch_size: int, seed: int) -> Callable[[int], Step]:
    """All rows at every step when they fit, else the step's own share of shuffled epochs; in parts of like length."""
    size = min(batch_size, len(rows))
    order = BatchOrder([len(rows)], batch_size=size, steps=10_000, seed=seed)

    def step(number: int) -> Step:
        mine = rows if size == len(rows) else [rows[row] for row in order.step(number)[1].tolist()]
        return [
            (readout.collate([mine[place] for place in part]), len(part) / len(mine)) for part in by_length(mine, 64)
        ]

    return step


def _loss(readout: Readout) -> Callable[[nn.Module, Batch], torch.Tensor]:
    return lambda model, batch: loss_of(readout.scores(model, batch), batch["labels"])


def _relabelled(model: nn.Module, readout: Readout, rows: Sequence[Encoded]) -> list[Encoded]:
    said = predict(model, readout, rows).predicted
    return [Encoded(row.inputs, int(label), row.length) for row, label in zip(rows, said, strict=True)]


def _start(start: float | str | Path, place: _Workplace) -> Region:
    scope = place.problem.scope
    if start == EMPTY:
        return Region(scope, {})
    if isinstance(start, str | Path):
        return load_region(start).within(scope)
    return most_moved(place.source, place.target, scope, start)


def _most(scope: Scope, budget: float | None, keep: float | None, densities: Sequence[float]) -> int:
    """The largest budget that will be asked for."""
    asked = [count_of(each, scope) for each in (budget, *densities) if each is not None]
    return max([*asked, _largest(scope) if keep is not None else 1])


def _largest(scope: Scope) -> int:
    return max(1, int(MOST * scope.size))


def _region(found: Found, place: _Workplace, budget: float | None, keep: float | None) -> Region:
    scope = place.problem.scope
    if budget is not None:
        return found.ranking.top(count_of(budget, scope))
    if keep is not None:
        target = keep * METRICS["score"](place.tuned_said)
        return found.ranking.top(
            smallest_budget(
                lambda count: METRICS["score"](place.said(found.ranking.top(count))),
                target=target,
                most=_largest(scope),
            )
        )
    if found.region is None:
        raise InputError("this method ranks entries but does not say how many: give a budget or a share to keep")
    return found.region


def _point(found: Found, place: _Workplace, density: float) -> dict[str, Any]:
    count = count_of(density, place.problem.scope)
    scores = summary(place.said(found.ranking.top(count)), base=place.base_said, tuned=place.tuned_said)
    return {"density": density, "entries": count, **scores}
