"""A torch device of our own that holds its numbers in ordinary memory and refuses to be mixed with CPU tensors.

    device = own_device()
    model.to(device)
    model(batch)            # RuntimeError: Expected all tensors to be on the same device …
    model(batch.to(device)) # the CPU's numbers, bit for bit

It stands for a GPU in tests: tensors are ordinary ones (no subclass), with storages, views, versions, hooks and an autograd graph
of torch's own. `.numpy()` fails, `.cpu()` copies, random numbers come from a stream of the device, CPU generators are refused.
torch has one such device per process and cannot forget it, so it is made when it is first asked for.

Not here: `torch.Generator(device=…)`, pinned memory, streams, several devices, backward passes in threads other than the one
that asked first (call `torch.autograd.set_multithreading_enabled(False)` there). One CPU number (0 dimensions) is taken by every
operation, by CUDA only by most.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import backend_registration

from tests.devices.autocast import casting_libraries
from tests.devices.kernels import NAME, RANDOMNESS, computing_kernel, is_own, kernel_for, view_kernel
from tests.devices.memory import CPU_KERNELS, on_cpu

aten = torch.ops.aten


@functools.cache
def own_device() -> torch.device:
    """The device; everything it needs is registered with torch at the first call."""
    if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip(f"torch {torch.__version__} takes no device from Python")
    _backward_without_threads()
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    library = torch.library.Library("aten", "IMPL")
    special = _special_kernels()
    for name in torch._C._dispatch_get_registrations_for_dispatch_key("CPU"):
        if name.startswith("aten::") and name not in special:
            library.impl(name, kernel_for(_operation(name)), "PrivateUse1")
    for name, kernel in special.items():
        library.impl(name, kernel, "PrivateUse1")
    for name, kernel in _composed().items():
        library.impl(name, kernel, "PrivateUse1")  # in inference mode
        library.impl(name, kernel, "AutogradPrivateUse1")
    _LIBRARIES.extend((library, *casting_libraries()))
    torch.UntypedStorage.__new__ = _new_storage
    return torch.device(NAME, 0)


def _backward_without_threads() -> None:
    """Run backward passes where they are called, on our device too.

    torch counts devices at a process's first backward pass and starts a thread for each: a device that comes later has none,
    and with such a thread a process can no longer be forked. So the first pass is before the device comes.
    """
    torch.zeros((), requires_grad=True).backward()
    torch.autograd.set_multithreading_enabled(False)


_LIBRARIES: list[torch.library.Library] = []  # what a library registered goes when it goes


def _operation(name: str) -> torch._ops.OpOverload:
    packet, _, overload = name.removeprefix("aten::").partition(".")
    found = getattr(getattr(aten, packet), overload or "default")
    assert isinstance(found, torch._ops.OpOverload)
    return found


class _Module:
    """What torch asks of a device's module (`torch.own`)."""

    _initialized = True

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def _lazy_init(self) -> None: ...

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def device(self, _index: Any) -> AbstractContextManager[None]:
        return nullcontext()

    def set_device(self, device: Any) -> None: ...

    def synchronize(self, device: Any = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        RANDOMNESS.seed(seed)

    manual_seed_all = manual_seed

    def get_rng_state(self, _device: Any = NAME) -> Tensor:
        return RANDOMNESS.state.clone()

    def set_rng_state(self, state: Tensor, _device: Any = NAME) -> None:
        RANDOMNESS.state = state.clone()

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


def _special_kernels() -> dict[str, Any]:
    """Operations that are not the CPU's kernel on the same memory."""
    moves = ("set_.source_Storage", "set_.source_Storage_storage_offset", "set_.source_Tensor")
    # Made of others, yet they look at the device: torch would take another path here than on the CPU.
    whole = ("convolution", "convolution_backward")
    return {
        **{f"aten::{name}": view_kernel(_operation(name)) for name in moves},
        **{f"aten::{name}": computing_kernel(_operation(name)) for name in whole},
        "aten::copy_": computing_kernel(aten.copy_.default, mixing=True),
        "aten::resize_": _resize,
        "aten::_efficientzerotensor": _zeros,
    }


def _composed() -> dict[str, Any]:
    """Operations made of others that take another path for every device they do not know; here they take the CPU's."""
    return {
        "aten::dropout": _dropout,
        "aten::scaled_dot_product_attention": _attention,
        # As between the CPU and CUDA: `.to(device)` changes a module's parameters in place, and tied ones stay tied.
        "aten::_has_compatible_shallow_copy_type": lambda _tensor, _other: True,
    }


def _resize(tensor: Tensor, size: list[int], *, memory_format: Any = None) -> Tensor:
    """Storages do not grow: a tensor that needs more room gets another one."""
    needed = tensor.storage_offset() + torch.Size(size).numel()
    if needed * tensor.element_size() > tensor.untyped_storage().nbytes():
        tensor.set_(torch.empty(needed, dtype=tensor.dtype, device=tensor.device))
    return aten.resize_.default.redispatch(CPU_KERNELS, tensor, size, memory_format=memory_format)


def _zeros(size: list[int], *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    """The CPU's have no memory at all, which cannot be shared."""
    return torch.zeros(size, dtype=dtype, device=device)


def _dropout(tensor: Tensor, p: float, train: bool) -> Tensor:
    if p == 0 or not train or tensor.numel() == 0:
        return tensor
    if p == 1:
        return tensor * torch.zeros((), dtype=tensor.dtype, device=tensor.device)
    return tensor * torch.empty_like(tensor).bernoulli_(1 - p).div_(1 - p)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The kernel that the CPU would choose; torch itself asks only devices that it knows."""
    seen = [_with_gradient(tensor) for tensor in (query, key, value, attn_mask)]
    rest = {"scale": scale, "enable_gqa": enable_gqa}
    choice = torch._fused_sdp_choice(*seen, dropout_p, is_causal, **rest)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        nothing = torch.zeros_like(attn_mask, dtype=query.dtype)
        attn_mask = nothing.masked_fill_(attn_mask.logical_not(), -torch.inf)
    if choice == torch.nn.attention.SDPBackend.FLASH_ATTENTION.value:
        flash = aten._scaled_dot_product_flash_attention_for_cpu
        return flash(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]
    return aten._scaled_dot_product_attention_math(query, key, value, attn_mask, dropout_p, is_causal, **rest)[0]


def _with_gradient(tensor: Tensor | None) -> Tensor | None:
    return on_cpu(tensor).requires_grad_(tensor.requires_grad) if is_own(tensor) else tensor


def _new_storage(kind: type[torch.UntypedStorage], *given: Any, device: Any = None, **rest: Any) -> Any:
    """torch would ask an allocator of the device for room (deepcopy does so): only C++ can register one, it crashes."""
    if device is not None and torch.device(device).type == NAME:
        return torch.empty(*(given or [0]), dtype=torch.uint8, device=NAME).untyped_storage()
    return torch._C.StorageBase.__new__(kind, *given, device=device, **rest)
