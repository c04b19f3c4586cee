"""The operations of our own device: every kernel that the CPU has, run on the same memory, and no mixing.

What is not here (an operation that is made of others) torch takes apart as it does on the CPU, so the numbers are the CPU's bit
for bit. A CPU tensor among the arguments is refused, but for what CUDA takes too: one number (0 dimensions) that is only
read, and the indices of `x[indices]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from tests.devices.memory import CPU_KERNELS, on_cpu, on_own

NAME = "own"
Kernel = Callable[..., Any]
Given = Mapping[str, Any]


class Randomness:
    """The device's own stream of random numbers, as every GPU has one: seeding or saving the CPU's does not touch it."""

    def __init__(self) -> None:
        self.seed(0)

    def seed(self, seed: int) -> None:
        self.state = torch.Generator().manual_seed(seed).get_state()

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """What the CPU draws meanwhile comes from here."""
        before = torch.default_generator.get_state()
        torch.default_generator.set_state(self.state)
        try:
            yield
        finally:
            self.state = torch.default_generator.get_state()
            torch.default_generator.set_state(before)


RANDOMNESS = Randomness()


def kernel_for(operation: OpOverload) -> Kernel:
    """The CPU's kernel of an operation as ours."""
    aliases = [item.alias_info for item in operation._schema.returns]
    if any(alias is not None and not alias.is_write for alias in aliases):
        return view_kernel(operation)
    if torch.Tag.nondeterministic_seeded in operation.tags:
        return _random(operation)
    return computing_kernel(operation)


def view_kernel(operation: OpOverload) -> Kernel:
    """The CPU's own kernel: it makes a view, or changes one, and never looks at the device or into the memory."""

    def kernel(*arguments: Any, **named: Any) -> Any:
        return operation.redispatch(CPU_KERNELS, *arguments, **named)

    return kernel


def computing_kernel(operation: OpOverload, *, mixing: bool = False) -> Kernel:
    """Compute on the memory as the CPU sees it; what is new comes back to our device."""
    arguments_ = operation._schema.arguments
    names = [argument.name for argument in arguments_]
    written = {argument.name for argument in arguments_ if argument.is_write}
    tensors = {argument.name for argument in arguments_ if isinstance(argument.type, torch.TensorType)}

    def kernel(*arguments: Any, **named: Any) -> Any:
        given = dict(zip(names, arguments, strict=False)) | named
        if not mixing:
            _refuse_mixing(given, written)
        seen = {name: each(_room if name in written else _seen, value) for name, value in given.items()}
        # torch hands over a tensor that was made from a number as that number: another overload takes it.
        is_number = any(isinstance(seen[name], int | float | complex) for name in tensors & seen.keys())
        run = operation.overloadpacket if is_number else operation
        found = run(*(seen[name] for name in names[: len(arguments)]), **{name: seen[name] for name in named})
        for name in written & given.keys():
            _grow(given[name], seen[name])
        return _returned(operation, found, given)

    return kernel


def _random(operation: OpOverload) -> Kernel:
    compute = computing_kernel(operation)

    def kernel(*arguments: Any, **named: Any) -> Any:
        if any(isinstance(value, torch.Generator) for value in (*arguments, *named.values())):
            raise RuntimeError(f"Expected a '{NAME}' device type for generator but found 'cpu'")
        with RANDOMNESS.drawing():
            return compute(*arguments, **named)

    return kernel


def is_own(value: object) -> bool:
    return isinstance(value, Tensor) and value.device.type == NAME


def each(change: Callable[[Any], Any], value: Any) -> Any:
    return [change(item) for item in value] if isinstance(value, list | tuple) else change(value)


def _seen(value: Any) -> Any:
    """An argument as the CPU's kernel gets it."""
    if is_own(value):
        return on_cpu(value)
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _room(value: Any) -> Any:
    """An argument that is written to. An empty `out=` may grow, which shared memory cannot."""
    return torch.empty_like(value, device="cpu") if is_own(value) and value.numel() == 0 else _seen(value)


def _grow(given: Any, seen: Any) -> None:
    if is_own(given) and given.shape != seen.shape:
        given.set_(on_own(seen))


def _returned(operation: OpOverload, found: Any, given: Given) -> Any:
    """The results: an argument itself where the operation gives it back, else on our device."""
    items = operation._schema.returns
    results = found if len(items) != 1 else (found,)
    if not items:
        return None
    passed = [_passed_through(operation, item, given) for item in items]
    ours = [each(_brought, result) if own is None else own for result, own in zip(results, passed, strict=True)]
    return tuple(ours) if len(items) != 1 else ours[0]


def _brought(value: Any) -> Any:
    return on_own(value) if isinstance(value, Tensor) and value.device.type == "cpu" else value


def _passed_through(operation: OpOverload, item: Any, given: Given) -> Any:
    if item.alias_info is None:
        return None
    same = [
        a.name
        for a in operation._schema.arguments
        if a.alias_info and a.alias_info.before_set == item.alias_info.before_set
    ]
    return given[same[0]] if same else None


def _refuse_mixing(given: Given, written: set[str]) -> None:
    """CUDA's rules: see the top of this file."""
    tensors = {name: [t for t in _listed(value) if isinstance(t, Tensor)] for name, value in given.items()}
    if not any(is_own(tensor) for found in tensors.values() for tensor in found):
        return
    for name, found in tensors.items():
        for tensor in found:
            if not (is_own(tensor) or _may_stay(name, tensor, given, written)):
                raise RuntimeError(
                    f"Expected all tensors to be on the same device, but found at least two devices, {NAME}:0 and "
                    f"{tensor.device}! (argument {name} of shape {list(tensor.shape)})"
                )


def _may_stay(name: str, tensor: Tensor, given: Given, written: set[str]) -> bool:
    if name == "indices" and isinstance(given[name], list | tuple):
        return is_own(given["self"])
    return tensor.dim() == 0 and name not in written


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
