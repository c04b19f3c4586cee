"""How many bytes of tensors are alive: counted at every operation, exact and the same on every run.

    with TensorMemory() as memory:
        step()
    memory.peak

Storages count once, however many tensors share them, from the operation that first sees them until they are freed. What
torch's kernels use for themselves is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class TensorMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts while it is entered: `now` and `peak`, in bytes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now: int = 0
        self.peak: int = 0
        self._seen: weakref.WeakKeyDictionary[torch.UntypedStorage, None] = weakref.WeakKeyDictionary()

    def __torch_dispatch__(
        self, func: Callable[..., Any], _types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self._see((args, kwargs))
        result = func(*args, **(kwargs or {}))
        self._see(result)
        return result

    def _see(self, tree: Any) -> None:
        for tensor in tree_leaves(tree):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage not in self._seen:
                    self._seen[storage] = None
                    self._add(storage.nbytes())
                    weakref.finalize(storage, self._add, -storage.nbytes()).atexit = False

    def _add(self, nbytes: int) -> None:
        self.now += nbytes
        self.peak = max(self.peak, self.now)
