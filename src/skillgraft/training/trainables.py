"""What a run trains: whole parameters, or the entries of a region as small vectors.

The optimizer sees a parameter itself, or a master that stands for it: a float32 copy of a parameter that is narrower, or a
vector of the entries that a region has in it. A master takes its gradient as the backward pass makes it, adds parts up in
its own format, and is rounded into the model after every step.

Law: a bf16 model is trained as float32 numbers θ whose gradients are those at round(θ).

Of a parameter that is split over processes the optimizer sees this process's entries, through a master too: nothing behind it
knows of processes.

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
from skillgraft.opening.processes import Processes
from skillgraft.opening.shards import is_split, own, stretch
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
            if name in sites or parameter.dtype != _wide(parameter) or is_split(parameter)
        }
        self.split = frozenset(name for name, parameter in parameters.items() if is_split(parameter))
        self._count = sum(len(sites[name]) if name in sites else each.numel() for name, each in parameters.items())
        own = {name: master.tensor for name, master in self.masters.items()}
        self.tensors: dict[str, nn.Parameter] = {**parameters, **own}
        self.frozen_sites: dict[str, tuple[Tensor, Tensor]] = {}

    def __len__(self) -> int:
        """How many numbers are trained."""
        return self._count

    def freeze(self, region: Region) -> None:
        """Keep these entries of whole parameters as they are: training outside a region."""
        for name, at in region.sites.items():
            if name in self.tensors and not self._in_part(name):
                tensor, master = self.tensors[name].detach(), self.masters.get(name)
                index = _index(at, tensor if master is None else master.parameter).to(torch.int64)
                self.frozen_sites[name] = (index, tensor.view(-1)[index].clone())
                self._count -= len(at)

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

    @property
    def here(self) -> list[nn.Parameter]:
        """The tensors whose gradients are this process's own: those of a split model arrive as sums over all processes."""
        return [tensor for name, tensor in self.tensors.items() if name not in self.split]

    def clip(self, most: float, processes: Processes) -> None:
        """Shrink all gradients together to this norm, if theirs is larger."""
        gradients = {name: tensor.grad for name, tensor in self.tensors.items() if tensor.grad is not None}
        norm = nn.utils.get_total_norm([gradient for name, gradient in gradients.items() if name not in self.split])
        if self.split:
            mine = nn.utils.get_total_norm([gradient for name, gradient in gradients.items() if name in self.split])
            norm = (norm.square() + processes.summed(mine.square())).sqrt()
        nn.utils.clip_grads_with_norm_(list(self.tensors.values()), most, norm)

    def whole(self, name: str, part: Tensor, processes: Processes) -> Tensor:
        """What all processes have of a tensor that is shaped like a trained one; of a split one flat. All of them have to ask."""
        return processes.gathered(part.detach().reshape(-1)) if name in self.split else part

    def part(self, name: str, whole: Tensor, processes: Processes) -> Tensor:
        """This process's part of what `whole` gave."""
        mine = self.tensors[name].detach()
        return processes.part_of(whole, mine.reshape(-1)).view_as(mine) if name in self.split else whole

    def _in_part(self, name: str) -> bool:
        return name in self.masters and self.masters[name].at is not None


class Master:
    """What the optimizer sees (`tensor`) instead of a parameter of the model, or of some of its entries."""

    def __init__(self, parameter: nn.Parameter, at: Indices | None = None) -> None:
        self.parameter = parameter
        self.at = None if at is None else _index(at, parameter)
        # A copy, but of all entries of a float32 parameter that is split: those are trained where they are.
        self.tensor = nn.Parameter(self._part(parameter.detach()).to(_wide(parameter)))

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
        if self.at is not None:
            own(self.parameter.detach())[self.at] = self.tensor.to(self.parameter.dtype)
        elif is_split(self.parameter):
            own(self.parameter.detach()).copy_(self.tensor)
        else:
            self.parameter.copy_(self.tensor)

    def _part(self, whole: Tensor) -> Tensor:
        if self.at is not None:
            return own(whole)[self.at]
        return own(whole) if is_split(whole) else whole


def _wide(parameter: Tensor) -> torch.dtype:
    """The format in which numbers are trained: float32, or the parameter's own if that is wider."""
    return torch.promote_types(parameter.dtype, torch.float32)


def _index(at: Indices, parameter: Tensor) -> Tensor:
    """The entries that this process holds, counted from its first."""
    low, high = stretch(parameter)
    # int32 halves the index memory; torch gathers with it as well.
    dtype = np.int32 if high - low <= np.iinfo(np.int32).max else np.int64
    mine = at[slice(*np.searchsorted(at, (low, high)))]
    return torch.from_numpy(np.array(mine - low, dtype)).to(parameter.device)


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
