"""Which rows of a task are used and how they are read: `Data`, one frozen value that every verb takes.

    data = Data(shots=64, seed=1, max_length=64)
    data.examples(load_task("sst2"), "validation")

Rows are checked here, without torch: what is wrong with a task's data is known before a model is loaded. A task is given as a
value, by its name in the catalogue or as a TOML file; text without labels also as a file of rows (`as_rows`):

    as_rows("notes.txt")            one row a line
    as_rows("prompts.jsonl")        its column text, prompt or content; so for CSV, TSV and Parquet, also .gz

The same rows of such text train a search and stand for the test: give other text to `evaluate` where an honest number matters.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from skillgraft.errors import DataError, InputError, listed
from skillgraft.tasks.completions import COMPLETE
from skillgraft.tasks.examples import Examples, Indices, read_examples
from skillgraft.tasks.sources import READERS, origin_of, read_table
from skillgraft.tasks.task import Completing, Origin, Task
from skillgraft.tasks.task_file import load_task

Rows = np.ndarray[tuple[int], np.dtype[np.int64]]


class BatchOrder:
    """The rows of every step. `step(s)` gives (task number, row numbers)."""

    def __init__(
        self, sizes: Sequence[int], *, batch_size: int, steps: int, seed: int, proportional: bool = False
    ) -> None:
        self.sizes = tuple(sizes)
        self.batch_size, self.seed = batch_size, seed
        weights = np.array(sizes if proportional else [1] * len(sizes), float)
        draw = np.random.default_rng((seed, 0))
        self.tasks = draw.choice(len(sizes), size=steps, p=weights / weights.sum())
        # How many batches a task had before each step: where in its stream the step reads on.
        self.earlier = np.zeros(steps, np.int64)
        for task in range(len(sizes)):
            mine = np.flatnonzero(self.tasks == task)
            self.earlier[mine] = np.arange(len(mine))

    def step(self, step: int) -> tuple[int, Rows]:
        task = int(self.tasks[step])
        size = self.sizes[task]
        first = int(self.earlier[step]) * self.batch_size
        places = np.arange(first, first + self.batch_size)
        rows = [_epoch(self.seed, task, int(place // size), size)[place % size] for place in places]
        return task, np.array(rows, np.int64)

    @property
    def steps_per_epoch(self) -> int:
        return max(1, -(-sum(self.sizes) // self.batch_size))


@lru_cache(maxsize=8)
def _epoch(seed: int, task: int, epoch: int, size: int) -> Rows:
    return np.random.default_rng((seed, 1, task, epoch)).permutation(size)


ROWS_PER_VALIDATION_ROW = 10  # P2: a tenth of the training rows, at most 5,000
VALIDATION_MOST = 5_000
SAMPLE_VALIDATION_MOST = 1_000


@dataclass(frozen=True)
class Split:
    """Rows to train on and rows to validate on; `duplicates` rows were kept out of validation because training has them."""

    train: Examples
    validation: Examples
    duplicates: int = 0


def training_split(task: Task, *, shots: int | None = None, rows: int | None = None, seed: int = 0) -> Split:
    """Training and validation rows: `shots` per class, or `rows` in natural proportion, or all (a tenth validates).

    A task with a validation source is always validated on that. Multiple choice has no classes: `shots` rows in all.
    """
    _check_request(shots=shots, rows=rows, seed=seed)
    pool = training_pool(task)
    apart = read_examples(task, "validation") if origin_of(task).validation else None
    kept_back = _kept_back(len(pool)) if apart is None else 0
    chosen = _sample(pool, _train_quota(pool, shots=shots, rows=rows, everything=len(pool) - kept_back), seed)
    train = pool.select(chosen)
    others = pool.select(np.setdiff1d(np.arange(len(pool)), chosen)) if apart is None else apart
    fresh = _without_shared(others, train)
    quota = _validation_quota(fresh, shots=shots, rows=rows)
    return Split(train, fresh.select(_sample(fresh, quota, seed)), duplicates=len(others) - len(fresh))


def training_pool(task: Task) -> Examples:
    """All rows that may train. Of several sources merged, one may train on what another tests on: such rows are left out."""
    pool, origin = read_examples(task, "train"), origin_of(task)
    return _without_shared(pool, read_examples(task, "test")) if len(origin.train) > 1 and origin.test else pool


def test_split(task: Task, *, rows: int | None = None, seed: int = 0) -> Examples:  # noqa: PT028 (not a test)
    """The test rows, or a seeded sample of them in natural proportion."""
    _check_request(shots=None, rows=rows, seed=seed)
    pool = read_examples(task, "test")
    if rows is None or rows >= len(pool):
        return pool
    return pool.select(_sample(pool, _proportional(_group_sizes(pool), rows), seed))


def measured_split(
    task: Task, split: str, *, shots: int | None = None, rows: int | None = None, seed: int = 0
) -> Examples:
    """The rows that a model is measured on: the test rows, or those that a run of the same shots, rows and seed had."""
    if split == "test":
        return test_split(task, rows=rows, seed=seed)
    if split in ("train", "validation"):
        chosen = training_split(task, shots=shots, rows=rows, seed=seed)
        return chosen.train if split == "train" else chosen.validation
    raise InputError(f"split must be test, train or validation, found {split!r}")


# pytest takes every function called test_… for a test, wherever it is imported
test_split.__test__ = False  # type: ignore[attr-defined]


def _kept_back(rows: int) -> int:
    return min(VALIDATION_MOST, math.ceil(rows / ROWS_PER_VALIDATION_ROW), rows - 1)


def _check_request(*, shots: int | None, rows: int | None, seed: int) -> None:
    if shots is not None and rows is not None:
        raise InputError(f"shots={shots} and rows={rows} exclude each other: give one of them")
    for name, value, least in (("shots", shots, 1), ("rows", rows, 1), ("seed", seed, 0)):
        if value is not None and value < least:
            raise InputError(f"{name} must be at least {least}; found {value}")


def _groups(pool: Examples) -> Indices:
    """The class of each row; all rows are one group in multiple choice."""
    return pool.labels if pool.label_names else np.zeros_like(pool.labels)


def _group_sizes(pool: Examples) -> Indices:
    return np.bincount(_groups(pool), minlength=max(1, len(pool.label_names)))


def _sample(pool: Examples, quota: Indices, seed: int) -> Indices:
    """The rows, in the order of the pool, that come first in the seed's order: `quota[g]` of each group g."""
    order = np.random.default_rng(seed).permutation(len(pool))
    groups = _groups(pool)[order]
    first = [order[groups == group][:size] for group, size in enumerate(quota.tolist())]
    return np.sort(np.concatenate(first))


