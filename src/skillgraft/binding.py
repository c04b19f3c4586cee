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

from skillgraft.dtypes import BFLOAT16, Array, bits, is_float
from skillgraft.errors import InputError, WrongBase, listed
from skillgraft.graft import Graft

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_THROUGH_NUMPY = ("cpu",)  # devices whose memory numpy can reach
Owner = tuple[dict[str, Any], str]  # a module's own table of parameters or buffers, and the key there
Bits = npt.NDArray[np.signedinteger[Any]]


@dataclass(frozen=True)
class Part:
    """One parameter's share of a bound graft: where it lives and its stretch of the joined numbers."""

    name: str
    owner: Owner
    address: int
    integers: Any  # flat view of the parameter as integers: numpy on the CPU, torch elsewhere
    at: Any
    low: int
    high: int

    @property
    def tensor(self) -> Any:
        table, key = self.owner
        return table[key]


class Bound:
    """A graft looked up in a model. All numbers are handled as bits, so every format takes the same path.

    numpy's take and assignment cost about a microsecond a parameter, a fifth of torch's indexing; the numbers of all
    parameters are compared in one go. `before` has a graft's own old numbers and, for its heads, the model's.
    """

    def __init__(self, graft: Graft, owners: Mapping[str, Owner]) -> None:
        _check_sites(graft, owners)
        _check_heads(graft, owners)
        _check_tied(graft, owners)
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
        self.parts: list[Part] = []
        for name, at, before, _ in pieces:
            low = self.parts[-1].high if self.parts else 0
            self.parts.append(_part(name, at, low, before.dtype.itemsize, owners))
        self.before[len(graft) :] = self.read()[len(graft) :]

    def is_current(self, owners: Mapping[str, Owner]) -> bool:
        """Whether every parameter is still where it was when the graft was bound."""
        return all(
            owners.get(part.name) is part.owner and part.tensor.data_ptr() == part.address for part in self.parts
        )

    def read(self) -> Bits:
        """What stands at the sites now; the room is used again by the next call."""
        for part in self.parts:
            if isinstance(part.integers, np.ndarray):
                self._room[part.low : part.high] = part.integers.take(part.at)
            else:
                self._room[part.low : part.high] = part.integers[part.at].cpu().numpy()
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
        touched = [part.tensor for part in self.parts]
        torch.autograd.graph.increment_version([tensor for tensor in touched if not tensor.is_inference()])

    def worst_mismatch(self) -> tuple[str, int, int]:
        """The parameter with the most sites that do not hold `before`: name, how many, of how many."""
        differ = self.read() != self.before
        counts = [(int(differ[part.low : part.high].sum()), part) for part in self.parts]
        count, part = max(counts, key=lambda item: item[0])
        return part.name, count, part.high - part.low


def _check_sites(graft: Graft, owners: Mapping[str, Owner]) -> None:
    missing = [name for name in graft.region if name not in owners]
    if missing:
        raise WrongBase(
            f"the model has no {listed(missing)}; the graft was made for {graft.info.text('base') or 'another base'}"
        )
    for name, before in graft.before.items():
        shape, format = _form(owners[name])
        wanted = graft.region.scope.shapes[name]
        if shape != wanted:
            raise WrongBase(f"{name} is {list(shape)} in the model, {list(wanted)} in the graft: another model")
        if format != before.dtype:
            raise WrongBase(
                f"{name} is {format} in the model, {before.dtype} in the graft; load the model in the graft's format "
                f"(dtype={before.dtype}) or extract from a {format} pair"
            )
        _check_writable(name, owners[name])


def _check_heads(graft: Graft, owners: Mapping[str, Owner]) -> None:
    advice = "load the model with its head, or use graft.without_heads()"
    missing = [name for name in graft.heads if name not in owners]
    if missing:
        raise InputError(f"the graft brings the head {listed(missing)}, which this model does not have; {advice}")
    for name, head in graft.heads.items():
        shape, format = _form(owners[name])
        if (shape, format) != (head.shape, head.dtype):
            raise InputError(
                f"head {name} is {head.dtype} {list(head.shape)} in the graft and {format} {list(shape)} in the model; {advice}"
            )
        _check_writable(name, owners[name])


def _check_tied(graft: Graft, owners: Mapping[str, Owner]) -> None:
    """One tied parameter cannot hold two sets of numbers: a graft of a model that unties it does not fit."""
    names: dict[int, list[str]] = defaultdict(list)
    for name, (table, key) in owners.items():
        names[id(table[key])].append(name)
    for tied in names.values():
        ours = [name for name in tied if name in graft.before or name in graft.heads]
        if len(ours) > 1 or (len(tied) > 1 and graft.heads.keys() & ours):
            raise InputError(
                f"the graft changes {listed(ours)} by itself, but in this model {listed(tied)} are one tied parameter; load "
                "the model untied (tie_word_embeddings=False), or use graft.without_heads()"
            )


def _check_writable(name: str, owner: Owner) -> None:
    table, key = owner
    if not is_float(_form(owner)[1]) or not table[key].is_contiguous():
        raise InputError(f"{name}: only contiguous floating-point parameters can be grafted")


def _form(owner: Owner) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and number format of a live tensor, as a graft has them."""
    table, key = owner
    tensor = table[key]
    plain = BFLOAT16 if tensor.dtype == torch.bfloat16 else np.dtype(str(tensor.dtype).removeprefix("torch."))
    return tuple(tensor.shape), plain


def _joined(pieces: list[Array], integer: np.dtype[Any]) -> Bits:
    if not pieces:
        return np.empty(0, integer)
    return np.concatenate([_signed(piece).astype(integer) for piece in pieces])


def _signed(piece: Array) -> Bits:
    unsigned = bits(np.ascontiguousarray(piece))
    return unsigned.view(np.dtype(f"i{unsigned.dtype.itemsize}"))


def _part(name: str, at: Array, low: int, itemsize: int, owners: Mapping[str, Owner]) -> Part:
    table, key = owners[name]
    tensor = table[key]
    integers = tensor.detach().view(_INTEGERS[itemsize]).view(-1)
    places: Any = at.astype(np.intp)
    if tensor.device.type in _THROUGH_NUMPY:
        integers = integers.numpy()
    else:
        places = torch.from_numpy(places).to(tensor.device)
    return Part(name, owners[name], tensor.data_ptr(), integers, places, low, low + len(at))
