"""Run something on a device: an accelerator there, a model there, and a witness of where the work was done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

CPU = torch.device("cpu")
# In inference mode a linear layer is seen as a whole.
_PRODUCTS = tuple(getattr(torch.ops.aten, name).default for name in ("mm", "addmm", "bmm", "matmul", "linear"))


@contextmanager
def accelerator_on(device: torch.device, **settings: Any) -> Iterator[Accelerator]:
    """accelerate keeps one device for the whole process: inside it is this one, for everybody; afterwards it looks again."""
    AcceleratorState._reset_state(reset_partial_state=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCELERATE_TORCH_DEVICE", str(device))
        try:
            yield Accelerator(**settings)
        finally:
            AcceleratorState._reset_state(reset_partial_state=True)


class Products(TorchDispatchMode):
    """On which kinds of devices matrices are multiplied while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.devices: set[str] = set()

    def __torch_dispatch__(
        self, func: Callable[..., Any], _types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _PRODUCTS:
            self.devices.add(result.device.type)
        return result


def bits(model: nn.Module) -> dict[str, bytes]:
    """Every number of a model, wherever it is."""
    return {name: bits_of(tensor) for name, tensor in model.state_dict().items()}


def bits_of(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def is_whole_on(model: nn.Module, device: torch.device) -> bool:
    return all(tensor.device == device for tensor in (*model.parameters(), *model.buffers()))


def aligned(model: nn.Module) -> nn.Module:
    """The model with its numbers in torch's own memory: in a mapped file they may lie anywhere, which moves last bits."""
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    return model