def _train_quota(pool: Examples, *, shots: int | None, rows: int | None, everything: int) -> Indices:
    sizes = _group_sizes(pool)
    if shots is None:
        if rows is not None and rows > len(pool):
            raise InputError(f"task {pool.task!r} has {len(pool)} training rows; rows={rows} is more than that")
        return _proportional(sizes, everything if rows is None else rows)
    if sizes.min() < shots:
        least = int(sizes.argmin())
        whose = f"class {pool.label_names[least]!r}" if pool.label_names else "training split"
        raise InputError(
            f"shots={shots}, but the {whose} of task {pool.task!r} has {sizes[least]} rows; "
            f"the largest usable number of shots is {sizes[least]}"
        )
    return np.full_like(sizes, shots)


def _validation_quota(pool: Examples, *, shots: int | None, rows: int | None) -> Indices:
    sizes = _group_sizes(pool)
    if shots is not None:
        return np.minimum(sizes, shots)
    return sizes if rows is None else _proportional(sizes, min(rows, len(pool), SAMPLE_VALIDATION_MOST))


def _proportional(sizes: Indices, total: int) -> Indices:
    """`total` rows shared out in proportion to `sizes`; what rounding leaves goes to the largest remainders."""
    exact = sizes * total  # over sizes.sum(), in integers: no rounding error
    shares, remainders = np.divmod(exact, max(1, sizes.sum()))
    # stable: of equal remainders the first group wins, on every machine
    shares[np.argsort(-remainders, kind="stable")[: total - shares.sum()]] += 1
    return shares


def _without_shared(pool: Examples, train: Examples) -> Examples:
    """The rows of `pool` whose inputs are not among `train`'s; letter case and spacing make no difference."""
    seen = set(map(_normalised, train.identities()))
    return pool.select([index for index, row in enumerate(pool.identities()) if _normalised(row) not in seen])


