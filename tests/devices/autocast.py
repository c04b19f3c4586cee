"""Mixed precision on our own device: `torch.autocast("own", dtype=…)` casts before the same operations as the CPU's does.

torch brings these lists for the devices that it knows. Here are the operations of the models we run; others run in the
number format of their arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from tests.devices.kernels import NAME, Kernel, each, is_own

_LOWER = (
    "linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "addbmm", "conv1d", "conv2d", "scaled_dot_product_attention",
)  # fmt: skip
_SINGLE = (
    "cross_entropy_loss", "nll_loss", "mse_loss", "l1_loss", "kl_div", "smooth_l1_loss",
    "binary_cross_entropy_with_logits",
)  # fmt: skip
_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)


def casting_libraries() -> list[torch.library.Library]:
    """Registers the casts; they go when the libraries go."""
    library, rest = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")
    rest.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for names, chosen in ((_LOWER, _lower), (_SINGLE, _single)):
        for name in names:
            operation = getattr(torch.ops.aten, name).default
            library.impl(name, _casting(operation, chosen), "AutocastPrivateUse1")
    return [library, rest]


def _lower() -> torch.dtype:
    return torch.get_autocast_dtype(NAME)


def _single() -> torch.dtype:
    return torch.float32


def _casting(operation: OpOverload, chosen: Callable[[], torch.dtype]) -> Kernel:
    def kernel(*arguments: Any, **named: Any) -> Any:
        dtype = chosen()
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            cast = [each(lambda value: _cast(value, dtype), value) for value in arguments]
            return operation(*cast, **{name: _cast(value, dtype) for name, value in named.items()})

    return kernel


def _cast(value: Any, dtype: torch.dtype) -> Any:
    is_castable = isinstance(value, Tensor) and is_own(value) and value.is_floating_point()
    return value.to(dtype) if is_castable and value.dtype != torch.float64 else value
