"""A base and a tuned folder, opened for searching: regions of tasks' skills, what they score, and the grafts cut from them.

    with open_pair("MiniLM", "tuned", ["sst2"], plan=SearchPlan.of(density=1e-4), data=Data(shots=64)) as pair:
        pair.scores("sst2", region)

The base's model carries tuned's heads while it is open. Data and folders are checked before the model is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from skillgraft.errors import InputError
from skillgraft.folders.checkpoint import Checkpoint, Tensors, content_digest, take
from skillgraft.folders.extract import changed_outside, check_pair, refuse_new_rows
from skillgraft.measure.metrics import METRICS
from skillgraft.measure.summary import summary
from skillgraft.opening.activations import recomputed
from skillgraft.opening.device import working_format
from skillgraft.opening.runtime import Runtime
from skillgraft.predictions.completions import Completions
from skillgraft.predictions.predictions import AnyPredictions
from skillgraft.readouts.readout import Encoded
from skillgraft.regions.lines import within_lines
from skillgraft.regions.problem import Problem, Start, holding_all, starting_region
from skillgraft.regions.search import SearchPlan
from skillgraft.regions.targets import Targets
from skillgraft.task_model import TaskModel
from skillgraft.tasks.data import Data, TaskLike
from skillgraft.values.graft import Graft
from skillgraft.values.region import Region, Scope

Rows = Mapping[str, Sequence[Encoded]]
SPLITS = ("train", "validation")


@dataclass(frozen=True, eq=False)
class TunedPair:
    """The opened base, tuned's numbers, and the problem between them for some of the tasks.

    `heads` is the graft of tuned's heads alone, with its provenance. A search learns from the `train` rows and compares its
    steps on `compared`: training and validation rows, as P1's authors do. Scores are those of the validation rows, or of the
    training rows where there are none. `targets` says whose answers are learned; the rows of tasks in `unlabelled` have only
    tuned's, and are scored by −KL to them. `controls` are tasks on which base's answers should stay.
    """

    opened: TaskModel
    base: Checkpoint
    tuned: Tensors
    heads: Graft
    plan: SearchPlan
    train: Rows
    compared: Rows
    problem: Problem
    tasks: tuple[str, ...]
    searched: Tensors  # tuned, where the search may look
    targets: Targets
    unlabelled: frozenset[str] = frozenset()
    controls: tuple[str, ...] = ()
    _predictions: dict[tuple[str, str], AnyPredictions] = field(default_factory=dict)
    _distances: dict[str, tuple[float, float]] = field(default_factory=dict)

    def of(self, tasks: Sequence[str]) -> TunedPair:
        """The same about the sum of these tasks' losses (the controls' too) and their mean score; no numbers are copied."""
        return replace(self, tasks=tuple(tasks))._learning(self.targets)

    def weighing_controls(self, strength: float) -> TunedPair:
        """The same with the KL to base's answers on controls times this strength."""
        return self._learning(replace(self.targets, weights=dict.fromkeys(self.controls, strength)))

    def _learning(self, targets: Targets) -> TunedPair:
        train = {task: self.train[task] for task in (*self.tasks, *self.controls)}
        steps = targets.steps(train, batch_size=self.plan.step_rows, balanced=self.plan.balanced)
        return replace(self, targets=targets, problem=replace(self.problem, steps=steps, loss=targets.loss))

    def start(self, start: Start) -> Region:
        """γ_base: a density of the most moved entries, nothing ("empty"), a region, or its file."""
        return starting_region(start, self.base, self.searched, self.problem.scope)

    def score_now(self) -> float:
        """The mean score over tasks of the model as it stands, on the compared rows; by tuned's answers if it learns these."""
        return float(np.mean([self._score_now(task, self.compared[task], self.taught) for task in self.tasks]))

    @property
    def taught(self) -> frozenset[str]:
        """The tasks on which tuned's own answers are learned, and not labels."""
        return frozenset(self.tasks) if self.plan.labels == "tuned" else self.unlabelled

    def _score_now(self, task: str, rows: Sequence[Encoded], unlabelled: Collection[str]) -> float:
        if task in unlabelled:
            return -self.targets.distance(task, rows)
        return METRICS["merit"](self.opened.answers(task, rows))

    def score(self, problem: Problem, region: Region) -> float:
        """The mean score over tasks with tuned's change in this region."""
        with problem.holding(region):
            return float(np.mean([self._score_now(task, self.scored(task), self.unlabelled) for task in self.tasks]))

    def tuned_score(self) -> float:
        """All of tuned's, whatever the scope leaves out."""
        return self._mean_score(self.tuned_predictions, 0.0)

    def base_score(self) -> float:
        """The base's."""
        return self._mean_score(self.base_predictions, None)

    def _mean_score(self, predictions: Callable[[str], AnyPredictions], distance: float | None) -> float:
        found = []
        for task in self.tasks:
            far = self.distances(task)[0] if distance is None else distance
            found.append(-far if task in self.unlabelled else METRICS["merit"](predictions(task)))
        return float(np.mean(found))

    def trial(self, problem: Problem, region: Region) -> dict[str, float]:
        """What scales and strengths are compared by: the loss on the scored rows, and with controls the damage as well.

        Without controls the merit is −loss. With them it is the share of tuned's improvement that is kept, less the share of
        its damage (KL to base's answers on the controls) that is left.
        """
        with problem.holding(region):
            found = [self._measured(task) for task in self.tasks]
            facts = {
                key: float(np.mean([each[key] for each in found]))
                for key in found[0]
                if all(key in each for each in found)
            }
            if not self.controls:
                return {"merit": -facts["loss"], **facts}
            left = sum(self.targets.distance(control, self.scored(control)) for control in self.controls)
        facts["gain"] = (self.base_loss() - facts["loss"]) / self._improvement()
        facts["damage"] = left / max(sum(self.distances(control)[1] for control in self.controls), 1e-12)
        return {"merit": facts["gain"] - facts["damage"], **facts}

    def _measured(self, task: str) -> dict[str, float]:
        """The loss of the model as it stands on a task's scored rows; of labelled ones also score and calibration error."""
        rows = self.scored(task)
        loss = {"loss": self.targets.distance(task, rows)} if task in self.taught else {}
        if task in self.unlabelled:
            return loss
        found = self.opened.answers(task, rows)
        facts = {"loss": METRICS["nll"](found), "score": METRICS["score"](found), **loss}
        return facts if isinstance(found, Completions) else {**facts, "ece": METRICS["ece"](found)}

    def base_loss(self) -> float:
        """The mean loss of base over tasks: NLL, or KL to tuned's answers where these are learned."""
        return float(np.mean([self._loss(task, self.base_predictions, 0) for task in self.tasks]))

    def _improvement(self) -> float:
        tuned = float(np.mean([self._loss(task, self.tuned_predictions, 1) for task in self.tasks]))
        gain = self.base_loss() - tuned
        if not gain > 0:
            raise InputError(
                f"tuned's loss on the validation rows is {tuned:.3f} and base's {self.base_loss():.3f}: nothing improved that a "
                "damage could be weighed against; give a control strength, or labels='tuned'"
            )
        return gain

    def _loss(self, task: str, predictions: Callable[[str], AnyPredictions], model: int) -> float:
        return self.distances(task)[model] if task in self.taught else METRICS["nll"](predictions(task))

    def distances(self, task: str) -> tuple[float, float]:
        """How far base and tuned are from the task's teacher, as mean KL over its scored rows; asked once."""
        if task not in self._distances:
            rows = self.scored(task)
            base = self.targets.distance(task, rows)
            with holding_all(self.opened.model, self.tuned):
                self._distances[task] = base, self.targets.distance(task, rows)
        return self._distances[task]

    def predict(self, task: str, region: Region, problem: Problem | None = None) -> AnyPredictions:
        """What the reference answers with tuned's change in this region."""
        with (problem or self.problem).holding(region):
            return self.opened.answers(task, self.scored(task))

    def base_predictions(self, task: str) -> AnyPredictions:
        """What the base answers; asked once."""
        if ("base", task) not in self._predictions:
            self._predictions["base", task] = self.opened.answers(task, self.scored(task))
        return self._predictions["base", task]

    def tuned_predictions(self, task: str) -> AnyPredictions:
        """What all of tuned answers, whatever the scope leaves out; asked once."""
        if ("tuned", task) not in self._predictions:
            with holding_all(self.opened.model, self.tuned):
                self._predictions["tuned", task] = self.opened.answers(task, self.scored(task))
        return self._predictions["tuned", task]

    def summary(self, task: str, region: Region, problem: Problem | None = None) -> dict[str, Any]:
        """Everything that a table shows about a region's predictions."""
        base, tuned = self.base_predictions(task), self.tuned_predictions(task)
        return summary(self.predict(task, region, problem), base=base, tuned=tuned)

    def scores(self, task: str, region: Region, problem: Problem | None = None) -> dict[str, Any]:
        """Base, tuned and graft on the task's rows."""
        base, tuned = self.base_predictions(task), self.tuned_predictions(task)
        graft = self.summary(task, region, problem)
        return {"base": summary(base), "tuned": summary(tuned, base=base), "graft": graft}

    def cut(self, region: Region, task: str | None = None) -> Graft:
        """The graft of this region, with tuned's heads; with a task's name its labels and readout are recorded."""
        graft = replace(
            self.heads,
            region=region,
            before={name: take(self.base, name, at) for name, at in region.sites.items()},
            change={name: take(self.tuned, name, at) for name, at in region.sites.items()},
        ).with_info(outside_scope=self.outside or None)
        if task is None:
            return graft
        readout = self.opened.rows.readout(task)
        labels = list(readout.task.labels) or None
        return graft.with_info(task=task, labels=labels, readout=dict(readout.settings))

    @cached_property
    def outside(self) -> dict[str, int]:
        """Tensor → entries that tuned changed though neither the scope nor a head holds them."""
        return changed_outside(self.base, self.tuned, self.heads.region.scope.shapes, self.problem.scope)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What decides a search here: the content of base, tuned and rows, and how they are read."""
        rows = self.opened.rows
        return {
            "base": self.base.digest,
            "tuned": content_digest(self.tuned),
            "heads": self.heads.digest,
            "data": asdict(rows.data),
            "rows": {task: [rows.examples(task, split).digest for split in SPLITS] for task in self.train},
            "readouts": {task: dict(rows.readout(task).settings) for task in self.train},
            "dtype": str(rows.loader.dtype),
            "tasks": self.tasks,
            "processes": self.opened.processes.count,
        }

    def scored(self, task: str) -> Sequence[Encoded]:
        """The rows that scores are measured on."""
        return self.opened.rows.encoded(task, "validation") or self.opened.rows.encoded(task, "train")


@contextmanager
def open_pair(
    base: str | Path,
    tuned: str | Path,
    tasks: Sequence[TaskLike],
    *,
    plan: SearchPlan,
    controls: Sequence[TaskLike] = (),
    unlabelled: Collection[str] = (),
    data: Data = Data(),
    convert: bool = False,
    runtime: Runtime = Runtime(),
) -> Iterator[TunedPair]:
    """Open everything. float16 folders are searched in float32: gradients of a small loss vanish in float16.

    Of tasks in `unlabelled` only the rows count; plans with labels="tuned" learn tuned's answers on every task.
    """
    source, numbers, heads = check_pair(base, tuned, convert=convert)
    refuse_new_rows(heads, tuned)
    scope = Scope.select(plan.scope, heads.region.scope.shapes)
    searched, count = numbers, plan.count(scope)
    if plan.max_rank is not None:
        searched = within_lines(source, numbers, scope, most=plan.max_rank, count=count)
    dtype = working_format(str(source.format), runtime.dtype)
    opened = TaskModel.open(
        base, [*tasks, *controls], data=data, dtype=dtype, device=runtime.device, splits=SPLITS,
        shard=runtime.shard,
    )  # fmt: skip
    names, kept = opened.tasks[: len(tasks)], opened.tasks[len(tasks) :]
    train = {task: opened.rows.encoded(task, "train") for task in opened.tasks}
    compared = {task: [*train[task], *opened.rows.encoded(task, "validation")] for task in opened.tasks}
    learned = names if plan.labels == "tuned" else [task for task in names if task in unlabelled]
    teachers = {**dict.fromkeys(learned, numbers), **dict.fromkeys(kept, source)}
    strength = 1.0 if isinstance(plan.control_strength, str) else plan.control_strength
    targets = Targets(opened, teachers, dict.fromkeys(kept, strength), plan.mixed_precision)
    asked = _asked_before(opened, names) if opened.rows.reads_heads else {}
    again = recomputed(opened.model) if plan.checkpoint_activations else nullcontext()
    with opened.holding(heads), again:
        problem = Problem.between(
            opened.model,
            searched,
            steps=targets.steps(train, batch_size=plan.step_rows, balanced=plan.balanced),
            loss=targets.loss,
            scope=plan.scope,
            reference=plan.reference,
            processes=opened.processes,
        )
        yield TunedPair(
            opened, source, numbers, heads, plan, train, compared, problem, names, searched, targets,
            frozenset(names) & frozenset(unlabelled), kept, asked,
        )  # fmt: skip


def _asked_before(opened: TaskModel, tasks: Sequence[str]) -> dict[tuple[str, str], AnyPredictions]:
    """What base answers through its own head: `evaluate` has no other one for it."""
    rows = {task: opened.rows.encoded(task, "validation") or opened.rows.encoded(task, "train") for task in tasks}
    return {("base", task): opened.answers(task, own) for task, own in rows.items()}
