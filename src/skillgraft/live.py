"""Grafts on live torch models: put on, taken off, switched, in time that follows the graft and not the model.

    with grafted(model, g):
        model(**batch)          # the skill is on
    # every number is what it was, bit for bit, also after an exception

The numbers at a graft's sites must be its `before`: so a wrong base, a graft that is on already, or an overlapping one is
refused before anything is written, and taking off is copying `before` back. Every write raises the version of the
parameters that it touches: a backward pass through a graph from before the write fails instead of being silently wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from skillgraft.checkpoint import MemoryTensors, fingerprint
from skillgraft.dtypes import BFLOAT16, Array, bits, is_float
from skillgraft.errors import AlreadyApplied, InputError, NotApplied, Overlap, WrongBase, listed
from skillgraft.graft import Graft
from skillgraft.names import body_prefix
from skillgraft.region import Region

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
Owner = tuple[dict[str, Any], str]


@contextmanager
def grafted(model: nn.Module, graft: Graft) -> Iterator[nn.Module]:
    """The model with the graft on; the exact old numbers come back on exit. Disjoint grafts may be nested."""
    live = live_model(model)
    live.put_on(graft)
    try:
        yield model
    finally:
        live.take_off(graft)


def live_model(model: nn.Module) -> LiveModel:
    """The model's own LiveModel: one per model, so that everybody knows what is on it."""
    if model not in _LIVE:
        _LIVE[model] = LiveModel(model)
    return _LIVE[model]


def tensors_of(model: nn.Module) -> MemoryTensors:
    """The model's parameters and buffers under prefix-free names, as numpy views that share their memory (CPU models)."""
    return MemoryTensors({name: as_numpy(owner[key]) for name, (owner, key) in _owners(model).items()})


def fingerprint_of(model: nn.Module) -> str:
    """The base fingerprint of a live model: the same as its folder's."""
    return fingerprint(tensors_of(model))


def graft_between(base: nn.Module, tuned: nn.Module, region: Region, **rest: Any) -> Graft:
    """The exact graft that turns the live base into the live tuned model inside `region`."""
    before = tensors_of(base)
    return Graft.between(before.arrays, tensors_of(tuned).arrays, region, base_fingerprint=fingerprint(before), **rest)


def as_numpy(tensor: Tensor) -> Array:
    """A numpy view of a CPU tensor (bfloat16 through ml_dtypes); tensors elsewhere are copied over."""
    plain = tensor.detach().cpu()
    if plain.dtype == torch.bfloat16:
        return plain.view(torch.int16).numpy().view(BFLOAT16)
    return plain.numpy()


def as_torch(array: Array) -> Tensor:
    """A torch copy of a numpy array (bfloat16 included)."""
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


class LiveModel:
    """A torch model whose parameters were looked up once, and the grafts that are on it."""

    def __init__(self, model: nn.Module) -> None:
        self._owners = _owners(model)
        self._on: list[_Bound] = []
        self._bound: WeakKeyDictionary[Graft, _Bound] = WeakKeyDictionary()

    @property
    def on(self) -> tuple[Graft, ...]:
        """The grafts that are on, in the order in which they came."""
        return tuple(bound.graft for bound in self._on)

    def put_on(self, graft: Graft) -> None:
        """Write the graft's numbers, after proving that its `before` stands at every site."""
        bound = self._bind(graft)
        if not bound.holds_before():
            raise self._why_not(bound)
        bound.write(bound.after)
        self._on.append(bound)

    def take_off(self, graft: Graft) -> None:
        """Copy the old numbers back."""
        bound = next((bound for bound in reversed(self._on) if bound.graft == graft), None)
        if bound is None:
            raise NotApplied(f"{graft!r} is not on this model; on it: {list(self.on)}")
        place = bound if bound.current else _Bound(graft, self._owners)  # the model moved while the graft was on
        place.write(bound.before)
        self._on = [other for other in self._on if other.graft != graft]

    def switch(self, graft: Graft | None) -> None:
        """Take off everything that is on, the last first, and put this graft on instead (None: nothing)."""
        for on in reversed(self.on):
            self.take_off(on)
        if graft is not None:
            self.put_on(graft)

    def _bind(self, graft: Graft) -> _Bound:
        bound = self._bound.get(graft)
        if bound is None or not bound.current or graft.heads:  # the model's own head may have changed since
            bound = _Bound(graft, self._owners)
            self._bound[graft] = bound
        return bound

    def _why_not(self, bound: _Bound) -> Exception:
        graft = bound.graft
        if any(on == graft for on in self.on):
            return AlreadyApplied(f"{graft!r} is on this model already")
        overlapping = [on for on in self.on if not on.region.isdisjoint(graft.region)]
        if overlapping:
            shared = sum(len(on.region & graft.region) for on in overlapping)
            return Overlap(f"{graft!r} shares {shared} entries with what is on; put on their sum instead: g + h")
        name, differ, count = bound.worst_mismatch()
        return WrongBase(
            f"this model is not the graft's base: in {name} {differ} of {count} sites hold other numbers; the graft was made "
            f"for {graft.info.text('base') or 'an unnamed base'} (fingerprint {graft.base_fingerprint[:12]}…)"
        )


@dataclass(frozen=True)
class _Part:
    """One parameter's share of a bound graft: where it lives and its stretch of the joined numbers."""

    name: str
    owner: dict[str, Any]
    key: str
    address: int
    integers: Any  # flat view of the parameter as integers: numpy on the CPU, torch elsewhere
    at: Any
    low: int
    high: int


