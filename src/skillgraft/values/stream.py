"""A graft as it is read: `GraftStream`, all of it but its numbers, and those stretch by stretch.

A graft of everything that a large fine-tune changed does not fit in memory. What reads, writes, adds up or compares grafts
goes through the parameters one window of entries (a `Stretch`) at a time, so memory is a few stretches whatever the size:

    stream = graft.stream()                    # or a file's, a pair of folders', a rule's
    for stretch in stream.stretches("encoder.layer.0.query.weight"):
        stretch.sites, stretch.before, stream.written(name, stretch)

Windows begin at multiples of `STRETCH`; one without sites is passed over. Law: `Graft.collected(g.stream()) == g`.

A stream is refused where it is read: a file or folder behind it may have changed since it was opened.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Self, cast

import numpy as np
import numpy.typing as npt

from skillgraft.errors import InputError
from skillgraft.values.info import Info
from skillgraft.values.kinds import cell_sizes, counts_in, parts_of
from skillgraft.values.names import layer_of
from skillgraft.values.numbers import Array, added, all_finite, bits, blended, difference, float64, round_once
from skillgraft.values.region import Indices, Scope, by_kind, by_layer

STRETCH = (
    1 << 18
)  # entries; a dozen arrays of this length are a few megabytes, and their handling drowns Python's own time
Form = Literal["exact", "arithmetic"]
Held = Literal["before", "after"]
Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Where = slice | Mask | Indices
EVERY = slice(None)


@dataclass(frozen=True, slots=True)
class Stretch:
    """The sites among the entries [low, high) of a parameter, and the numbers there.

    `where` picks the sites out of an array of those entries: all of them, by a mask, or by sorted positions.
    """

    low: int
    high: int
    where: Where
    before: Array
    change: Array
    digests: bytes = b""  # of `before` and `change`, where whoever made the stretch knows them

    def __len__(self) -> int:
        if len(self.before):
            return len(self.before)
        if isinstance(self.where, slice):
            return self.high - self.low
        return int(np.count_nonzero(self.where)) if self.where.dtype == bool else len(self.where)

    @property
    def full(self) -> bool:
        """Whether every entry of the window is a site."""
        return isinstance(self.where, slice)

    @property
    def positions(self) -> Indices:
        """The sites, counted from the window's beginning."""
        return positions(self.where, self.high - self.low)

    @property
    def sites(self) -> Indices:
        """The sites as flat indices of the parameter."""
        return self.positions.astype(np.int64) + self.low

    @property
    def mask(self) -> Mask:
        """Which entries of the window are sites."""
        return mask_of(self.where, self.high - self.low)

    def kept(self, chosen: Mask) -> Stretch:
        """The stretch with those of its sites alone at which `chosen` is true."""
        at = np.flatnonzero(chosen)  # taking by positions is several times faster than by a mask
        if self.full:
            where: Where = EVERY if len(at) == len(chosen) else at
        else:
            where = self.positions.take(at)
        return Stretch(self.low, self.high, where, self.before.take(at), self.change.take(at))


def positions(where: Where, length: int) -> Indices:
    """The entries that `where` picks out of `length`."""
    if isinstance(where, slice):
        return np.arange(length)
    found: Any = np.flatnonzero(where) if where.dtype == bool else where
    return cast(Indices, found)


def mask_of(where: Where, length: int) -> Mask:
    """The same as a mask."""
    if not isinstance(where, slice) and where.dtype == bool:
        return cast(Mask, where)
    mask = np.zeros(length, bool)
    mask[where] = True
    return mask


def where_of(mask: Mask) -> Where:
    """A mask in the form that is cheapest to use: all, positions, or where nearly all are sites the mask itself.

    Below that to pick by a mask takes up to eight times as long as by positions: the processor cannot foresee it.
    """
    count = np.count_nonzero(mask)
    if count == len(mask):
        return EVERY
    return mask if 10 * count > 9 * len(mask) else np.flatnonzero(mask)


def windows(size: int) -> Iterator[tuple[int, int]]:
    """The windows [low, high) of a parameter with so many entries."""
    for low in range(0, size, STRETCH):
        yield low, min(low + STRETCH, size)


