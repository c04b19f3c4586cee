"""What a run trains: whole parameters, or the entries of a region as small vectors.

A region's entries live in one vector per parameter under any torch optimizer: its state is as small as the region, and
weight decay, momentum and clipping see only the region. Full-size gradients are dropped as soon as their entries are taken;
parameters without entries get none. To rounding the numbers are those of a full optimizer whose update is masked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from skillgraft.errors import InputError, listed
from skillgraft.live import parameter_names
from skillgraft.names import is_embedding, is_head, is_lm_head
from skillgraft.region import Indices, Region


class Trainables:
    """The tensors that the optimizer sees (`tensors`, by prefix-free name), and how they reach the model."""

    def __init__(self, whole: Mapping[str, nn.Parameter], entries: Mapping[str, Entries]) -> None:
        self.whole, self.entries = dict(whole), dict(entries)
        self.tensors: dict[str, nn.Parameter] = {**whole, **{name: part.vector for name, part in entries.items()}}
        if not self.tensors:
            raise InputError("nothing to train: every parameter is frozen")
        self.frozen_sites: dict[str, tuple[Tensor, Tensor]] = {}

    def __len__(self) -> int:
        """How many numbers are trained."""
        sites = sum(len(places) for places, _ in self.frozen_sites.values())
        return sum(tensor.numel() for tensor in self.tensors.values()) - sites

    def freeze(self, region: Region) -> None:
        """Keep these entries of whole parameters as they are: training outside a region."""
        for name, at in region.sites.items():
            if name in self.whole:
                places = torch.from_numpy(np.array(at, np.int64)).to(self.whole[name].device)
                self.frozen_sites[name] = (places, self.whole[name].detach().view(-1)[places].clone())

    def before_step(self, *, pull: Mapping[str, Tensor] | None = None, strength: float = 0.0) -> None:
        """Finish the gradients: none at frozen entries; plus the L1 pull towards the base, if there is one."""
        if pull is not None and strength:
            for name, tensor in self.tensors.items():
                if tensor.grad is not None:
                    tensor.grad.add_(torch.sign(tensor.detach() - pull[name]), alpha=strength)
        for name, (places, _) in self.frozen_sites.items():
            gradient = self.whole[name].grad
            if gradient is not None:
                gradient.view(-1)[places] = 0.0

    @torch.no_grad()
    def after_step(self) -> None:
        """Let the model have the new numbers."""
        for name, (places, numbers) in self.frozen_sites.items():
            self.whole[name].view(-1)[places] = numbers  # weight decay moves entries without a gradient, too
        for part in self.entries.values():
            part.write()

    @torch.no_grad()
    def load(self, values: Mapping[str, Tensor]) -> None:
        """Set every trained number, as a snapshot or a best model has it."""
        for name, tensor in self.tensors.items():
            tensor.copy_(values[name].view_as(tensor))
        self.after_step()

    def copy(self) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self.tensors.items()}

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Collect the entries' gradients during backward passes."""
        handles = [part.listen() for part in self.entries.values()]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


class Entries:
    """Some entries of one parameter as a vector of their own."""

    def __init__(self, parameter: nn.Parameter, at: Indices) -> None:
        self.parameter = parameter
        # int32 halves the index memory; torch gathers with it as well.
        index = np.int32 if parameter.numel() <= np.iinfo(np.int32).max else np.int64
        self.at = torch.from_numpy(np.array(at, index)).to(parameter.device)
        self.vector = nn.Parameter(parameter.detach().view(-1)[self.at].float())

    def listen(self) -> torch.utils.hooks.RemovableHandle:
        hook = self.parameter.register_post_accumulate_grad_hook(self._take)  # type: ignore[no-untyped-call]
        assert isinstance(hook, torch.utils.hooks.RemovableHandle)
        return hook

    def _take(self, parameter: Tensor) -> None:
        gradient = parameter.grad
        if gradient is None:
            return
        taken = gradient.reshape(-1)[self.at].float()
        self.vector.grad = taken if self.vector.grad is None else self.vector.grad.add_(taken)
        parameter.grad = None

    def write(self) -> None:
        self.parameter.view(-1)[self.at] = self.vector.to(self.parameter.dtype)


def choose_trainables(
    model: nn.Module,
    *,
    only: Region | None = None,
    outside: Region | None = None,
    biases: bool = False,
    embeddings: bool = False,
    lm_head: bool = False,
    read_heads: bool = True,
) -> Trainables:
    """Decide what trains, and switch gradients off for the rest.

    By default everything but embeddings and the LM head (P1 A.1). Heads that hold the task's classes always train; without
    `read_heads` there are none, and what the model has of them (a pooler that nobody reads) is left alone and not counted.
    """
    names = parameter_names(model)
    apart = {name for name in names if is_head(name)}
    heads = apart if read_heads else set()
    body = {
        name
        for name in names.keys() - apart
        if (embeddings or not is_embedding(name)) and (lm_head or not is_lm_head(name))
    }
    if biases:
        body = {name for name in body if name.endswith("bias")}
    for region in filter(None, (only, outside)):
        _check_fits(region, names)
    entries: dict[str, Entries] = {}
    if only is not None:
        wanted = {name: at for name, at in only.sites.items() if name.endswith("bias") or not biases}
        entries = {name: Entries(names[name], at) for name, at in wanted.items()}
        body = set()
    for name, parameter in names.items():
        parameter.requires_grad_(name in heads or name in body or name in entries)
    trainables = Trainables({name: names[name] for name in sorted(heads | body)}, entries)
    if outside is not None:
        trainables.freeze(outside)
    return trainables


def _check_fits(region: Region, names: Mapping[str, nn.Parameter]) -> None:
    missing = [name for name in region if name not in names or tuple(names[name].shape) != region.scope.shapes[name]]
    if missing:
        raise InputError(f"the region is not of this model: {listed(missing)} are missing here or have another shape")
