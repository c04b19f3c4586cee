"""The exact low-rank form of a graft: per matrix, factors B · A that equal float32(after − before), bit for bit.

In each matrix the entries lie on a few rows and columns (`values.cover`); each of these lines is one rank, and every product is
by 1. What holds no linear layer (biases, LayerNorms, embeddings) has no such form.

    form = LowRankForm.of(graft, "BASE", drop=False, max_rank=None)
    for module, a, b in form.factors(): ...

Refused: entries without a form unless `drop`, a rank above `max_rank` unless `drop`, another base.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from skillgraft.errors import InputError
from skillgraft.interop.modules import Module, Modules, opened, refuse_without_form
from skillgraft.values.cover import Lines, entries_of, heaviest_cover, minimum_cover
from skillgraft.values.graft import Graft
from skillgraft.values.numbers import Array, all_finite, bits, round_once, widen
from skillgraft.values.region import Indices, Shape


@dataclass(frozen=True, eq=False)
class MatrixDelta:
    """A graft's change of one matrix: float32(after − before) at its entries, and the number that adding it lands on.

    Where a change is larger than the number that it leads to, it may miss `after`. No other float32 number would then land there,
    unless `after` is a power of two: rounding is monotone, and this one is nearest.
    """

    name: str
    shape: Shape
    at: Indices
    numbers: Array
    landed: Array
    after: Array

    @classmethod
    def of(cls, graft: Graft, name: str) -> MatrixDelta:
        """The entries whose number changes (0.0 and -0.0 are one number here)."""
        shape = graft.region.scope.shapes[name]
        return cls.between(name, shape, graft.region.sites[name], graft.before[name], graft.written(name))

    @classmethod
    def between(cls, name: str, shape: Shape, at: Indices, before: Array, after: Array) -> MatrixDelta:
        """What leads from one row of numbers to the other."""
        double = before.dtype == np.float64
        old, new = (before, after) if double else (widen(before), widen(after))
        with np.errstate(over="ignore"):
            numbers = (new - old).astype(np.float32)
        if not all_finite(numbers):
            raise InputError(f"{name}: the change overflows float32, so no adapter can hold it")
        landed = round_once((old + numbers).astype(np.float64), before.dtype)
        moved = numbers != 0
        return cls(name, shape, at[moved], numbers[moved], landed[moved], after[moved])

    @property
    def misses(self) -> Array:
        """Where adding the change does not give `after`."""
        return np.not_equal(bits(self.landed), bits(self.after))

    @property
    def remainder(self) -> MatrixDelta:
        """What is still missing there. It is exact: added to what the change landed on, it gives `after`."""
        at, landed, after = (array[self.misses] for array in (self.at, self.landed, self.after))
        return self.between(self.name, self.shape, at, landed, after)

    @property
    def entries(self) -> tuple[Indices, Indices]:
        """Rows and columns."""
        return entries_of(self.at, self.shape)

    @property
    def squares(self) -> Array:
        """delta², in float64."""
        return np.square(self.numbers.astype(np.float64))

    def on(self, lines: Lines) -> MatrixDelta:
        """What lies on these lines."""
        mask = lines.cover(*self.entries)
        parts = (array[mask] for array in (self.at, self.numbers, self.landed, self.after))
        return MatrixDelta(self.name, self.shape, *parts)


@dataclass(frozen=True, eq=False)
class AdapterDeltas:
    """What an adapter can hold of a graft: the changed matrices of linear layers. `dropped` counts the rest by kind."""

    graft: Graft
    modules: Modules
    deltas: tuple[MatrixDelta, ...]
    dropped: Mapping[str, int]

    @classmethod
    def of(cls, graft: Graft, base: str | Path, *, drop: bool, form: str) -> AdapterDeltas:
        """Of a graft and its own base; entries without a form are an error unless they may be dropped."""
        modules = opened(graft, base)
        dropped = refuse_without_form(graft, modules, drop=drop, form=form)
        every = [MatrixDelta.of(graft, name) for name in graft.region if modules.has_form(name)]
        found = tuple(delta for delta in every if len(delta.at))
        if not found:
            raise InputError(
                f"none of the graft's {len(graft):,} entries changes the matrix of a linear layer: nothing to adapt"
            )
        return cls(graft, modules, found, dropped)

    @property
    def heads(self) -> dict[str, Array]:
        """The graft's heads by their names in the loaded model."""
        return {self.modules.head_name(name, self.graft): head for name, head in self.graft.heads.items()}


