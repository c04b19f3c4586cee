"""A graft looked up in a torch model: its sites as bits, compared and written in one go.

Everything is checked here before anything is written: that the model has the graft's parameters, in its shapes and format,
and the heads that the graft brings. What the numbers at the sites are is the caller's question: `holds`, `worst_mismatch`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from skillgraft.errors import InputError, WrongBase, listed
from skillgraft.live.slots import Slot
from skillgraft.values.graft import Graft
from skillgraft.values.names import is_lm_head
from skillgraft.values.numbers import BFLOAT16, Array, bits, is_float
from skillgraft.values.permitted import whole_problem
from skillgraft.values.tails import tails_of

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_THROUGH_NUMPY = ("cpu",)  # devices whose memory numpy can reach
Bits = npt.NDArray[np.signedinteger[Any]]


@dataclass(frozen=True)
class BoundPart:
    """One tensor's share of a bound graft: where it lives and its stretch of the joined numbers."""

    name: str
    slot: Slot
    address: int
    integers: Any  # flat view of the tensor as integers: numpy on the CPU, torch elsewhere
    at: Any
    low: int
    high: int
    room: Bits  # that stretch of what is read
    direct: bool  # whether numpy can read straight into it


class BoundGraft:
    """A graft looked up in a model. All numbers are handled as bits, so every format takes the same path.

    numpy's take and assignment cost about a microsecond a parameter, a fifth of torch's indexing; the numbers of all
    parameters are compared in one go. `before` has a graft's own old numbers and, for its heads, the model's.
    """

    def __init__(self, graft: Graft, slots: Mapping[str, Slot]) -> None:
        graft = _widened(graft, slots)
        _check_sites(graft, slots)
        _check_heads(graft, slots)
        _check_tied(graft, slots)
        pieces: list[tuple[str, Array, Array, Array]] = [
            (name, at, graft.before[name], graft.written(name)) for name, at in graft.region.sites.items()
        ]
        pieces += [
            (name, np.arange(head.size), head.reshape(-1), head.reshape(-1)) for name, head in graft.heads.items()
        ]
        integer = np.dtype(f"i{max((before.dtype.itemsize for _, _, before, _ in pieces), default=4)}")
        self.before = _joined([before for _, _, before, _ in pieces], integer)
        self.after = _joined([after for _, _, _, after in pieces], integer)
        self._room = np.empty_like(self.before)
        self.parts: list[BoundPart] = []
        for name, at, before, _ in pieces:
            low = self.parts[-1].high if self.parts else 0
            room = self._room[low : low + len(at)]
            self.parts.append(_part(name, slots[name], at, low, room, before.dtype.itemsize))
        # A parameter that holds many of the graft's tensors is touched once.
        self._touched = list({id(part.slot.tensor): part.slot for part in self.parts}.values())
        self.before[len(graft) :] = self.read()[len(graft) :]

    def is_current(self, slots: Mapping[str, Slot]) -> bool:
        """Whether every parameter is still where it was when the graft was bound."""
        return all(
            slots.get(part.name) is part.slot and part.slot.tensor.data_ptr() == part.address for part in self.parts
        )

    def read(self) -> Bits:
        """What stands at the sites now; the room is used again by the next call."""
        for part in self.parts:
            if part.direct:  # every site was checked to be inside; numpy's own check would take as long as the reading
                part.integers.take(part.at, None, part.room, "clip")
            elif isinstance(part.integers, np.ndarray):
                part.room[:] = part.integers.take(part.at)
            else:
                part.room[:] = part.integers[part.at].cpu().numpy()
        return self._room

    def holds(self, numbers: Bits) -> bool:
        """Whether these numbers stand at the sites."""
        return bool((self.read() == numbers).all())

    def write(self, numbers: Bits) -> None:
        """Write the sites and raise the version of every parameter touched."""
        with torch.no_grad():
            for part in self.parts:
                if isinstance(part.integers, np.ndarray):
                    part.integers[part.at] = numbers[part.low : part.high]
                else:
                    part.integers[part.at] = torch.from_numpy(numbers[part.low : part.high]).to(part.integers)
        touched = [slot.tensor for slot in self._touched]
        torch.autograd.graph.increment_version([tensor for tensor in touched if not tensor.is_inference()])

    def worst_mismatch(self, numbers: Bits) -> tuple[str, int, int]:
        """The parameter with the most sites that do not hold these numbers: name, how many, of how many."""
        differ = self.read() != numbers
        counts = [(int(differ[part.low : part.high].sum()), part) for part in self.parts]
        count, part = max(counts, key=lambda item: item[0])
        return part.name, count, part.high - part.low


