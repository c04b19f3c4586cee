"""A model split over several processes: torch's `fully_shard` (FSDP2), called here and nowhere else.

    model = split(model, device)       # in every process of the group; each keeps its rows of every parameter
    own(model.weight)                  # these rows' entries, flat: a view, written to like any tensor

Every parameter is cut along its first dimension, so that a process holds one stretch of its flat entries. A layer's stretches
are put together for its forward and its backward pass and let go after each. Gradients arrive as stretches, summed over
processes. Heads that hold a task's classes stay whole in every process, because they travel whole in grafts.

Law: the stretches of all processes, end to end, are the tensor.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from skillgraft.errors import InputError, listed
from skillgraft.values.names import is_head

_APART = ("get_text_features", "get_image_features")  # of models whose towers run alone


def split(model: nn.Module, device: torch.device) -> nn.Module:
    """Split the model over the process group, in place: layer by layer, then what is left."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    layers = list(_layers(model))
    whole = {parameter for name, parameter in model.named_parameters() if is_head(name) or parameter.ndim == 0}
    _check(model, layers, whole)
    for tensor in (*whole, *model.buffers()):
        tensor.data = tensor.data.to(device)
    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False)
    for module in (*layers, model):
        # Also the rest is let go after a pass: outside of one the model has its stretches and nothing else.
        fully_shard(module, mesh=mesh, reshard_after_forward=True, mp_policy=policy, ignored_params=whole)
        assert isinstance(module, FSDPModule)
        # Sums and not means: each process's loss is its share of the loss already. Gloo knows no other kind, either.
        module.set_force_sum_reduction_for_comms(True)
        module.set_gradient_divide_factor(1.0)
    return model


def _layers(model: nn.Module) -> Iterator[nn.Module]:
    """The blocks that a model repeats: members of module lists with parameters of their own, not those inside such a block."""
    for module in model.children():
        if isinstance(module, nn.ModuleList):
            yield from (block for block in module if next(block.parameters(), None) is not None)
        else:
            yield from _layers(module)


def _check(model: nn.Module, layers: list[nn.Module], whole: set[nn.Parameter]) -> None:
    kind = type(model).__name__
    if not layers:
        raise InputError(
            f"{kind} cannot be split over processes: expected layers in a list of modules, found none; leave out --shard"
        )
    in_parts = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    if in_parts or any(hasattr(model, method) for method in _APART):
        raise InputError(
            f"{kind} cannot be split over processes: its readouts run parts of it alone, and only a model that runs as a whole "
            "can be put together in time; leave out --shard"
        )
    formats = {parameter.dtype for parameter in model.parameters() if parameter not in whole}
    if len(formats) > 1:
        raise InputError(
            f"{kind} cannot be split over processes: its parameters have several number formats "
            f"({listed(sorted(map(str, formats)))}); open it in float32"
        )


def is_split(tensor: Tensor) -> bool:
    """Whether this process holds but a stretch of it."""
    # Asked of every tensor: a program that split nothing never imports it.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def splits(model: nn.Module) -> bool:
    """Whether a model is split."""
    return any(is_split(parameter) for parameter in model.parameters())


def own(tensor: Tensor) -> Tensor:
    """This process's entries of a parameter or gradient, flat; all of them where it is not split."""
    if not is_split(tensor):
        return tensor.reshape(-1)
    split_tensor: Any = tensor
    with torch.no_grad():
        flat: Tensor = split_tensor.to_local().view(-1)
    return flat


def span(tensor: Tensor) -> slice:
    """This process's rows, along the first dimension."""
    low, high = stretch(tensor)
    width = max(1, math.prod(tensor.shape[1:]))
    return slice(low // width, high // width)


def own_shape(tensor: Tensor) -> tuple[int, ...]:
    """The shape of these rows."""
    rows = span(tensor)
    return (rows.stop - rows.start, *tensor.shape[1:]) if tensor.ndim else ()


def stretch(tensor: Tensor) -> tuple[int, int]:
    """Of the flat entries, the first that this process holds, and the one after its last."""
    if not is_split(tensor):
        return 0, tensor.numel()
    split_tensor: Any = tensor
    mesh, rows = split_tensor.device_mesh, tensor.shape[0]
    each, width = -(-rows // mesh.size()), math.prod(tensor.shape[1:])
    first = min(mesh.get_local_rank() * each, rows)
    return first * width, min(first + each, rows) * width


def whole_state(model: nn.Module, *, keep: bool) -> dict[str, Tensor]:
    """Every saved tensor put together, on the CPU; empty where it is not kept. All processes have to ask.

    Tied tensors stay one tensor.
    """
    state: Mapping[str, Any] = model.state_dict(keep_vars=True)
    found: dict[int, Tensor] = {}
    for tensor in state.values():
        if id(tensor) not in found:
            complete = tensor.detach().full_tensor() if is_split(tensor) else tensor.detach()
            found[id(tensor)] = complete.cpu() if keep else torch.empty(0)
    return {name: found[id(tensor)] for name, tensor in state.items()} if keep else {}
