"""Every number of a live model, bit for bit: what a law about "afterwards it is the base again" compares."""

from __future__ import annotations

import hashlib

from torch import nn

from skillgraft.live.grafted import as_numpy


def bits_of(model: nn.Module) -> dict[str, bytes]:
    """Parameters and buffers, by their names in the model."""
    return {name: as_numpy(tensor).tobytes() for name, tensor in model.state_dict().items()}


def digest_of(model: nn.Module) -> str:
    """SHA-256 over names, number formats and bits of all parameters and buffers."""
    sha = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        sha.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        sha.update(as_numpy(tensor).tobytes())
    return sha.hexdigest()
