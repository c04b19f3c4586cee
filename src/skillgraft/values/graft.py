"""What a skill is: `Graft`, a region together with the base's and the tuned numbers there.

A graft has one of two forms. *Exact* keeps `before` and `after` in the base's own format and one scale; *arithmetic*
keeps `before` and a float32 `delta`. Grafts are immutable values with an algebra:

    -(-g) == g        g + h == h + g        (g & r) + g.outside(r) == g        total([g]) == g

`g - g` keeps its sites and changes nothing. Heads and provenance never take part in arithmetic: heads need an explicit
choice where they differ, and a sum keeps the provenance that all its parts agree on.

Refused: numbers that are not finite, grafts of different bases, an overflow when a scaled graft is written.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from skillgraft.errors import HeadConflict, InputError, WrongBase, listed
from skillgraft.values.info import HEAD_ITEMS, Info
from skillgraft.values.joining import summed
from skillgraft.values.numbers import (
    TAGS,
    Array,
    all_finite,
    frozen,
    is_float,
    round_once,
    same_bits,
    sealed,
)
from skillgraft.values.region import Indices, Region, places
from skillgraft.values.stream import GraftStream, Stretch, delta_of, stretches_of, written_of

Arrays = Mapping[str, Array]


@dataclass(frozen=True, eq=False)
class Graft:
    """A region, the base's numbers there (`before`), the tuned ones, heads, and provenance.

    `change` holds `after` in the exact form and `delta` (float32) in the arithmetic form.
    """

    region: Region
    before: Arrays
    change: Arrays
    form: Literal["exact", "arithmetic"] = "exact"
    scale: float = 1.0
    heads: Arrays = field(default_factory=dict)
    base_fingerprint: str = ""
    info: Info = field(default_factory=Info)

    def __post_init__(self) -> None:
        if self.form not in ("exact", "arithmetic"):
            raise InputError(f"form must be 'exact' or 'arithmetic', found {self.form!r}")
        object.__setattr__(self, "scale", float(self.scale) + 0.0)  # -0.0 becomes 0.0, so that -(-g) == g
        if not math.isfinite(self.scale) or (self.form == "arithmetic" and self.scale != 1.0):
            raise InputError(f"scale must be a finite number (1 in the arithmetic form), found {self.scale}")
        object.__setattr__(self, "before", _frozen(self.before, self.region, "before"))
        object.__setattr__(self, "change", _frozen(self.change, self.region, "change"))
        object.__setattr__(self, "heads", _frozen_heads(self.heads))
        for name, before in self.before.items():
            wanted = before.dtype if self.form == "exact" else np.dtype(np.float32)
            if self.change[name].dtype != wanted:
                raise InputError(f"{name}: {self.form} form needs {wanted} numbers, found {self.change[name].dtype}")

    @classmethod
    def between(cls, base: Arrays, tuned: Arrays, region: Region, **rest: Any) -> Graft:
        """The exact graft that turns `base` into `tuned` inside `region`; arrays of any shape, by parameter name."""
        before = {name: base[name].reshape(-1)[at] for name, at in region.sites.items()}
        after = {name: tuned[name].reshape(-1)[at] for name, at in region.sites.items()}
        return cls(region, before, after, **rest)

    @classmethod
    def load(cls, path: str | Path) -> Graft:
        """Read a graft file, or raise a FormatError that says what is wrong with it. A hub name is fetched."""
        from skillgraft.files.graft_file import load
        from skillgraft.folders.hub import file_at

        return load(file_at(path))

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write a graft file, complete or not at all; an existing one is refused unless `overwrite`."""
        from skillgraft.files.graft_file import save

        save(self, path, overwrite=overwrite)

    def push_to_hub(self, name: str, *, private: bool = False, licence: str | None = None) -> str:
        """Upload the graft with a card to the repository `owner/name`; returns its address."""
        from skillgraft.folders.hub import upload

        return upload(self, name, private=private, licence=licence)

    def describe(self) -> dict[str, Any]:
        """Everything about the graft but its numbers, ready for JSON."""
        return self.stream().describe()

    def __reduce__(self) -> tuple[Any, ...]:
        """How our own processes send it to each other: as what it was made of, so that it is checked again."""
        arrays = [dict(each) for each in (self.before, self.change)]
        return Graft, (self.region, *arrays, self.form, self.scale, dict(self.heads), self.base_fingerprint, self.info)

    def __len__(self) -> int:
        return len(self.region)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Graft):
            return NotImplemented
        return self.digest == other.digest and self.region.scope == other.region.scope and self.info == other.info

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        scale = "" if self.scale == 1.0 else f", scale {self.scale:g}"
        heads = f", {len(self.heads)} head tensors" if self.heads else ""
        return f"Graft({len(self):,} entries, density {self.region.density:.2e}, {self.form}{scale}{heads})"

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of what the graft does: sites, numbers, form, scale, heads, base. Provenance does not count."""
        return self.stream().digest

    def stream(self) -> GraftStream:
        """The graft as verbs read it, stretch by stretch; see `GraftStream`."""
        shapes = self.region.scope.shapes

        def stretches(name: str) -> Iterator[Stretch]:
            at, before, change = self.region.sites[name], self.before[name], self.change[name]
            return stretches_of(at, before, change, math.prod(shapes[name]))

        return GraftStream(
            self.region.scope,
            {name: len(at) for name, at in self.region.sites.items()},
            {name: before.dtype for name, before in self.before.items()},
            stretches,
            self.form,
            self.scale,
            self.heads,
            self.base_fingerprint,
            self.info,
        )

    @classmethod
    def collected(cls, stream: GraftStream) -> Graft:
        """The graft whose stream this is, in memory."""
        sites: dict[str, Indices] = {}
        before: dict[str, Array] = {}
        change: dict[str, Array] = {}
        for name in stream.counts:
            found = list(stream.stretches(name))
            sites[name], before[name], change[name] = (
                sealed(np.concatenate(parts))
                for parts in zip(*((each.sites, each.before, each.change) for each in found), strict=True)
            )
        return cls(
            Region(stream.scope, sites),
            before,
            change,
            form=stream.form,
            scale=stream.scale,
            heads=stream.heads,
            base_fingerprint=stream.base_fingerprint,
            info=stream.info,
        )

    def with_info(self, **items: Any) -> Graft:
        """The same graft with these items of provenance set (None takes an item away)."""
        return replace(self, info=self.info.updated(**items))

    def without_heads(self) -> Graft:
        """The same graft without its heads: the body alone."""
        return replace(self, heads={})

    def in_formats(self, formats: Mapping[str, np.dtype[Any]]) -> Graft:
        """The same change for a model that holds tensors in these formats; a tensor that is not named keeps its own.

        A float16 folder may be opened in float32: `before` and what the graft writes are converted, each rounded once.
        """
        ours = {name: numbers.dtype for name, numbers in (*self.before.items(), *self.heads.items())}
        if all(formats.get(name, dtype) == dtype for name, dtype in ours.items()):
            return self

        def converted(name: str, numbers: Array) -> Array:
            return _converted(name, numbers, formats.get(name, numbers.dtype))

        before = {name: converted(name, numbers) for name, numbers in self.before.items()}
        after = {name: converted(name, self.written(name)) for name in self.before}
        heads = {name: converted(name, head) for name, head in self.heads.items()}
        return replace(self, before=before, change=after, form="exact", scale=1.0, heads=heads)

    def delta(self, name: str) -> npt.NDArray[np.float64]:
        """What is added to the base at this parameter's sites, scale included, in float64."""
        return delta_of(self.before[name], self.change[name], form=self.form, scale=self.scale)

    def written(self, name: str) -> Array:
        """The numbers that stand at this parameter's sites once the graft is applied, in the base's format; see `written_of`."""
        return written_of(name, self.before[name], self.change[name], form=self.form, scale=self.scale)

    def __neg__(self) -> Graft:
        return self * -1.0

    def __mul__(self, factor: float) -> Graft:
        if self.form == "exact":
            return replace(self, scale=self.scale * factor)
        scaled = {name: round_once(self.delta(name) * factor, np.dtype(np.float32)) for name in self.region}
        return replace(self, change=scaled)

    __rmul__ = __mul__

    def __add__(self, other: Graft) -> Graft:
        return total([self, other])

    def __sub__(self, other: Graft) -> Graft:
        return total([self, -other])

    def __and__(self, region: Region) -> Graft:
        """The graft inside `region` only; the scope stays the graft's own."""
        return self._restricted((self.region & region).within(self.region.scope))

    def outside(self, region: Region) -> Graft:
        """The graft without its entries in `region`: g == (g & r) + g.outside(r)."""
        return self._restricted((self.region - region).within(self.region.scope))

    def _restricted(self, kept: Region) -> Graft:
        at = {name: places(kept.sites[name], self.region.sites[name]) for name in kept}
        before = {name: self.before[name][where] for name, where in at.items()}
        return replace(self, region=kept, before=before, change={n: self.change[n][where] for n, where in at.items()})

    def dot(self, other: Graft) -> float:
        """Inner product of the two deltas over their common sites, in float64."""
        result = 0.0
        for name, at in (self.region & other.region).sites.items():
            mine = self.delta(name)[places(at, self.region.sites[name])]
            result += float(mine @ other.delta(name)[places(at, other.region.sites[name])])
        return result

    @property
    def norm(self) -> float:
        """Euclidean length of the delta."""
        return self.stream().norm

    def cosine(self, other: Graft) -> float:
        """Cosine of the angle between the two deltas, sites of only one counting 0. 0 if either is zero."""
        lengths = self.norm * other.norm
        return self.dot(other) / lengths if lengths else 0.0


