"""One memory, two devices: a tensor of our own device seen as a CPU tensor, and the other way round.

DLPack hands a tensor's memory over together with the name of its device. Between the two halves of the handover the name is
changed. The result is an ordinary tensor (no subclass) with a storage, strides and an address, and it keeps the memory alive.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack, to_dlpack

_KINDS = {"cpu": 1, "privateuseone": 12}  # DLPack's kDLCPU and kDLExtDev
CPU_KERNELS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class _Header(ctypes.Structure):
    """How a DLManagedTensor begins."""

    _fields_ = (("data", ctypes.c_void_p), ("device_kind", ctypes.c_int32), ("device_index", ctypes.c_int32))


def on_cpu(tensor: Tensor) -> Tensor:
    """The same memory as a CPU tensor."""
    return _renamed(tensor, "cpu")


def on_own(tensor: Tensor) -> Tensor:
    """The same memory as a tensor of our own device."""
    return _renamed(tensor, "privateuseone")


def _renamed(tensor: Tensor, kind: str) -> Tensor:
    capsule = to_dlpack(tensor)
    header = _Header.from_address(_pointer_of(capsule, b"dltensor"))
    header.device_kind, header.device_index = _KINDS[kind], 0
    twin = from_dlpack(capsule)
    # Signs that are kept aside and not in the memory.
    twin = twin.conj() if tensor.is_conj() else twin
    return torch._neg_view(twin) if tensor.is_neg() else twin