@dataclass(frozen=True, eq=False)
class GraftStream:
    """Everything of a graft but its numbers: those come from `stretches(name)`, in order and as often as asked for.

    `counts` has the parameters with entries, in name order, and how many each has; `formats` the base's number format there.
    """

    scope: Scope
    counts: Mapping[str, int]
    formats: Mapping[str, np.dtype[Any]]
    stretches: Callable[[str], Iterator[Stretch]]
    form: Form = "exact"
    scale: float = 1.0
    heads: Mapping[str, Array] = field(default_factory=dict)
    base_fingerprint: str = ""
    info: Info = field(default_factory=Info)
    places: Callable[[str], Iterator[Stretch]] | None = None  # the stretches without numbers, where those cost less
    based_on: Callable[[Any, Held], GraftStream] | None = None  # a packed graft, given the numbers of base or tuned

    def __len__(self) -> int:
        return sum(self.counts.values())

    def sites(self, name: str) -> Iterator[Stretch]:
        """Where the sites are; the stretches may come without their numbers."""
        return (self.places or self.stretches)(name)

    @property
    def packed(self) -> bool:
        """Whether the graft holds no numbers of its own; its sites and digest are known all the same."""
        return self.based_on is not None

    def based(self, tensors: Any, held: Held = "before") -> GraftStream:
        """The graft with numbers: a packed one takes them from a model that holds its `before`, or its `after`."""
        return self.based_on(tensors, held) if self.based_on else self

    def full(self, name: str) -> bool:
        """Whether every entry of the parameter is a site."""
        return self.counts[name] == self.size(name)

    @property
    def density(self) -> float:
        """Entries / entries of the scope."""
        return len(self) / self.scope.size if self.scope.size else 0.0

    def size(self, name: str) -> int:
        """How many entries the parameter has."""
        return math.prod(self.scope.shapes[name])

    def delta(self, stretch: Stretch) -> Floats:
        """What is added to the base at the sites of a stretch, scale included, in float64."""
        return delta_of(stretch.before, stretch.change, form=self.form, scale=self.scale)

    def written(self, name: str, stretch: Stretch) -> Array:
        """The numbers that stand at the sites of a stretch once the graft is applied."""
        return written_of(name, stretch.before, stretch.change, form=self.form, scale=self.scale)

    def __mul__(self, factor: float) -> GraftStream:
        if factor == 1.0:
            return self
        if self.form == "exact":
            return replace(self, scale=self.scale * factor + 0.0)

        def scaled(name: str) -> Iterator[Stretch]:
            for stretch in self.stretches(name):
                change = round_once(self.delta(stretch) * factor, np.dtype(np.float32))
                yield replace(stretch, change=change, digests=b"")

        return replace(self, stretches=scaled)

    __rmul__ = __mul__

    def with_info(self, **items: Any) -> Self:
        """The same stream with these items of provenance set (None takes an item away)."""
        return replace(self, info=self.info.updated(**items))

    def without_heads(self) -> GraftStream:
        return replace(self, heads={})

    @cached_property
    def digest(self) -> str:
        """SHA-256 of what the graft does; see `Digest`."""
        return Digest().of(self)

    @cached_property
    def norm(self) -> float:
        """Euclidean length of the delta."""
        return math.sqrt(
            sum(float(np.square(self.delta(each)).sum()) for name in self.counts for each in self.stretches(name))
        )

    def describe(self) -> dict[str, Any]:
        """Everything about the graft but its numbers, ready for JSON; read once from end to end."""
        found, squares, cells = Digest(), 0.0, dict.fromkeys(cell_sizes(self.scope.shapes), 0)
        for name, count in self.counts.items():
            parts, shape, layer = parts_of(name, self.scope.shapes), self.scope.shapes[name], layer_of(name)
            for stretch in found.watching(self).stretches(name):
                squares += 0.0 if self.packed else float(np.square(self.delta(stretch)).sum())
                for part, here in (
                    zip(parts, counts_in(parts, shape, stretch.sites), strict=True) if len(parts) > 1 else ()
                ):
                    cells[layer, part.kind] += here
            if len(parts) == 1:
                cells[layer, parts[0].kind] += count
        return {
            "entries": len(self),
            "density": self.density,
            "scope": self.scope.label,
            "scope_entries": self.scope.size,
            "by_layer": {layer or "outside the layers": n for layer, n in by_layer(self.scope, self.counts).items()},
            "by_kind": by_kind(cells),
            "form": self.form,
            "scale": self.scale,
            "norm": None if self.packed else math.sqrt(squares),
            "packed": self.packed,
            "heads": {name: list(head.shape) for name, head in self.heads.items()},
            "base_fingerprint": self.base_fingerprint,
            "digest": found.of(self),
            "made": dict(self.info),
        }