class _Bound:
    """A graft looked up in a model. All numbers are handled as bits, so every format takes the same path.

    numpy's take and assignment cost about a microsecond a parameter, a fifth of torch's indexing; the numbers of all
    parameters are compared in one go.
    """

    def __init__(self, graft: Graft, owners: Mapping[str, Owner]) -> None:
        self.graft = graft
        pieces = [
            (name, np.asarray(at), graft.before[name], graft.written(name)) for name, at in graft.region.sites.items()
        ]
        pieces += [_whole(name, head, owners) for name, head in graft.heads.items()]
        _check_present(graft, [(name, before) for name, _, before, _ in pieces], owners)
        width = max((piece[2].dtype.itemsize for piece in pieces), default=4)
        integer = np.dtype(f"i{width}")
        self.before = _joined([piece[2] for piece in pieces], integer)
        self.after = _joined([piece[3] for piece in pieces], integer)
        self._room = np.empty_like(self.before)
        self.parts: list[_Part] = []
        low = 0
        for name, at, before, _ in pieces:
            self.parts.append(_part(name, at, low, before.dtype.itemsize, owners))
            low += len(at)

    @property
    def current(self) -> bool:
        """Whether every parameter is still where it was when the graft was bound."""
        return all(part.owner[part.key].data_ptr() == part.address for part in self.parts)

    def read(self) -> npt.NDArray[Any]:
        for part in self.parts:
            if isinstance(part.integers, np.ndarray):
                self._room[part.low : part.high] = part.integers.take(part.at)
            else:
                self._room[part.low : part.high] = part.integers[part.at].cpu().numpy()
        return self._room

    def holds_before(self) -> bool:
        return bool((self.read() == self.before).all())

    def write(self, numbers: npt.NDArray[Any]) -> None:
        with torch.no_grad():
            for part in self.parts:
                if isinstance(part.integers, np.ndarray):
                    part.integers[part.at] = numbers[part.low : part.high]
                else:
                    values = torch.from_numpy(numbers[part.low : part.high]).to(part.integers)
                    part.integers[part.at] = values
        touched = [part.owner[part.key] for part in self.parts]
        torch.autograd.graph.increment_version([tensor for tensor in touched if not tensor.is_inference()])

    def worst_mismatch(self) -> tuple[str, int, int]:
        """The parameter with the most sites that do not hold `before`: name, how many, of how many."""
        differ = self.read() != self.before
        counts = [(int(differ[part.low : part.high].sum()), part) for part in self.parts]
        count, part = max(counts, key=lambda item: item[0])
        return part.name, count, part.high - part.low


_LIVE: WeakKeyDictionary[nn.Module, LiveModel] = WeakKeyDictionary()


def _owners(model: nn.Module) -> dict[str, Owner]:
    """Prefix-free name → (the module's own table, key). Tied parameters appear under each of their names."""
    found: dict[str, Owner] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for table in (module._parameters, module._buffers):
            for key, tensor in table.items():
                if tensor is not None:
                    found[f"{path}.{key}" if path else key] = (table, key)
    prefix = body_prefix(found)
    return {name.removeprefix(prefix): owner for name, owner in found.items()}


def _whole(name: str, head: Array, owners: Mapping[str, Owner]) -> tuple[str, Array, Array, Array]:
    """A head as a piece like any other; its old numbers are the model's own at this moment."""
    if name not in owners:
        raise InputError(
            f"the graft brings the head {name}, which this model does not have; load the model with its head, "
            "or use graft.without_heads()"
        )
    table, key = owners[name]
    flat = as_numpy(table[key]).reshape(-1)
    if table[key].shape != head.shape or flat.dtype != head.dtype:
        raise InputError(
            f"head {name} is {head.dtype} {list(head.shape)} in the graft and {flat.dtype} {list(table[key].shape)} in the model"
        )
    return name, np.arange(head.size), flat.copy(), head.reshape(-1)


def _check_present(graft: Graft, pieces: list[tuple[str, Array]], owners: Mapping[str, Owner]) -> None:
    missing = [name for name, _ in pieces if name not in owners]
    if missing:
        raise WrongBase(
            f"the model has no {listed(missing)}; the graft was made for {graft.info.text('base') or 'another base'}"
        )
    for name, before in pieces:
        tensor = owners[name][0][owners[name][1]]
        shape = graft.region.scope.shapes.get(name, tuple(tensor.shape))
        if tuple(tensor.shape) != shape:
            raise WrongBase(f"{name} is {list(tensor.shape)} in the model, {list(shape)} in the graft: another model")
        held = BFLOAT16 if tensor.dtype == torch.bfloat16 else np.dtype(str(tensor.dtype).removeprefix("torch."))
        if held != before.dtype:
            raise WrongBase(
                f"{name} is {held} in the model, {before.dtype} in the graft; load the model in the graft's format "
                f"(dtype={before.dtype}) or extract from a {held} pair"
            )
        if not is_float(held) or not tensor.is_contiguous():
            raise InputError(f"{name}: only contiguous floating-point parameters can be grafted")


def _joined(pieces: list[Array], integer: np.dtype[Any]) -> npt.NDArray[Any]:
    if not pieces:
        return np.empty(0, integer)
    return np.concatenate([_signed(piece).astype(integer) for piece in pieces])


def _signed(piece: Array) -> npt.NDArray[Any]:
    unsigned = bits(np.ascontiguousarray(piece))
    return unsigned.view(np.dtype(f"i{unsigned.dtype.itemsize}"))


def _part(name: str, at: Array, low: int, itemsize: int, owners: Mapping[str, Owner]) -> _Part:
    owner, key = owners[name]
    tensor = owner[key]
    integers = tensor.detach().view(_INTEGERS[itemsize]).view(-1)
    places: Any = at.astype(np.intp)
    if tensor.device.type == "cpu":
        integers = integers.numpy()
    else:
        places = torch.from_numpy(places).to(tensor.device)
    return _Part(name, owner, key, tensor.data_ptr(), integers, places, low, low + len(at))