def _converted(name: str, numbers: Array, dtype: np.dtype[Any]) -> Array:
    """The numbers in another format, each rounded once."""
    if numbers.dtype == dtype:
        return numbers
    result = round_once(numbers.astype(np.float64), dtype)
    if not all_finite(result):
        raise InputError(
            f"{name}: {int((~np.isfinite(result)).sum())} {numbers.dtype} numbers are too large for {dtype}; open the model "
            f"in {numbers.dtype}, or in another format with as much room"
        )
    return result


# Wherever a graft is asked for, its file will do.
GraftLike = Graft | str | Path


def graft_of(value: GraftLike) -> Graft:
    """A graft that is given as a value or as its file."""
    return value if isinstance(value, Graft) else Graft.load(value)


def stream_of(value: GraftLike | GraftStream) -> GraftStream:
    """A graft that is given as a value, as its file, or as a stream already. A hub name is fetched."""
    if isinstance(value, GraftStream):
        return value
    if isinstance(value, Graft):
        return value.stream()
    from skillgraft.files.graft_stream import open_stream
    from skillgraft.folders.hub import file_at

    return open_stream(file_at(value))


def total(grafts: Sequence[Graft], *, head: Graft | None = None) -> Graft:
    """The sum of grafts of one base: union of sites, a missing site counts as 0.

    Disjoint exact grafts of one scale stay exact. Any other sum is arithmetic: deltas are added in float64, in an order
    fixed by content (so that any order of the list gives the same bits), and rounded once to float32. Where heads of
    one name differ, `head` says whose are taken.
    """
    if not grafts:
        raise InputError("total() needs at least one graft, found none")
    if len(grafts) == 1 and head is None:
        return grafts[0]
    for other in grafts:
        check_same_base(grafts[0], other)
    joint = Graft.collected(summed([graft.without_heads().stream() for graft in grafts]))
    return replace(joint, heads=_joined_heads(grafts, head), info=_joined_info(grafts, head))