def _normalised(value: Any) -> Any:
    if isinstance(value, str):
        return " ".join(value.casefold().split())
    if isinstance(value, np.ndarray):
        return value.shape, hashlib.sha256(np.ascontiguousarray(value).data).digest()
    return tuple(map(_normalised, value))


TaskLike = str | Path | Task
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Data:
    """`shots` rows per class train, or `train_rows` in natural proportion, or all that do not validate.

    `validation_rows` and `test_rows` take a seeded sample of at most so many. One `seed` draws all of them. `readout` says how
    scores are read off the model (`auto` chooses), `max_length` how many tokens a row may have instead of the task's own limit.
    """

    shots: int | None = None
    train_rows: int | None = None
    validation_rows: int | None = None
    test_rows: int | None = None
    seed: int = 0
    readout: str = "auto"
    max_length: int | None = None

    def __post_init__(self) -> None:
        if self.shots is not None and self.train_rows is not None:
            raise InputError(
                f"shots={self.shots} and train_rows={self.train_rows} exclude each other: give one of them"
            )
        for name in ("shots", "train_rows", "validation_rows", "test_rows", "max_length"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, found {value}")
        if self.seed < 0:
            raise InputError(f"seed must be at least 0, found {self.seed}")

    def split(self, task: Task) -> Split:
        """The rows that train and the rows that validate. Of plain text `shots` and `train_rows` are so many at most."""
        shots, rows = self.shots, self.train_rows
        if task.completing is not None and task.completing.layout == "text":
            pool = len(training_pool(task))
            wanted = rows if shots is None else shots
            shots, rows = None, wanted if wanted is not None and wanted < pool - _kept_back(pool) else None
        return training_split(task, shots=shots, rows=rows, seed=self.seed)

    def examples(self, task: Task, split: str) -> Examples:
        """The rows of one split: train, validation or test."""
        if split == "test":
            return test_split(task, rows=self.test_rows, seed=self.seed)
        if split not in SPLITS:
            raise InputError(f"split must be test, train or validation, found {split!r}")
        found = self.split(task)
        return found.train if split == "train" else _at_most(found.validation, self.validation_rows, self.seed)

    def needed(self, task: Task, split: str) -> Examples:
        """The rows of one split that something is measured on: none at all is refused."""
        found = self.examples(task, split)
        if not len(found):
            raise InputError(
                f"task {task.name!r} has no {split} rows left to measure on; train on fewer rows (shots or train_rows)"
            )
        return found


def load_tasks(tasks: Sequence[TaskLike]) -> tuple[Task, ...]:
    """Tasks given as values, catalogue names or TOML files. Results go by name, so a repeated name is refused."""
    loaded = tuple(as_task(task) for task in tasks)
    names = [task.name for task in loaded]
    if not names or len(set(names)) < len(names):
        raise InputError(f"expected at least one task and each name once, found {listed(names) or 'none'}")
    return loaded


def as_task(task: TaskLike) -> Task:
    """A task given as a value, a catalogue name or a TOML file."""
    return task if isinstance(task, Task) else load_task(task)


def _at_most(examples: Examples, rows: int | None, seed: int) -> Examples:
    """At most so many rows, in their own order."""
    if rows is None or len(examples) <= rows:
        return examples
    return examples.select(np.sort(np.random.default_rng(seed).permutation(len(examples))[:rows]))


TEXT_COLUMNS = ("text", "prompt", "content")
TEXT_LENGTH = 256  # tokens of a row at most


def as_rows(given: TaskLike) -> Task:
    """A task, or a task of plain text made of a file."""
    if isinstance(given, Task) or not str(given).endswith(tuple(READERS)):
        return as_task(given)
    path = Path(given)
    source = str(path.absolute())
    name = path.name.partition(".")[0]
    return Task(
        name=name or "text",
        kind=COMPLETE,
        inputs=("text",),
        data=Origin(train=(source,), test=(source,), columns={"text": (_column(source),)}),
        label="",
        metric="nll",
        max_length=TEXT_LENGTH,
        completing=Completing(layout="text", ends=False),
    )


def _column(source: str) -> str:
    """The first of the columns that hold text; the others are not looked at."""
    for name in TEXT_COLUMNS:
        try:
            read_table(source, (name,))
        except DataError as error:
            if "there is no column" not in str(error):
                raise
        else:
            return name
    raise InputError(
        f"{source}: expected a column of text called {listed(TEXT_COLUMNS)}; rename one, or write a task file"
    )
