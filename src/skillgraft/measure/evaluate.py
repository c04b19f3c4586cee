"""Base, tuned models and grafts on tasks' test rows: one loaded base, everything else put on it live.

A tuned folder (or LoRA adapter) is evaluated as the graft of all that it changes, so a folder of another architecture or
base is refused with the reason, and the exact old numbers are back after each model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from skillgraft.errors import InputError
from skillgraft.extraction import extract
from skillgraft.graft import Graft
from skillgraft.live import grafted
from skillgraft.measure.predict import predict
from skillgraft.measure.predictions import Predictions
from skillgraft.readouts.loading import open_readouts
from skillgraft.tasks import Examples, Task, load_task, test_split, training_split

BASE = "base"
OnModel = Callable[[str, str, int, int], None]


@dataclass(frozen=True)
class Evaluation:
    """What every model said about every task: `said[task][model]`, and the readout that was used."""

    readout: str
    said: Mapping[str, Mapping[str, Predictions]]


def evaluate(
    base: str | Path,
    tasks: Sequence[str | Path | Task],
    *,
    tuned: Mapping[str, str | Path] | None = None,
    grafts: Mapping[str, Graft] | None = None,
    readout: str = "auto",
    split: str = "test",
    rows: int | None = None,
    shots: int | None = None,
    seed: int = 0,
    max_length: int | None = None,
    batch_size: int = 64,
    on_model: OnModel | None = None,
) -> Evaluation:
    """Run base, tuned models and grafts over the tasks' rows. Everything about the data is checked before the model loads.

    `split` is test, or validation of the same `shots` and `seed` that a run was trained with.
    """
    loaded = [task if isinstance(task, Task) else load_task(task) for task in tasks]
    examples = [_rows(task, split, rows=rows, shots=shots, seed=seed) for task in loaded]
    changes = {**_as_grafts(base, tuned or {}), **(grafts or {})}
    if BASE in changes:
        raise InputError(f"the name {BASE!r} belongs to the base itself; call the graft or folder something else")
    opened = open_readouts(base, loaded, readout=readout, max_length=max_length)
    encoded = [one.encode(split_rows) for one, split_rows in zip(opened.readouts, examples, strict=True)]
    said: dict[str, dict[str, Predictions]] = {task.name: {} for task in loaded}
    for name, graft in [(BASE, None), *changes.items()]:
        with grafted(opened.model, graft) if graft is not None else nullcontext():
            for one, rows_of_task in zip(opened.readouts, encoded, strict=True):
                report = _reporter(on_model, name, one.task.name)
                made_by = {"model": name, "split": split, "readout": opened.name}
                said[one.task.name][name] = predict(
                    opened.model, one, rows_of_task, batch_size=batch_size, progress=report, made_by=made_by
                )
    return Evaluation(opened.name, said)


def _rows(task: Task, split: str, *, rows: int | None, shots: int | None, seed: int) -> Examples:
    if split == "test":
        return test_split(task, rows=rows, seed=seed)
    if split == "validation":
        return training_split(task, shots=shots, rows=rows, seed=seed).validation
    raise InputError(f"split must be test or validation, found {split!r}")


def _as_grafts(base: str | Path, tuned: Mapping[str, str | Path]) -> dict[str, Graft]:
    return {name: extract(base, folder) for name, folder in tuned.items()}


def _reporter(on_model: OnModel | None, model: str, task: str) -> Callable[[int, int], None] | None:
    return (lambda done, total: on_model(model, task, done, total)) if on_model else None