def heads_alone(graft: Graft | GraftStream) -> Graft:
    """The graft without its entries: scope, heads and provenance stay."""
    stream = graft.stream() if isinstance(graft, Graft) else graft
    return Graft.collected(replace(stream, counts={}))


def check_same_base(a: Graft | GraftStream, b: Graft | GraftStream) -> None:
    """Refuse grafts of different bases."""
    if a.base_fingerprint != b.base_fingerprint:
        raise WrongBase(
            f"these grafts belong to different bases: {a.info.text('base') or 'unnamed'} ({a.base_fingerprint[:12]}…) and "
            f"{b.info.text('base') or 'unnamed'} ({b.base_fingerprint[:12]}…); combine only grafts of one base"
        )


def _joined_heads(grafts: Sequence[Graft], chosen: Graft | None) -> dict[str, Array]:
    if chosen is not None:
        return dict(chosen.heads)
    heads: dict[str, Array] = {}
    for graft in grafts:
        for name, head in graft.heads.items():
            if name in heads and not same_bits(heads[name], head):
                raise HeadConflict(
                    f"two grafts bring different heads named {name}; choose whose to keep: total([...], head=g), "
                    "on the command line --head G (or leave all out with without_heads())"
                )
            heads[name] = head
    return heads


def _joined_info(grafts: Sequence[Graft], chosen: Graft | None) -> Info:
    """What all parts agree on; what belongs to a head, from those that bring one."""
    givers = [chosen] if chosen is not None else [graft for graft in grafts if graft.heads] or grafts
    of_heads = Info.agreed([graft.info for graft in givers])
    return Info.agreed([graft.info for graft in grafts]).updated(**{key: of_heads.get(key) for key in HEAD_ITEMS})


def _frozen(numbers: Arrays, region: Region, what: str) -> Arrays:
    """The numbers in name order, checked against the region and read-only."""
    if numbers.keys() != region.sites.keys():
        odd = sorted(numbers.keys() ^ region.sites.keys())
        raise InputError(f"{what}: its parameters are not the region's; only one side has {listed(odd)}")
    checked = {}
    for name, at in region.sites.items():
        array = np.asarray(numbers[name])
        if array.shape != at.shape:
            raise InputError(f"{name}: {len(at)} sites but {what} of shape {list(array.shape)}")
        if not is_float(array.dtype):
            raise InputError(f"{name}: {what} must be floating point, found {array.dtype}")
        checked[name] = _read_only(name, array, what)
    return MappingProxyType(checked)


def _frozen_heads(heads: Arrays) -> Arrays:
    return MappingProxyType({name: _read_only(name, np.asarray(heads[name]), "head") for name in sorted(heads)})


def _read_only(name: str, array: Array, what: str) -> Array:
    if array.dtype not in TAGS:
        raise InputError(f"{name}: {what} of {array.dtype} cannot be stored; known: {', '.join(map(str, TAGS))}")
    if not all_finite(array):
        raise InputError(
            f"{name}: {int((~np.isfinite(array)).sum())} of {array.size} numbers ({what}) are NaN or infinite"
        )
    return frozen(array)