@dataclass(frozen=True, eq=False)
class LowRankForm:
    """The deltas with the lines that hold them. `beyond` counts entries that `max_rank` left out; `share` is of ‖delta‖²."""

    parts: AdapterDeltas
    lines: tuple[Lines, ...]
    beyond: int = 0
    share: float = 1.0

    @classmethod
    def of(cls, graft: Graft, base: str | Path, *, drop: bool, max_rank: int | None) -> LowRankForm:
        """`drop` leaves out what has no form, and what a rank above `max_rank` would need."""
        if max_rank is not None and max_rank < 1:
            raise InputError(f"max_rank is 1 or more, found {max_rank}")
        whole = AdapterDeltas.of(graft, base, drop=drop, form="LoRA")
        if max_rank is None:
            return cls(whole, tuple(minimum_cover(*delta.entries) for delta in whole.deltas))
        lines = tuple(heaviest_cover(*delta.entries, delta.squares, most=max_rank) for delta in whole.deltas)
        kept = tuple(delta.on(mine) for delta, mine in zip(whole.deltas, lines, strict=True))
        beyond = sum(len(delta.at) for delta in whole.deltas) - sum(len(delta.at) for delta in kept)
        share = sum(delta.squares.sum() for delta in kept) / sum(delta.squares.sum() for delta in whole.deltas)
        if beyond and not drop:
            raise InputError(_why_too_wide(whole.deltas, max_rank, beyond, share))
        return cls(replace(whole, deltas=kept), lines, beyond, float(share))

    @property
    def remainder(self) -> LowRankForm | None:
        """What a merge of this form leaves to be added, or None where it misses nothing; its rank is no larger."""
        found = [delta.remainder for delta in self.parts.deltas if delta.misses.any()]
        deltas = tuple(delta for delta in found if len(delta.at))
        if not deltas:
            return None
        parts = replace(self.parts, graft=self.parts.graft.without_heads(), deltas=deltas, dropped={})
        return LowRankForm(parts, tuple(minimum_cover(*delta.entries) for delta in deltas))

    @property
    def ranks(self) -> dict[str, int]:
        """Module → rank."""
        modules = self.parts.modules.linear
        return {modules[d.name].path: mine.rank for d, mine in zip(self.parts.deltas, self.lines, strict=True)}

    def factors(self) -> Iterator[tuple[Module, Array, Array]]:
        """(module, A [rank, in], B [out, rank]). A layer that keeps its matrix as (in, out) has them the other way round."""
        for delta, lines in zip(self.parts.deltas, self.lines, strict=True):
            module = self.parts.modules.linear[delta.name]
            left, right = lines.factors(*delta.entries, delta.numbers, delta.shape)
            b, a = (right.T, left.T) if module.transposed else (left, right)
            yield module, np.ascontiguousarray(a), np.ascontiguousarray(b)


def _why_too_wide(deltas: tuple[MatrixDelta, ...], most: int, beyond: int, share: float) -> str:
    needed = {delta.name: minimum_cover(*delta.entries).rank for delta in deltas}
    widest = max(needed, key=lambda name: needed[name])
    wide = sum(rank > most for rank in needed.values())
    return (
        f"{wide} of {len(needed)} matrices need a rank above {most}, {widest} the largest: {needed[widest]}. Allow that "
        f"rank, leave out {beyond:,} entries with drop=True (--drop; {share:.1%} of ‖delta‖² stay), or search within it: "
        f"localize --scope matrices --max-rank {most}"
    )


@dataclass(frozen=True)
class Adapter:
    """What was written: entries in the adapter, what was dropped and why, and at how many sites a merge misses `after`.

    `ranks` are by module; `dropped` counts entries without a form by kind; `beyond_rank` counts those that `max_rank` left out,
    and `kept_share` is the share of ‖delta‖² that the adapter holds. `rounded` counts the sites that a merge misses: none where
    the remainder, whose rank is `remainder_rank`, is merged after it.
    """

    path: Path
    entries: int
    dropped: Mapping[str, int]
    rounded: int
    heads: tuple[str, ...]
    ranks: Mapping[str, int]
    beyond_rank: int = 0
    kept_share: float = 1.0
    remainder_rank: int = 0

    @classmethod
    def written(cls, path: Path, parts: AdapterDeltas, form: LowRankForm | None = None) -> Adapter:
        """The account of an export."""
        entries = sum(len(delta.at) for delta in parts.deltas)
        misses = sum(int(delta.misses.sum()) for delta in parts.deltas)
        low_rank = (form.ranks, form.beyond, form.share) if form else ({}, 0, 1.0)
        return cls(path, entries, parts.dropped, misses, tuple(parts.graft.heads), *low_rank)

    @property
    def rank(self) -> int:
        """The largest of any module."""
        return max(self.ranks.values(), default=0)
