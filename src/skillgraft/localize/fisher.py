"""How sensitive a model's answers are to each entry: the diagonal of the Fisher information (P2).

    F_jj = E_x E_{y∼p(y|x)} (∂ log p(y|x) / ∂θ_j)²

Exact per example: labels are sampled from the model itself (or the true ones, the "empirical" Fisher), and every example's own
gradient is squared. Cost: about one forward and backward pass of the same batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from skillgraft.localize.squares import SharedLayers, Squares
from skillgraft.measure.predict import by_length
from skillgraft.readouts.readout import Batch, Encoded, Readout

Labels = Literal["sampled", "true"]


def fisher_diagonal(
    model: nn.Module,
    readout: Readout,
    rows: Sequence[Encoded],
    parameters: Mapping[str, nn.Parameter],
    *,
    labels: Labels = "sampled",
    samples: int = 1,
    seed: int = 0,
    batch_size: int = 32,
) -> dict[str, Tensor]:
    """The Fisher diagonal of these parameters (prefix-free names), averaged over the rows and `samples` labels of each.

    Deterministic under a seed: which label is drawn depends on the row's place, not on the batch it runs in.
    """
    draws = torch.rand(samples, len(rows), generator=torch.Generator().manual_seed(seed))
    squares = Squares(model, parameters)
    with _gradients_for(model, parameters, squares):
        for part in by_length(rows, batch_size):
            batch = readout.collate([rows[row] for row in part])
            chosen = draws[:, part] if labels == "sampled" else None
            try:
                _square(model, readout, batch, squares, chosen)
            except SharedLayers as found:
                squares.give_up(found.sites)
            if squares.slow:
                _square_one_by_one(model, readout, [rows[row] for row in part], squares, chosen)
    count = len(rows) * (samples if labels == "sampled" else 1)
    return {name: total.div_(count) for name, total in squares.sums.items()}


def _square(model: nn.Module, readout: Readout, batch: Batch, squares: Squares, chosen: Tensor | None) -> None:
    """One batch: a forward pass, and a backward pass per drawn label."""
    if not squares.sites:
        return
    with squares.listening(len(batch["labels"])):
        logs = _log_probabilities(readout.scores(model, batch))
        for picked in _labels(logs, batch, chosen):
            logs.gather(1, picked.unsqueeze(1)).sum().backward(retain_graph=True)  # type: ignore[no-untyped-call]


def _square_one_by_one(
    model: nn.Module, readout: Readout, rows: Sequence[Encoded], squares: Squares, chosen: Tensor | None
) -> None:
    """The parameters that no rule covers: every example alone, its gradient from autograd itself."""
    slow = [squares.parameters[name] for name in squares.slow]
    for place, row in enumerate(rows):
        batch = readout.collate([row])
        logs = _log_probabilities(readout.scores(model, batch))
        for picked in _labels(logs, batch, None if chosen is None else chosen[:, place : place + 1]):
            value = logs.gather(1, picked.unsqueeze(1)).sum()
            found = torch.autograd.grad(value, slow, retain_graph=True, allow_unused=True)
            for name, gradient in zip(squares.slow, found, strict=True):
                if gradient is not None:
                    squares.sums[name] += gradient.detach().to(squares.sums[name]).square()


def _log_probabilities(scores: Tensor) -> Tensor:
    return torch.log_softmax(scores.to(torch.promote_types(scores.dtype, torch.float32)), -1)


def _labels(logs: Tensor, batch: Batch, chosen: Tensor | None) -> Iterator[Tensor]:
    """The true labels once, or for each drawn number u the label whose stretch of the cumulated probabilities holds u."""
    if chosen is None:
        yield batch["labels"]
        return
    cumulated = logs.detach().exp().cumsum(-1)
    for drawn in chosen:
        yield (cumulated < drawn.to(cumulated).unsqueeze(1) * cumulated[:, -1:]).sum(-1)


@contextmanager
def _gradients_for(model: nn.Module, parameters: Mapping[str, nn.Parameter], squares: Squares) -> Iterator[None]:
    """Gradients of activations alone; of parameters only where examples run one at a time.

    Weight gradients of the whole batch, a third of the work of a backward pass, are never computed.
    """
    was_training = model.training
    wanted = {parameter: parameter.requires_grad for parameter in model.parameters()}
    model.eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for name in squares.slow:
        parameters[name].requires_grad_()
    try:
        yield
    finally:
        for parameter, before in wanted.items():
            parameter.requires_grad_(before)
            parameter.grad = None
        model.train(was_training)
