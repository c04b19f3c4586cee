"""Which rows train, which validate, which test: seeded, disjoint, the same on every machine.

K-shot (P1 A.2): k rows per class to train on, another min(k, what is left) per class to validate on. Validation never holds
a text that training holds: such rows are left out and counted. One seed fixes one order of all rows, so a smaller k-shot
training set lies inside a larger one.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from skillgraft.errors import InputError
from skillgraft.tasks.examples import Examples, Indices
from skillgraft.tasks.load import read_examples
from skillgraft.tasks.sources import origin_of
from skillgraft.tasks.task import Task

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
