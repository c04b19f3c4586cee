"""The opened thing: a base's model with its tasks' readouts and rows. All that is trained, searched and asked goes through it.

    opened = TaskModel.open("MiniLM", ["sst2", "ag_news"], data=Data(shots=64))
    opened.predict()["sst2"]           # the base's predictions for the validation rows
    opened.predict(graft)["sst2"]      # those of the base with a graft on it

The model is loaded in its folder's own number format, on one device, with the attention that its architecture supports.
Law: after any call its numbers are the base's, bit for bit. Data and tasks are checked before the weights are loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from skillgraft.errors import InputError, did_you_mean, listed
from skillgraft.folders.weight_files import ADAPTER, has_adapters, refuse_adapters
from skillgraft.live.bottleneck import Adapters
from skillgraft.live.grafted import grafted, number_formats
from skillgraft.opening.device import autocast, find_device, is_wider, torch_dtype
from skillgraft.opening.processes import Processes
from skillgraft.opening.runtime import MixedPrecision
from skillgraft.opening.source import Source
from skillgraft.predictions.predict import by_length, on_device, predict
from skillgraft.predictions.predictions import AnyPredictions
from skillgraft.readouts.readout import Batch, Encoded, Options, Plan, Readout, loss_of, units_of
from skillgraft.readouts.readouts import Loader, choose_plan
from skillgraft.tasks import Examples
from skillgraft.tasks.data import BatchOrder, Data, Rows, TaskLike, load_tasks
from skillgraft.values.graft import Graft

VALIDATION = "validation"
_TOGETHER = 64  # rows of one backward pass
_ORDERED_STEPS = 10_000  # the rows of later steps are those of the first ones again
# A task's name and a batch of its rows; the batches of one step, each with its weight in the step's loss.
TaskBatch = tuple[str, Batch]
Step = Iterable[tuple[TaskBatch, float]]
RowProgress = Callable[[str, int, int], None]  # task, rows done, rows in all


@dataclass(frozen=True, eq=False)
class TaskRows:
    """What is asked, whichever model answers: each task's readout and its rows, which are read and encoded once.

    `name` names the readouts. `loader` loads the base, and any tuned folder of the same architecture.
    """

    readouts: Mapping[str, Readout]
    data: Data
    name: str
    loader: Loader
    processes: Processes
    _examples: dict[tuple[str, str], Examples] = field(default_factory=dict)
    _encoded: dict[tuple[str, str], Sequence[Encoded]] = field(default_factory=dict)

    def readout(self, task: str) -> Readout:
        if task not in self.readouts:
            raise InputError(f"the task {task!r} was not opened; {did_you_mean(task, self.readouts)}")
        return self.readouts[task]

    def examples(self, task: str, split: str = VALIDATION) -> Examples:
        """The rows as they were read."""
        if (task, split) not in self._examples:
            self._examples[task, split] = self.data.examples(self.readout(task).task, split)
        return self._examples[task, split]

    def encoded(self, task: str, split: str = VALIDATION) -> Sequence[Encoded]:
        """The rows as the model takes them."""
        if (task, split) not in self._encoded:
            self._encoded[task, split] = self.readout(task).encode(self.examples(task, split))
        return self._encoded[task, split]

    @property
    def reads_heads(self) -> bool:
        """Whether the scores are read off heads that hold the task's classes (classifier, with its pooler)."""
        return self.loader.plan.head == "made"

    def over(self, folder: str | Path, *, rounded_to: str | None = None) -> TaskModel:
        """A tuned folder of the base, asked the same; bottleneck adapters that lie in it are attached.

        Its numbers are rounded to the base's format first, if that is given and narrower than the one they are held in.
        """
        source = Source.of(folder)
        model, fresh = self.loader(source)
        if rounded_to is not None and is_wider(self.loader.dtype, rounded_to):
            _round(model, torch_dtype(rounded_to))
        if fresh and self.reads_heads:
            raise InputError(f"{folder} lacks {listed(fresh)}, which the {self.name} readout reads")
        if has_adapters(folder):
            Adapters.load(Path(folder) / ADAPTER).attach(model)
        return TaskModel(model, self, source, fresh)


