"""Run a model once over a split and keep what it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from skillgraft.errors import InputError
from skillgraft.opening.processes import ALONE, Processes
from skillgraft.predictions.predictions import Predictions
from skillgraft.readouts.readout import Batch, Encoded, Readout

Progress = Callable[[int, int], None]
FloatArray = npt.NDArray[np.float32]
Scores = Callable[[nn.Module, Batch], torch.Tensor]


def predict(
    model: nn.Module,
    readout: Readout,
    rows: Sequence[Encoded],
    *,
    batch_size: int = 64,
    scores: Scores | None = None,
    progress: Progress | None = None,
    made_by: Mapping[str, str] | None = None,
    processes: Processes = ALONE,
) -> Predictions:
    """The model's scores for every row, in the rows' order. Of several `processes` each runs its share; all get all of them.

    Rows run in batches of similar length, the longest first, so that a batch is hardly ever padded. `scores` replaces the
    readout's own (a linearised model reads its scores differently).
    """
    if not rows:
        raise InputError(
            f"task {readout.task.name!r}: there are no rows to run over; if these validate, ask for fewer shots"
        )
    if processes.count > 1 and len(rows) >= processes.count:
        mine = predict(
            model,
            readout,
            processes.share(rows),
            batch_size=batch_size,
            scores=scores,
            progress=progress,
            made_by=made_by,
        )
        device = next(model.parameters()).device
        table = processes.joined(torch.from_numpy(mine.scores.copy()).to(device), len(rows))
        labels = np.array([row.label for row in rows], np.int64)
        return replace(mine, scores=table.cpu().numpy(), labels=labels)
    read = scores or readout.scores
    device = next(model.parameters()).device
    found: list[FloatArray | None] = [None] * len(rows)
    done = 0
    with evaluating(model), torch.inference_mode():
        for batch_rows in by_length(rows, batch_size):
            batch = on_device(readout.collate([rows[row] for row in batch_rows]), device)
            values = read(model, batch).float().cpu().numpy()
            for row, value in zip(batch_rows, values, strict=True):
                found[row] = value
            done += len(batch_rows)
            if progress:
                progress(done, len(rows))
    labels = np.array([row.label for row in rows], np.int64)
    task = readout.task
    return Predictions(
        _stacked([value for value in found if value is not None]),
        labels,
        task=task.name,
        metric=task.metric,
        label_names=task.labels,
        made_by=made_by or {},
    )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in eval mode; on exit every module is in the mode that it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def by_length(rows: Sequence[Encoded], batch_size: int) -> Iterator[list[int]]:
    """Row numbers in batches of similar length, the longest first: a batch that does not fit fails at once."""
    order = np.argsort([-row.length for row in rows], kind="stable").tolist()
    for low in range(0, len(order), batch_size):
        yield order[low : low + batch_size]


def on_device(batch: Batch, device: torch.device) -> Batch:
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}


def _stacked(
    values: list[np.ndarray[tuple[int, int], np.dtype[np.float32]]],
) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """One array; rows with fewer choices than others are filled up with -inf."""
    width = max((len(value) for value in values), default=0)
    result = np.full((len(values), width), -np.inf, np.float32)
    for place, value in enumerate(values):
        result[place, : len(value)] = value
    return result
