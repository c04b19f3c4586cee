"""Several processes that work as one: gradients are summed, predictions are joined, by hand.

Wrapping the model would exchange all of its gradients; here only the tensors that are asked for travel. Every process gets the
same bits back, so that all of them go on in step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, distributed, nn

from skillgraft.measure.predict import predict
from skillgraft.measure.predictions import Predictions
from skillgraft.readouts.readout import Encoded, Readout

T = TypeVar("T")
_BUCKET = 4_000_000  # entries exchanged at once: few exchanges, little memory


@dataclass(frozen=True)
class Processes:
    """Which process this is, of how many."""

    index: int = 0
    count: int = 1

    @classmethod
    def here(cls) -> Processes:
        """As torch's process group has it; one process where there is no group."""
        if distributed.is_available() and distributed.is_initialized():
            return cls(distributed.get_rank(), distributed.get_world_size())
        return cls()

    @property
    def is_main(self) -> bool:
        return self.index == 0

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """This process's part of the items: every process has another one, together they have all."""
        return items[self.index :: self.count]

    def sum_gradients(self, tensors: Sequence[Tensor], loss: float) -> float:
        """Add up every process's gradients, in place, and losses.

        Where only others reached a tensor it counts as 0 here; a tensor that nobody reached keeps no gradient.
        """
        if self.count == 1:
            return loss
        reached = [float(tensor.grad is not None) for tensor in tensors]
        facts = torch.tensor([loss, *reached], dtype=torch.float64, device=tensors[0].device)
        distributed.all_reduce(facts)
        found = facts.tolist()
        gradients = [_gradient(tensor) for tensor, count in zip(tensors, found[1:], strict=True) if count]
        for bucket in _buckets(gradients):
            flat = torch.cat([gradient.reshape(-1).to(_wide(gradient)) for gradient in bucket])
            distributed.all_reduce(flat)
            parts = torch.split(flat, [gradient.numel() for gradient in bucket])
            for gradient, summed in zip(bucket, parts, strict=True):
                gradient.copy_(summed.view_as(gradient))
        return float(found[0])

    def predict(self, model: nn.Module, readout: Readout, rows: Sequence[Encoded]) -> Predictions:
        """`measure.predict.predict`, each process running over its share of the rows; all get all predictions."""
        if self.count == 1 or len(rows) < self.count:
            return predict(model, readout, rows)
        mine = predict(model, readout, self.share(rows))
        device = next(model.parameters()).device
        width = torch.tensor(mine.scores.shape[1], device=device)
        distributed.all_reduce(width, distributed.ReduceOp.MAX)
        # Others' rows count 0 in the sum; columns that only others have are absent choices here.
        scores = torch.zeros(len(rows), int(width))
        scores[self.index :: self.count] = -torch.inf
        scores[self.index :: self.count, : mine.scores.shape[1]] = torch.from_numpy(mine.scores.copy())
        scores = scores.to(device)
        distributed.all_reduce(scores)
        return replace(mine, scores=scores.cpu().numpy(), labels=np.array([row.label for row in rows], np.int64))


ALONE = Processes()


def _gradient(tensor: Tensor) -> Tensor:
    if tensor.grad is None:
        tensor.grad = torch.zeros_like(tensor)
    return tensor.grad


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """The tensors in groups of about `_BUCKET` entries; a larger one alone."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        if bucket and sum(one.numel() for one in bucket) + tensor.numel() > _BUCKET:
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket
