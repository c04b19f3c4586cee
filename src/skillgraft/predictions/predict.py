"""Run a model once over a split and keep what it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from skillgraft.errors import InputError
from skillgraft.opening.processes import ALONE, Processes
from skillgraft.opening.shards import splits
from skillgraft.predictions.completions import OF_TEXTS, Completions
from skillgraft.predictions.generate import generate
from skillgraft.predictions.predictions import AnyPredictions, Predictions
from skillgraft.readouts.completion import Completion
from skillgraft.readouts.readout import Batch, Encoded, Readout

OnRows = Callable[[int, int], None]  # rows done, of how many
FloatArray = npt.NDArray[np.float32]
MOST_UNITS = 1024  # lines of scores of one batch: 200 MB of logits for a vocabulary of 50,000
Scores = Callable[[nn.Module, Batch], torch.Tensor]
Batches = Iterator[tuple[list[int], Batch]]  # row numbers, and the batch of these rows


def predict(
    model: nn.Module,
    readout: Readout,
    rows: Sequence[Encoded],
    *,
    batch_size: int = 64,
    scores: Scores | None = None,
    progress: OnRows | None = None,
    made_by: Mapping[str, str] | None = None,
    processes: Processes = ALONE,
    generates: bool = False,
) -> AnyPredictions:
    """The model's answers about every row, in the rows' order. Of several `processes` each runs its share; all get all of them.

    Rows run in batches of similar length, the longest first, so that a batch is hardly ever padded. `scores` replaces the
    readout's own (a linearised model reads its scores differently). Completions are also generated where `generates`, or
    where the task's own metric needs texts.
    """
    if not rows:
        raise InputError(
            f"task {readout.task.name!r}: there are no rows to run over; if these validate, ask for fewer shots"
        )
    share = processes.share(rows) if len(rows) >= processes.count else rows
    device, parts = next(model.parameters()).device, list(by_length(share, batch_size))
    parts += parts[-1:] * processes.spare(len(parts), device)
    run = _completed if isinstance(readout, Completion) else _classified
    batches, read = _batches(readout, share, parts, device, progress), scores or readout.scores
    # Tensors that inference mode makes cannot be trained later, and a split model keeps those it is put together in.
    with evaluating(model), torch.no_grad() if splits(model) else torch.inference_mode():
        table = run(batches, len(share), partial(read, model))
    if len(share) < len(rows):
        table = processes.joined(torch.from_numpy(table).to(device), len(rows)).cpu().numpy()
    about: dict[str, Any] = {"task": readout.task.name, "metric": readout.task.metric, "made_by": made_by or {}}
    if isinstance(readout, Completion):
        texts = _answers(model, readout, rows) if generates or readout.task.metric in OF_TEXTS else []
        return completions(readout, rows, table, texts, about)
    labels = np.array([row.label for row in rows], np.int64)
    return Predictions(table, labels, label_names=readout.task.labels, **about)


def _classified(batches: Batches, rows: int, scores: Callable[[Batch], torch.Tensor]) -> FloatArray:
    """(rows, classes) scores."""
    found: list[FloatArray | None] = [None] * rows
    for batch_rows, batch in batches:
        values = scores(batch).float().cpu().numpy()
        for row, value in zip(batch_rows, values, strict=True):
            found[row] = value
    return _stacked([value for value in found if value is not None])


def _completed(batches: Batches, rows: int, scores: Callable[[Batch], torch.Tensor]) -> FloatArray:
    """(rows, 2): the loss of each row's completion, and how many of its tokens were the likeliest."""
    found = np.zeros((rows, 2), np.float32)
    for batch_rows, batch in batches:
        logits, labels = scores(batch).float(), batch["labels"]
        losses = nn.functional.cross_entropy(logits, labels, reduction="none").double()
        counts = torch.stack([losses, (logits.argmax(-1) == labels).double()], dim=1)
        table = counts.new_zeros(len(batch_rows), 2).index_add_(0, batch["token_rows"], counts)
        found[batch_rows] = table.cpu().numpy()
    return found


def _batches(
    readout: Readout,
    rows: Sequence[Encoded],
    parts: Sequence[list[int]],
    device: torch.device,
    progress: OnRows | None,
) -> Batches:
    done = 0
    for batch_rows in parts:
        yield batch_rows, on_device(readout.collate([rows[row] for row in batch_rows]), device)
        done += len(batch_rows)
        if progress:
            progress(done, len(rows))


def _answers(model: nn.Module, readout: Completion, rows: Sequence[Encoded]) -> list[str]:
    with evaluating(model):
        return generate(model, readout, rows)


def completions(
    readout: Completion, rows: Sequence[Encoded], table: FloatArray, texts: Sequence[str], about: Mapping[str, Any]
) -> Completions:
    """The value of what was measured and generated."""
    references = [row.inputs["completion"] for row in rows]
    scorer = readout.style.scorer
    scored = scorer is not None and bool(texts)
    values = [scorer(*each) for each in zip(texts, references, strict=True)] if scorer and scored else []
    return Completions(
        table[:, 0].astype(np.float64),
        np.array([row.units for row in rows]),
        table[:, 1].astype(np.int64),
        prompts=[row.inputs["prompt"] for row in rows],
        references=references,
        texts=texts,
        cut=np.array([row.inputs["cut"] for row in rows]),
        values=np.array(values, np.float64),
        **about,
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
    """Row numbers in batches of similar length, the longest first: a batch that does not fit fails at once.

    Completions have as many lines of scores as tokens, each as wide as the vocabulary: a batch has few enough of them.
    """
    order = np.argsort([-row.length for row in rows], kind="stable").tolist()
    batch: list[int] = []
    units = 0
    for row in order:
        if batch and (len(batch) == batch_size or units + rows[row].units > MOST_UNITS):
            yield batch
            batch, units = [], 0
        batch.append(row)
        units += rows[row].units
    if batch:
        yield batch


def on_device(batch: Batch, device: torch.device) -> Batch:
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}


def _stacked(
    values: list[np.ndarray[tuple[int, int], np.dtype[np.float32]]],
) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """One array; rows with fewer choices than others are filled up with -inf."""
    width = max((len(value) for value in values), default=0)
    result = np.full((len(values), width), -np.inf, np.float32)
    for row, value in enumerate(values):
        result[row, : len(value)] = value
    return result
