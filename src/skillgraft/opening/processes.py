"""Several processes that work as one: gradients are summed, numbers are joined, by hand.

Wrapping the model would exchange all of its gradients; here only the tensors that are asked for travel. Every process gets the
same bits back, so that all of them go on in step.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, distributed

T = TypeVar("T")
_BUCKET = 4_000_000  # entries exchanged at once: few exchanges, little memory


@dataclass(frozen=True)
class Processes:
    """Which process this is, of how many, and whether the model is split over them.

    A split model is put together for every pass, so all processes have to run as many, and what one of them gathers all must.
    """

    index: int = 0
    count: int = 1
    split: bool = False

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

    def joined(self, mine: Tensor, rows: int) -> Tensor:
        """Every process's rows in one table: `mine` are the rows of `share`; shorter ones are filled up with −inf."""
        width = torch.tensor(mine.shape[1], device=mine.device)
        distributed.all_reduce(width, distributed.ReduceOp.MAX)
        # Others' rows count 0 in the sum; columns that only others have are absent here.
        table = torch.zeros(rows, int(width), device=mine.device)
        table[self.index :: self.count] = -torch.inf
        table[self.index :: self.count, : mine.shape[1]] = mine
        distributed.all_reduce(table)
        return table

    def sum_gradients(self, tensors: Sequence[Tensor], loss: float, device: torch.device) -> float:
        """Add up every process's gradients, in place, and losses.

        Where only others reached a tensor it counts as 0 here; a tensor that nobody reached keeps no gradient.
        """
        if self.count == 1:
            return loss
        reached = [float(tensor.grad is not None) for tensor in tensors]
        facts = torch.tensor([loss, *reached], dtype=torch.float64, device=device)
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

    def facts_of_main(self, facts: Any, device: torch.device) -> Any:
        """What the main process has (anything that JSON can say); what the others give does not count.

        The device is one that the process group can send from: NCCL takes nothing from the CPU.
        """
        if self.count == 1:
            return facts
        text = np.frombuffer(json.dumps(facts).encode(), np.uint8).copy()
        length = torch.tensor(len(text), device=device)
        distributed.broadcast(length, src=0)
        content = torch.from_numpy(text) if self.is_main else torch.empty(int(length), dtype=torch.uint8)
        return json.loads(self.tensor_of_main(content, device).cpu().numpy().tobytes())

    def tensor_of_main(self, tensor: Tensor, device: torch.device) -> Tensor:
        """The main process's numbers, on the device; the others give a tensor of the same shape and dtype."""
        found = tensor.to(device).contiguous()
        if self.count > 1:
            # As bytes, because not every backend sends every format.
            distributed.broadcast(found.view(-1).view(torch.uint8), src=0)
        return found

    def summed(self, numbers: Tensor) -> Tensor:
        """The numbers added up over the processes that a model is split over."""
        if not self.split:
            return numbers
        sent = numbers.to(_sending(numbers), copy=True)
        distributed.all_reduce(sent)
        return sent.to(numbers.device)

    def gathered(self, mine: Tensor) -> Tensor:
        """The processes' stretches of a split tensor, end to end. Law: `part_of(gathered(mine), mine)` is mine."""
        if not self.split:
            return mine
        lengths = self._lengths(mine)
        padded = torch.zeros(max(lengths), dtype=mine.dtype, device=_sending(mine))
        padded[: len(mine)] = mine
        found = [torch.empty_like(padded) for _ in lengths]
        # As bytes, because not every backend sends every format.
        distributed.all_gather([each.view(torch.uint8) for each in found], padded.view(torch.uint8))
        return torch.cat([each[:length] for each, length in zip(found, lengths, strict=True)]).to(mine.device)

    def part_of(self, whole: Tensor, mine: Tensor) -> Tensor:
        """The stretch of a whole flat tensor that lies where `mine` does."""
        if not self.split:
            return whole
        first = sum(self._lengths(mine)[: self.index])
        return whole[first : first + len(mine)]

    def _lengths(self, mine: Tensor) -> list[int]:
        lengths = torch.zeros(self.count, dtype=torch.int64, device=_sending(mine))
        lengths[self.index] = len(mine)
        distributed.all_reduce(lengths)
        return [int(length) for length in lengths.tolist()]

    def shared_out(self, held: Mapping[str, int], count: int) -> dict[str, int]:
        """How many of what it holds under each name this process takes, where the first `count` of all are taken.

        They are in order of names, and under a name in order of processes, as the stretches of a split tensor are.
        """
        table = torch.zeros(self.count if self.split else 1, len(held), dtype=torch.int64)
        mine = self.index if self.split else 0
        table[mine] = torch.tensor(list(held.values()))
        table = self.summed(table)
        before = (table.T.flatten().cumsum(0).view(len(held), -1).T - table)[mine]
        taken = (count - before).clamp(min=0).minimum(table[mine])
        return dict(zip(held, taken.tolist(), strict=True))

    def spare(self, passes: int, device: torch.device) -> int:
        """How many passes more than this process another one has: a split model needs all processes for each of them."""
        if not self.split:
            return 0
        most = torch.tensor(passes, device=device)
        distributed.all_reduce(most, distributed.ReduceOp.MAX)
        return int(most) - passes

    def due(self, mine: bool, device: torch.device) -> bool:
        """Whether this process takes part in saving: the main one when it is time; of a split model all of them then."""
        return bool(self.facts_of_main(mine, device)) if self.split else mine and self.is_main

    def wait(self) -> None:
        """Until every process is here."""
        if self.count > 1:
            distributed.barrier()


ALONE = Processes()


def _sending(tensor: Tensor) -> torch.device:
    """Where the process group can send the tensor from: NCCL takes nothing from the CPU."""
    accelerator = None if distributed.get_backend() == "gloo" else torch.accelerator.current_accelerator()
    return tensor.device if accelerator is None else accelerator


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