@dataclass(frozen=True, eq=False)
class TaskModel:
    """A loaded model and what it is asked. `fresh` are the tensors that no file held, drawn from a seed (a linear head)."""

    model: nn.Module
    rows: TaskRows
    source: Source
    fresh: tuple[str, ...] = ()

    @classmethod
    def open(
        cls,
        base: str | Path,
        tasks: Sequence[TaskLike],
        *,
        data: Data = Data(),
        dtype: str | torch.dtype | None = None,
        device: str | torch.device | None = None,
        splits: Sequence[str] = (),
        attention: str | None = None,
        seed: int = 0,
        options: Options | None = None,
        shard: bool = False,
    ) -> TaskModel:
        """Load the base. The rows of `splits` are read, and what is wrong with them refused, before the weights are loaded.

        There must be rows in each of them; but where `train` rows are read there may be none that validate.
        `dtype` None is the folder's own format, `device` None the one that accelerate finds. `seed` draws a fresh head. `shard`
        splits the model over the processes.
        """
        refuse_adapters(base)
        loaded = load_tasks(tasks)
        needed = [split for split in splits if split != VALIDATION or "train" not in splits]
        read = {
            (task.name, split): (data.needed if split in needed else data.examples)(task, split)
            for task in loaded
            for split in splits
        }
        source = Source.of(base)
        plan, name = choose_plan(source, loaded, readout=data.readout, options=options or Options(data.max_length))
        where, processes = find_device(device, shard=shard)
        loader = Loader(plan, torch_dtype(dtype or source.format), where, attention, seed, shard)
        model, fresh = loader(source)
        readouts = dict(zip((task.name for task in loaded), plan.bind(model), strict=True))
        return cls(model, TaskRows(readouts, data, name, loader, processes, read), source, fresh)

    def with_data(self, data: Data) -> TaskModel:
        """The same model and readouts over other rows of the same tasks."""
        rows = TaskRows(self.rows.readouts, data, self.rows.name, self.rows.loader, self.rows.processes)
        return TaskModel(self.model, rows, self.source, self.fresh)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks' names, in order."""
        return tuple(self.rows.readouts)

    @property
    def device(self) -> torch.device:
        return self.rows.loader.device

    @property
    def processes(self) -> Processes:
        return self.rows.processes

    def fitted(self, graft: Graft) -> Graft:
        """The graft in the number formats in which this model holds its tensors."""
        return graft.in_formats(number_formats(self.model, (*graft.before, *graft.heads)))

    @contextmanager
    def holding(self, graft: Graft | None) -> Iterator[nn.Module]:
        """The model with a graft on it (None: as it is); afterwards its numbers are the base's again."""
        with nullcontext() if graft is None else grafted(self.model, self.fitted(graft)):
            yield self.model

    def predict(
        self,
        graft: Graft | None = None,
        *,
        tasks: Sequence[str] | None = None,
        split: str = VALIDATION,
        batch_size: int = 64,
        made_by: Mapping[str, str] | None = None,
        progress: RowProgress | None = None,
        generates: bool = False,
    ) -> dict[str, AnyPredictions]:
        """What the base, with the graft on it if one is given, answers about the rows of these tasks (all by default).

        `generates` has completions written too, where prompts are completed.
        """
        about = {"split": split, "readout": self.rows.name, **(made_by or {})}
        rows = {task: self.rows.encoded(task, split) for task in (self.tasks if tasks is None else tasks)}
        with self.holding(graft):
            return {
                task: predict(
                    self.model, self.rows.readout(task), encoded, batch_size=batch_size, made_by=about,
                    progress=_reporter(progress, task), processes=self.processes, generates=generates,
                )
                for task, encoded in rows.items()
            }  # fmt: skip

    def answers(self, task: str, rows: Sequence[Encoded]) -> AnyPredictions:
        """What the model as it stands answers about these rows; a search asks it while it holds numbers of its own."""
        return predict(self.model, self.rows.readout(task), rows, processes=self.processes)

    def check_heads(self, graft: Graft | None) -> None:
        """Refuse to read scores off a head of random numbers, and a head of other classes than these tasks have."""
        if not self.rows.reads_heads:
            return
        heads = graft.heads if graft is not None else {}
        for name in self.fresh:
            brought = [head for key, head in heads.items() if f".{name}".endswith(f".{key}")]
            wanted = list(self.model.state_dict()[name].shape)
            if not brought or list(brought[0].shape) != wanted:
                found = f"the graft's is {list(brought[0].shape)}" if brought else "neither base nor graft has one"
                raise InputError(
                    f"the {self.rows.name} readout of {listed(self.tasks)} reads the head {name} of shape {wanted}, but "
                    f"{found}; measure a graft on the tasks that its head was trained for, or use another readout"
                )

    def loss(self, model: nn.Module, batch: TaskBatch, *, mixed_precision: MixedPrecision = "no") -> Tensor:
        """The mean loss of a batch of one task's rows."""
        scores = self.scores(model, batch, mixed_precision=mixed_precision)
        return loss_of(scores, batch[1]["labels"].to(scores.device))

    def scores(self, model: nn.Module, batch: TaskBatch, *, mixed_precision: MixedPrecision = "no") -> Tensor:
        """What the model answers about a batch, before a softmax: a line for each row, or for each token of completions."""
        task, tensors = batch
        with autocast(self.device, mixed_precision):
            return self.rows.readout(task).scores(model, on_device(tensors, self.device))

    def steps(
        self, rows: Mapping[str, Sequence[Encoded]], *, batch_size: int, balanced: bool = False
    ) -> Callable[[int], Step]:
        """The batches of each step of a search: at most `batch_size` rows of every task.

        A step's loss is the sum of the tasks' mean losses.
        All rows at every step where they fit, else the step's own share of shuffled epochs, in parts of like length. `balanced`
        takes as many rows of each class. Each process gives its own share of the rows.
        """
        orders = {
            task: _row_orders(own, batch_size, self.rows.data.seed, balanced=balanced) for task, own in rows.items()
        }

        def step(number: int) -> Step:
            found: list[tuple[TaskBatch, float]] = []
            for task, own in rows.items():
                readout = self.rows.readout(task)
                chosen = [own[row] for order in orders[task] for row in order(number)] or own
                units = units_of(chosen)
                mine = self.processes.share(chosen)
                parts = list(by_length(mine, _TOGETHER))
                for part in parts:
                    batch = readout.collate([mine[index] for index in part])
                    found.append(((task, batch), units_of(mine[index] for index in part) / units))
                spare = self.processes.spare(len(parts), self.device)
                found += [((task, readout.collate(chosen[:1])), 0.0)] * spare
            return found

        return step


