"""Where the tensors of a model's folder live in the loaded model.

transformers loads some architectures otherwise than it stores them: under other names (ViT), or fused. The experts of Mixtral,
Qwen-MoE and OLMoE are tensors of their own in the folder, and all experts of a layer are one parameter in the model. A `Slot`
is a folder's tensor in the model: a whole parameter or buffer, or a contiguous stretch of one.

    slot = slots(model)["layers.0.block_sparse_moe.experts.2.w1.weight"]
    slot.data                # expert 2's numbers: a view of layers.0.mlp.experts.gate_up_proj

A parameter that is stored in another order (transposed), or together with others (query, key and value as one), keeps the
model's own name here; the folder's tensor is then out of reach, which matters only to a graft that changes it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from skillgraft.errors import InputError
from skillgraft.opening.compat import stored_form, tables
from skillgraft.opening.shards import is_split, own, stretch
from skillgraft.values.names import body_prefix
from skillgraft.values.region import Shape

Stretch = tuple[int, Shape]  # the first entry in the parameter, and the shape that the folder gives to what follows
# What transformers raises when a tensor is converted without the others that are stored with it.
_STORED_TOGETHER = (ValueError, RuntimeError, LookupError, AttributeError, TypeError)


@dataclass(frozen=True, eq=False)
class Slot:
    """A module's own table with the key of a tensor there; `low` and `shape` if it is only a stretch of that tensor.

    The table is asked anew every time, so a slot stays right when the parameter is replaced or moved.
    """

    table: dict[str, Any]
    key: str
    low: int = 0
    shape: Shape | None = None

    @property
    def tensor(self) -> Tensor:
        """The whole parameter or buffer."""
        tensor: Tensor = self.table[self.key]
        return tensor

    @property
    def is_whole(self) -> bool:
        """Whether the folder stores the parameter as it is."""
        return self.shape is None

    @property
    def identity(self) -> tuple[int, int]:
        """Which numbers these are: equal for the names of one tied tensor."""
        return id(self.tensor), self.low

    @property
    def stored_shape(self) -> Shape:
        """The shape that the folder's tensor has."""
        return tuple(self.tensor.shape) if self.shape is None else self.shape

    @property
    def numel(self) -> int:
        return math.prod(self.stored_shape)

    @property
    def data(self) -> Tensor:
        """The folder's tensor: a view of the parameter's numbers, which no graph sees being written."""
        return self.part(self.tensor.data)

    @property
    def flat(self) -> Tensor:
        """Those of the folder's entries that this process holds, flat: all of them but in a model that is split."""
        return self.own(self.tensor.data) if is_split(self.tensor) else self.data.view(-1)

    @property
    def held(self) -> tuple[int, int]:
        """Which of the folder's flat entries this process holds: the first, and the one after the last."""
        low, high = stretch(self.tensor)
        first, last = (min(max(at - self.low, 0), self.numel) for at in (low, high))
        return first, last

    def own(self, whole: Tensor) -> Tensor:
        """The same entries of any tensor that is shaped, and split, like the parameter; flat."""
        if not is_split(whole):
            return self.part(whole).reshape(-1)
        (first, last), low = self.held, stretch(whole)[0]
        return own(whole)[self.low + first - low : self.low + last - low] if last > first else own(whole)[:0]

    def part(self, whole: Tensor) -> Tensor:
        """The same view of any tensor that is shaped like the parameter."""
        if self.shape is None:
            return whole
        if not whole.is_contiguous():
            raise InputError(
                f"{self.key}: expected a contiguous tensor to view {list(self.shape)} of it, found strides {whole.stride()}; "
                "call .contiguous() on it first"
            )
        return whole.view(-1).narrow(0, self.low, self.numel).view(self.shape)


@dataclass(frozen=True)
class Stored:
    """A live model's tensors under the folder's prefix-free names; tied ones under each of their names."""

    slots: dict[str, Slot]
    unstored: frozenset[str]  # names in `slots` that are the model's own: the folder stores these numbers otherwise
    out_of_reach: frozenset[str]  # names in the folder that no slot reaches


def slots(model: nn.Module) -> dict[str, Slot]:
    """The model's parameters under prefix-free stored names; a tied one once, under the name that comes first."""
    found: dict[tuple[int, int], tuple[str, Slot]] = {}
    for name, slot in stored(model).slots.items():
        if isinstance(slot.tensor, nn.Parameter):
            found.setdefault(slot.identity, (name, slot))
    return dict(found.values())


def stored(model: nn.Module) -> Stored:
    """Every parameter and saved buffer. Buffers that are computed (rotary frequencies) are not part of a model's numbers."""
    plan = layout(model)
    prefix = body_prefix(plan.names)
    found = {
        stored_name.removeprefix(prefix): Slot(table, key, *(stretch or ()))
        for name, table, key in _entries(model)
        for stored_name, stretch in plan.pieces.get(name, {name: None}).items()
    }
    unstored = {name.removeprefix(prefix) for name, _, _ in _entries(model) if name not in plan.pieces}
    reached = {stored_name for pieces in plan.pieces.values() for stored_name in pieces}
    return Stored(found, frozenset(unstored), frozenset(name.removeprefix(prefix) for name in plan.names - reached))