def _widened(graft: Graft, slots: Mapping[str, Slot]) -> Graft:
    """The graft for a model that holds some tensors in wider formats than its folder: every number stays what it is.

    transformers keeps a few parameters of float16 and bfloat16 models in float32 (T5's wo, DeBERTa's q_bias). What has another
    shape stays as it is, and is refused with its own format in the message.
    """
    shapes = {**graft.region.scope.shapes, **{name: head.shape for name, head in graft.heads.items()}}
    ours = {name: numbers.dtype for name, numbers in (*graft.before.items(), *graft.heads.items())}
    forms = {name: _form(slots[name]) for name in ours if name in slots}
    return graft.in_formats(
        {
            name: format
            for name, (shape, format) in forms.items()
            if shape == shapes[name] and format.itemsize > ours[name].itemsize
        }
    )


def _check_sites(graft: Graft, slots: Mapping[str, Slot]) -> None:
    missing = [name for name in graft.region if name not in slots]
    if missing:
        raise WrongBase(
            f"the model has no {listed(missing)}; the graft was made for {graft.info.text('base') or 'another base'}"
        )
    for name, before in graft.before.items():
        shape, format = _form(slots[name])
        wanted = graft.region.scope.shapes[name]
        if shape != wanted:
            raise WrongBase(f"{name} is {list(shape)} in the model, {list(wanted)} in the graft: another model")
        if format != before.dtype:
            raise WrongBase(
                f"{name} is {format} in the model, {before.dtype} in the graft; load the model in the graft's format "
                f"(dtype={before.dtype}) or extract from a {format} pair"
            )
        _check_writable(name, slots[name])


def _check_heads(graft: Graft, slots: Mapping[str, Slot]) -> None:
    tails = [f"{len(rows)} to {tail.tensor}" for tail, rows in tails_of(graft.heads).items()]
    if tails:
        raise InputError(
            f"the graft appends rows ({listed(tails)}), for which a loaded model has no room: write a folder with "
            "`skillgraft apply` and load that, or use graft.without_heads()"
        )
    advice = "load the model with its head, or use graft.without_heads()"
    missing = [name for name in graft.heads if name not in slots]
    if missing:
        raise InputError(f"the graft brings the head {listed(missing)}, which this model does not have; {advice}")
    for name, head in graft.heads.items():
        problem = whole_problem(name, held=not is_lm_head(name)) if is_float(head.dtype) else ""
        if problem:
            raise InputError(f"the graft would replace {name} whole, which {problem}; a graft may bring heads alone")
        shape, format = _form(slots[name])
        if (shape, format) != (head.shape, head.dtype):
            raise InputError(
                f"head {name} is {head.dtype} {list(head.shape)} in the graft and {format} {list(shape)} in the model; {advice}"
            )
        _check_writable(name, slots[name])


def _check_tied(graft: Graft, slots: Mapping[str, Slot]) -> None:
    """One tied parameter cannot hold two sets of numbers: a graft of a model that unties it does not fit."""
    names: dict[tuple[int, int], list[str]] = defaultdict(list)
    for name, slot in slots.items():
        names[slot.identity].append(name)
    for tied in names.values():
        ours = [name for name in tied if name in graft.before or name in graft.heads]
        if len(ours) > 1 or (len(tied) > 1 and graft.heads.keys() & ours):
            raise InputError(
                f"the graft changes {listed(ours)} by itself, but in this model {listed(tied)} are one tied parameter; load "
                "the model untied (tie_word_embeddings=False), or use graft.without_heads()"
            )


def _check_writable(name: str, slot: Slot) -> None:
    if not is_float(_form(slot)[1]) or not slot.tensor.is_contiguous():
        raise InputError(f"{name}: only contiguous floating-point parameters can be grafted")


def _form(slot: Slot) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and number format of a live tensor, as a graft has them."""
    dtype = slot.tensor.dtype
    plain = BFLOAT16 if dtype == torch.bfloat16 else np.dtype(str(dtype).removeprefix("torch."))
    return slot.stored_shape, plain


def _joined(pieces: list[Array], integer: np.dtype[Any]) -> Bits:
    if not pieces:
        return np.empty(0, integer)
    return np.concatenate([_signed(piece).astype(integer) for piece in pieces])


def _signed(piece: Array) -> Bits:
    unsigned = bits(np.ascontiguousarray(piece))
    return unsigned.view(np.dtype(f"i{unsigned.dtype.itemsize}"))


def _part(name: str, slot: Slot, at: Array, low: int, room: Bits, itemsize: int) -> BoundPart:
    integers: Any = slot.data.view(_INTEGERS[itemsize]).view(-1)
    index: Any = at.astype(np.intp)
    through_numpy = integers.device.type in _THROUGH_NUMPY
    if through_numpy:
        integers = integers.numpy()
    else:
        index = torch.from_numpy(index).to(integers.device)
    direct = through_numpy and integers.dtype == room.dtype
    return BoundPart(name, slot, slot.tensor.data_ptr(), integers, index, low, low + len(at), room, direct)
