"""What a run trains: whole parameters, or the entries of a region as small vectors.

The optimizer sees a parameter itself, or a master that stands for it: a float32 copy of a parameter that is narrower, or a
vector of the entries that a region has in it. A master takes its gradient as the backward pass makes it, adds parts up in
its own format, and is rounded into the model after every step.

Law: a bf16 model is trained as float32 numbers θ whose gradients are those at round(θ).

A region's vectors work under any torch optimizer: its state is as small as the region, and weight decay, momentum and
clipping see only the region. Gradients of the model's own size are dropped as soon as they are taken; parameters without
entries get none. To rounding the numbers are those of a full optimizer whose update is masked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor, nn

from skillgraft.errors import InputError, listed
from skillgraft.live.grafted import parameter_names
from skillgraft.values.names import is_embedding, is_head, is_lm_head
from skillgraft.values.region import Indices, Region


class Trainables:
    """The tensors that the optimizer sees (`tensors`, by prefix-free name), and how they reach the model.

    `sites` names the parameters of which only some entries train; `masters` has those that are not trained themselves.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], sites: Mapping[str, Indices] = MappingProxyType({})
    ) -> None:
        if not parameters:
            raise InputError("nothing to train: every parameter is frozen")
        self.masters = {
            name: Master(parameter, sites.get(name))
            for name, parameter in parameters.items()
            if name in sites or parameter.dtype != _wide(parameter)
        }
        own = {name: master.tensor for name, master in self.masters.items()}
        self.tensors: dict[str, nn.Parameter] = {**parameters, **own}
        self.frozen_sites: dict[str, tuple[Tensor, Tensor]] = {}

    def __len__(self) -> int:
        """How many numbers are trained."""
        sites = sum(len(index) for index, _ in self.frozen_sites.values())
        return sum(tensor.numel() for tensor in self.tensors.values()) - sites

    def freeze(self, region: Region) -> None:
        """Keep these entries of whole parameters as they are: training outside a region."""
        for name, at in region.sites.items():
            if name in self.tensors and not self._in_part(name):
                tensor = self.tensors[name].detach()
                index = torch.from_numpy(np.array(at, np.int64)).to(tensor.device)
                self.frozen_sites[name] = (index, tensor.view(-1)[index].clone())

    def before_step(self, *, pull: Mapping[str, Tensor] | None = None, strength: float = 0.0) -> None:
        """Finish the gradients: none at frozen entries; plus the L1 pull towards the base, if there is one."""
        if pull is not None and strength:
            for name, tensor in self.tensors.items():
                if tensor.grad is not None:
                    tensor.grad.add_(torch.sign(tensor.detach() - pull[name]), alpha=strength)
        for name, (index, _) in self.frozen_sites.items():
            gradient = self.tensors[name].grad
            if gradient is not None:
                gradient.view(-1)[index] = 0.0

    @torch.no_grad()
    def shrink(self, origin: Mapping[str, Tensor], by: float) -> None:
        """Every number moves towards its origin by so much, at most onto it: then it has the origin's own bits.

        That is the proximal step of an L1 term. Heads that hold the task's classes are left alone: they travel whole.
        """
        for name, tensor in self.tensors.items():
            if not is_head(name):
                delta = tensor.detach() - origin[name]
                pulled = origin[name] + nn.functional.softshrink(delta, by)
                tensor.copy_(torch.where(delta.abs() <= by, origin[name], pulled))

    @torch.no_grad()
    def after_step(self) -> None:
        """Let the model have the new numbers."""
        for name, (index, numbers) in self.frozen_sites.items():
            self.tensors[name].view(-1)[index] = numbers  # weight decay moves entries without a gradient, too
        for master in self.masters.values():
            master.write()

    @torch.no_grad()
    def load(self, values: Mapping[str, Tensor]) -> None:
        """Set every trained number, as a snapshot or a best model has it."""
        for name, tensor in self.tensors.items():
            tensor.copy_(values[name].view_as(tensor))
        self.after_step()

    def copy(self) -> dict[str, Tensor]:
        """Every trained number, unrounded. Law: `load(copy())` changes nothing."""
        return {name: tensor.detach().clone() for name, tensor in self.tensors.items()}

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Let masters have the gradients of backward passes."""
        handles = [master.listen() for master in self.masters.values()]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _in_part(self, name: str) -> bool:
        return name in self.masters and self.masters[name].at is not None


class Master:
    """What the optimizer sees (`tensor`) instead of a parameter of the model, or of some of its entries."""

    def __init__(self, parameter: nn.Parameter, at: Indices | None = None) -> None:
        self.parameter = parameter
        self.at = None if at is None else _index(at, parameter)
        self.tensor = nn.Parameter(self._part(parameter.detach()).to(_wide(parameter)))  # either step copies

    def listen(self) -> torch.utils.hooks.RemovableHandle:
        self.parameter.grad = None  # what an earlier backward pass left is not of this run
        hook = self.parameter.register_post_accumulate_grad_hook(self._take)  # type: ignore[no-untyped-call]
        assert isinstance(hook, torch.utils.hooks.RemovableHandle)
        return hook

    def _take(self, parameter: Tensor) -> None:
        if parameter.grad is None:
            return
        taken = self._part(parameter.grad)
        if self.tensor.grad is None:
            self.tensor.grad = taken.to(self.tensor.dtype)
        else:
            self.tensor.grad.add_(taken)
        parameter.grad = None

    def write(self) -> None:
        """Round into the model."""
        if self.at is None:
            self.parameter.copy_(self.tensor)
        else:
            self.parameter.view(-1)[self.at] = self.tensor.to(self.parameter.dtype)

    def _part(self, whole: Tensor) -> Tensor:
        return whole if self.at is None else whole.reshape(-1)[self.at]


def _wide(parameter: Tensor) -> torch.dtype:
    """The format in which numbers are trained: float32, or the parameter's own if that is wider."""
    return torch.promote_types(parameter.dtype, torch.float32)


def _index(at: Indices, parameter: Tensor) -> Tensor:
    # int32 halves the index memory; torch gathers with it as well.
    dtype = np.int32 if parameter.numel() <= np.iinfo(np.int32).max else np.int64
    return torch.from_numpy(np.array(at, dtype)).to(parameter.device)


def choose_trainables(
    model: nn.Module,
    *,
    inside: Region | None = None,
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
    for region in filter(None, (inside, outside)):
        _check_fits(region, names)
    sites: dict[str, Indices] = {}
    if inside is not None:
        sites = {name: at for name, at in inside.sites.items() if name.endswith("bias") or not biases}
        body = set()
    chosen = dict.fromkeys([*sorted(heads | body), *sites])
    for name, parameter in names.items():
        parameter.requires_grad_(name in chosen)
    trainables = Trainables({name: names[name] for name in chosen}, sites)
    if outside is not None:
        trainables.freeze(outside)
    return trainables


def _check_fits(region: Region, names: Mapping[str, nn.Parameter]) -> None:
    missing = [name for name in region if name not in names or tuple(names[name].shape) != region.scope.shapes[name]]
    if missing:
        raise InputError(f"the region is not of this model: {listed(missing)} are missing here or have another shape")