class Digest:
    """SHA-256 of what a graft does: sites, numbers, form, scale, heads, base. Provenance and scope do not count.

    For each window three digests: of its sites (`encoded_sites`), of `before` and of `change` there; for each parameter one
    digest of those of its windows. So the parameters may be read in any order, and a file that keeps the digests of `before`
    can do without the numbers.
    """

    def __init__(self) -> None:
        self._by_parameter: dict[str, bytes] = {}

    def watching(self, stream: GraftStream) -> GraftStream:
        """The stream; a parameter counts once it has been read to its end, and is not looked at again."""

        def watched(name: str) -> Iterator[Stretch]:
            read = stream.sites if stream.packed else stream.stretches  # a packed one's sites come with their digests
            if name in self._by_parameter:
                yield from read(name)
                return
            sha = hashlib.sha256()
            for stretch in read(name):
                sha.update(f"{stretch.low} {len(stretch)}\n".encode())
                sha.update(hashlib.sha256(encoded_sites(stretch)).digest())
                sha.update(stretch.digests or numbers_digests(stretch))
                yield stretch
            self._by_parameter[name] = sha.digest()

        return replace(stream, stretches=watched)

    def of(self, stream: GraftStream) -> str:
        """The digest of the stream; what was not read to its end yet is read now."""
        for name in stream.counts:
            for _ in self.watching(stream).stretches(name) if name not in self._by_parameter else ():
                pass
        sha = hashlib.sha256(f"{stream.form} {stream.scale!r} {stream.base_fingerprint}\n".encode())
        for name, count in stream.counts.items():
            sha.update(f"{name!r} {count} {stream.formats[name]}\n".encode())
            sha.update(self._by_parameter[name])
        for name in sorted(stream.heads):
            head = stream.heads[name]
            sha.update(f"head {name!r} {head.dtype} {head.shape}\n".encode())
            sha.update(bits(np.ascontiguousarray(head).reshape(-1)).data)
        return sha.hexdigest()


def numbers_digests(stretch: Stretch) -> bytes:
    """The digests of `before` and of `change` in a stretch: 64 bytes."""
    parts = (np.ascontiguousarray(bits(part)) for part in (stretch.before, stretch.change))
    return b"".join(hashlib.sha256(part.data).digest() for part in parts)


