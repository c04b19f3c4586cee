"""Grafts as a verb is given them: read as streams, called after their files, packed ones with the model's numbers, scaled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from skillgraft.errors import InputError
from skillgraft.folders.checkpoint import Checkpoint, ShortenedTensors, Tensors
from skillgraft.folders.fits import own_shape
from skillgraft.folders.ledger import Ledger
from skillgraft.values.graft import GraftLike, stream_of
from skillgraft.values.naming import Scales, called, scales_of
from skillgraft.values.stream import GraftStream
from skillgraft.values.tails import tail_of

G = TypeVar("G", bound=GraftLike)


@dataclass(frozen=True)
class Named(Generic[G]):
    """A graft and what to call it in messages and in the ledger, where that is not its file's own name."""

    graft: G
    file: str


@dataclass(frozen=True)
class GivenGraft:
    """A graft as it is read, what it is called, which of those that are given it is, and how much of it is put on."""

    graft: GraftStream
    file: str
    place: int = 0
    proved: bool = False
    scale: float = 1.0

    @property
    def scaled(self) -> GraftStream:
        return self.scale * self.graft


def as_given(grafts: Sequence[GraftLike | Named[Any]], verb: str) -> list[GivenGraft]:
    """Grafts with what their files are called; one that has no file is called after its task or its tuned model."""
    if not grafts:
        raise InputError(f"{verb} needs at least one graft, found none")
    return [
        GivenGraft(stream_of(each.graft), each.file, place)
        if isinstance(each, Named)
        else GivenGraft(stream_of(each), called(each), place)
        for place, each in enumerate(grafts)
    ]


def based(grafts: Sequence[GivenGraft], source: Checkpoint, ledger: Ledger) -> list[GivenGraft]:
    """The grafts, packed ones with the model's numbers."""
    own = own_tensors(source, ledger)
    return [replace(named, graft=named.graft.based(own), proved=named.graft.packed) for named in grafts]


def own_tensors(source: Checkpoint, ledger: Ledger) -> Tensors:
    """The model's tensors without rows that applied grafts appended."""
    grown = {tail.tensor for head in ledger.heads if (tail := tail_of(head))} & source.shapes.keys()
    shapes = {name: shape for name in grown if (shape := own_shape(source, ledger, name))}
    return ShortenedTensors(source, {**source.shapes, **shapes}) if grown else source


def scaled_grafts(grafts: Sequence[GivenGraft], scale: Scales) -> list[GivenGraft]:
    """The grafts with the scale of each."""
    factors = scales_of([named.file for named in grafts], scale)
    return [replace(named, scale=factor) for named, factor in zip(grafts, factors, strict=True)]