def rearranged(model: nn.Module) -> dict[str, Tensor]:
    """What no slot reaches: prefix-free stored name → a copy in the folder's own order."""
    plan = layout(model)
    apart = {name: table[key].detach() for name, table, key in _entries(model) if name not in plan.pieces}
    prefix = body_prefix(plan.names)
    return {name.removeprefix(prefix): copy for name, copy in stored_form(model, apart).items()} if apart else {}


@dataclass(frozen=True)
class Layout:
    """How a model's folder stores its tensors: name in the model → name in the folder → stretch (None: the whole tensor).

    A tensor whose numbers are stored in another order, or together with others, is missing in `pieces`.
    """

    pieces: Mapping[str, Mapping[str, Stretch | None]]
    names: frozenset[str]  # all names in the folder

    def renamed(self, name: str) -> str:
        """A tensor's name in the folder; its own if it is not stored whole."""
        whole = [stored_name for stored_name, stretch in self.pieces.get(name, {}).items() if stretch is None]
        return whole[0] if whole else name


_LAYOUTS: WeakKeyDictionary[nn.Module, tuple[dict[str, Shape], Layout]] = WeakKeyDictionary()


def layout(model: nn.Module) -> Layout:
    """The model's layout: found once, and again when its tensors are others."""
    shapes = {name: tuple(table[key].shape) for name, table, key in _entries(model)}
    known = _LAYOUTS.get(model)
    if known is None or known[0] != shapes:
        known = _LAYOUTS[model] = shapes, _find_layout(model, shapes)
    return known[1]


def _entries(model: nn.Module) -> Iterator[tuple[str, dict[str, Any], str]]:
    """The model's own name of each parameter and saved buffer, its table and the key there."""
    for path, table, hidden in tables(model):
        for key, tensor in table.items():
            if tensor is not None and key not in hidden:
                yield f"{path}.{key}" if path else key, table, key


def _find_layout(model: nn.Module, shapes: Mapping[str, Shape]) -> Layout:
    if not hasattr(model, "save_pretrained"):
        return Layout({name: {name: None} for name in shapes}, frozenset(shapes))
    probes = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    folder = stored_form(model, probes)
    renamed = {id(probe): stored_name for stored_name, probe in folder.items()}
    pieces: dict[str, Mapping[str, Stretch | None]] = {
        name: {renamed[id(probe)]: None} for name, probe in probes.items() if id(probe) in renamed
    }
    whole = {stored_name for piece in pieces.values() for stored_name in piece}
    parts = {stored_name: tuple(probe.shape) for stored_name, probe in folder.items() if stored_name not in whole}
    cut = _Cutting(model, parts)
    pieces |= {name: found for name, probe in probes.items() if name not in pieces and (found := cut(name, probe))}
    return Layout(pieces, frozenset(folder))


class _Cutting:
    """Finds the stretches as which parameters are stored, one parameter at a time.

    transformers' own code cuts up a tensor that holds the numbers 0, 1, 2 …; layers that look alike are cut up once, because
    such a tensor takes as much memory as the parameter.
    """

    def __init__(self, model: nn.Module, parts: Mapping[str, Shape]) -> None:
        self._model, self._parts = model, parts
        self._known: dict[object, list[Stretch | None]] = {}

    def __call__(self, name: str, probe: Tensor) -> dict[str, Stretch | None]:
        """Stored name → stretch; empty if the parameter is stored in another order, or together with others."""
        try:
            alone = {part: tuple(form.shape) for part, form in stored_form(self._model, {name: probe}).items()}
        except _STORED_TOGETHER:
            return {}
        if not alone.items() <= self._parts.items():
            return {}
        kind = re.sub(r"\d+", "0", name), tuple(probe.shape), tuple(alone.values())
        if kind not in self._known:
            self._known[kind] = self._stretches(name, tuple(probe.shape))
        return dict(zip(alone, self._known[kind], strict=True)) if self._known[kind] else {}

    def _stretches(self, name: str, shape: Shape) -> list[Stretch | None]:
        """In the order of the stored tensors; empty if one of them is not a stretch."""
        size = math.prod(shape)
        positions = torch.arange(size, dtype=torch.int32 if size < 2**31 else torch.int64, device="cpu")
        found = []
        for part in stored_form(self._model, {name: positions.view(shape)}).values():
            flat = part.reshape(-1)
            low = int(flat[0]) if len(flat) else 0
            if not torch.equal(flat, positions[low : low + len(flat)]):
                return []
            found.append(None if tuple(part.shape) == shape else (low, tuple(part.shape)))
        return found