def encoded_sites(stretch: Stretch) -> bytes:
    """The sites of a stretch: their positions as int32, or from 8,192 sites on a bitmap without the zero bytes at its end.

    Neither depends on how long the parameter is: a graft keeps its digest when its scope grows.
    """
    if 32 * len(stretch) < STRETCH:
        return stretch.positions.astype("<i4").tobytes()
    if stretch.full:
        length = stretch.high - stretch.low
        return b"\xff" * (length // 8) + bytes([(1 << length % 8) - 1] if length % 8 else [])
    return np.packbits(stretch.mask, bitorder="little").tobytes().rstrip(b"\0")


def delta_of(before: Array, change: Array, *, form: Form, scale: float) -> Floats:
    """What is added to `before`, scale included, in float64."""
    if form == "arithmetic":
        return float64(change)
    with np.errstate(over="ignore"):  # infinities are refused where they would be written
        delta = difference(change, before)
        return delta if scale == 1.0 else np.multiply(delta, scale, out=delta)


def written_of(name: str, before: Array, change: Array, *, form: Form, scale: float) -> Array:
    """The numbers that stand in the base once the graft is applied, in the base's format.

    At scale 1 these are `after` itself; otherwise before + delta, rounded once. Where nothing is added the old bits stay
    (adding 0.0 would turn -0.0 into 0.0). A number too large for the format is an error.
    """
    if form == "exact" and scale == 1.0:
        return change
    result = blended(before, change, scale=scale) if form == "exact" else added(before, change)
    delta = delta_of(before, change, form=form, scale=scale)
    result = np.where(delta == 0.0, before, result)
    if not all_finite(result):
        worst = int(np.argmax(np.abs(delta)))
        raise InputError(
            f"{name}: {int((~np.isfinite(result)).sum())} numbers overflow {before.dtype} "
            f"(largest change {delta[worst]:.3g}); use a smaller scale than {scale:g}"
        )
    return result


def stretches_of(at: Indices, before: Array, change: Array, size: int, step: int | None = None) -> Iterator[Stretch]:
    """The stretches of numbers that are in memory."""
    step = step or STRETCH
    start = 0
    while start < len(at):
        low = int(at[start]) // step * step
        high = min(low + step, size)
        stop = start + int(np.searchsorted(at[start : start + high - low], high))
        where: Where = EVERY if stop - start == high - low else at[start:stop] - low
        yield Stretch(low, high, where, before[start:stop], change[start:stop])
        start = stop


def aligned(streams: Sequence[GraftStream], name: str, *, numbers: bool = True) -> Iterator[tuple[Stretch | None, ...]]:
    """Window by window what each graft has there; only windows that one of them has. Without `numbers`, the sites."""
    readers = [
        (stream.stretches if numbers else stream.sites)(name) if name in stream.counts else iter(())
        for stream in streams
    ]
    waiting = [next(reader, None) for reader in readers]
    while any(each is not None for each in waiting):
        low = min(each.low for each in waiting if each is not None)
        here = [each is not None and each.low == low for each in waiting]
        yield tuple(each if is_here else None for each, is_here in zip(waiting, here, strict=True))
        for place, is_here in enumerate(here):
            if is_here:
                waiting[place] = next(readers[place], None)


def in_order(streams: Sequence[GraftStream]) -> list[int]:
    """The places of the streams in an order fixed by their content, so that sums have the same bits for any order of a list.

    A first stretch tells most grafts apart; where it does not, digests decide, and then the scope.
    """
    first = [_first_digest(stream) for stream in streams]
    scopes = [(stream.scope.label, tuple(stream.scope.shapes.items())) for stream in streams]

    def key(place: int) -> tuple[Any, ...]:
        unique = first.count(first[place]) == 1
        return first[place], "" if unique else streams[place].digest, scopes[place]

    return sorted(range(len(streams)), key=key)


def _first_digest(stream: GraftStream) -> str:
    about = f"{stream.form} {stream.scale!r} {sorted(stream.counts.items())}"
    for name in stream.counts:
        for stretch in stream.stretches(name):
            return hashlib.sha256(about.encode() + encoded_sites(stretch) + numbers_digests(stretch)).hexdigest()
    return hashlib.sha256(about.encode()).hexdigest()


def joined_names(streams: Iterable[GraftStream]) -> list[str]:
    """The parameters that any of the grafts has entries in."""
    return sorted({name for stream in streams for name in stream.counts})


def rewindowed(stretches: Iterator[Stretch], size: int, step: int | None = None) -> Iterator[Stretch]:
    """The same sites and numbers in windows of another length; of `STRETCH` where none is given."""
    step = step or STRETCH
    at: Indices = np.empty(0, np.int64)
    before: Array | None = None
    change: Array | None = None
    for stretch in stretches:
        at = np.concatenate([at, stretch.sites])
        before = stretch.before if before is None else np.concatenate([before, stretch.before])
        change = stretch.change if change is None else np.concatenate([change, stretch.change])
        ready = int(np.searchsorted(at, stretch.high // step * step))
        yield from stretches_of(at[:ready], before[:ready], change[:ready], size, step)
        at, before, change = at[ready:], before[ready:], change[ready:]
    if before is not None and change is not None:
        yield from stretches_of(at, before, change, size, step)