def open_plan(
    source: Source, plan: Plan, *, dtype: str | torch.dtype | None = None, device: str | torch.device | None = None
) -> tuple[nn.Module, tuple[str, ...]]:
    """A base without tasks of its own, for a server, whose skills bring the questions; and the tensors that no file held."""
    refuse_adapters(source.name)
    where, _processes = find_device(device)
    return Loader(plan, torch_dtype(dtype or source.format), where)(source)


def _row_orders(
    rows: Sequence[Encoded], batch_size: int, seed: int, *, balanced: bool
) -> list[Callable[[int], Sequence[int]]]:
    """The rows of each step, from one stream of shuffled epochs or from one for each class; none where all rows fit."""
    if len(rows) <= batch_size:
        return []
    labels = np.array([row.label for row in rows]) if balanced else np.zeros(len(rows), np.int64)
    groups = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    each = max(1, batch_size // len(groups))

    def stream(group: Rows) -> Callable[[int], Sequence[int]]:
        order = BatchOrder([len(group)], batch_size=each, steps=_ORDERED_STEPS, seed=seed)
        return lambda number: group[order.step(number % _ORDERED_STEPS)[1]].tolist()

    return [stream(group) for group in groups]


@torch.no_grad()
def _round(model: nn.Module, dtype: torch.dtype) -> None:
    """Every stored number rounded to a format; it stays held in its own."""
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(tensor.to(dtype))


def _reporter(progress: RowProgress | None, task: str) -> Callable[[int, int], None] | None:
    return None if progress is None else lambda done, total: progress(task, done, total)
