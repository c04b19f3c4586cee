"""Where a skill lives: `Scope`, the parameters that may hold it, and `Region`, the entries that do.

A Region is an immutable set of (parameter name, flat index) pairs. It knows the shapes of its whole scope, because the
scope is the denominator of every percentage. Regions form an algebra of sets:

    >>> scope = Scope.of("all", {"w": (2, 3), "b": (3,)})
    >>> a, b = Region(scope, {"w": [0, 5]}), Region(scope, {"w": [5], "b": [1]})
    >>> len(a | b), len(a & b), len(a - b), len(a ^ b)
    (3, 1, 1, 2)
    >>> a.coverage(of=b), round(a.density, 3)
    (0.5, 0.222)

Refused: negative, out-of-range, unsorted or repeated indices, names outside the scope, scopes that disagree on a shape.
"""

from __future__ import annotations

import fnmatch
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from skillgraft.errors import InputError, did_you_mean, listed
from skillgraft.values.kinds import cell_counts, cell_sizes
from skillgraft.values.names import KINDS, in_layers, is_head, layer_of, natural_key, upper_layers
from skillgraft.values.numbers import frozen

Indices = npt.NDArray[np.integer[Any]]
Shape = tuple[int, ...]

# A scope's name is one of these or a pattern over parameter names; with UPPER in front, what it names in upper layers.
UPPER = "upper:"
_SCOPES: dict[str, Callable[[str, Shape], bool]] = {
    "layers": lambda name, _: in_layers(name),
    "matrices": lambda name, shape: in_layers(name) and len(shape) == 2,
    "biases": lambda name, _: in_layers(name) and name.endswith("bias"),
    "all": lambda name, _: not is_head(name),
}


@dataclass(frozen=True)
class Scope:
    """The parameters that may hold a region, by name and shape, and what this choice is called."""

    label: str
    shapes: Mapping[str, Shape]

    @classmethod
    def of(cls, label: str, shapes: Mapping[str, Shape]) -> Scope:
        """A scope over exactly these tensors, kept in name order so that equal scopes look equal everywhere."""
        return cls(label, MappingProxyType({name: tuple(map(int, shapes[name])) for name in sorted(shapes)}))

    @classmethod
    def select(cls, label: str, shapes: Mapping[str, Shape]) -> Scope:
        """The tensors among `shapes` that `label` names: layers, matrices, biases, all, or a pattern such as `*.attention.*`.

        `matrices` are those of the layers: what has a low-rank form. `upper:layers` (or `upper:` before any of these) names
        those in the upper half of the layers.
        """
        rest = label.removeprefix(UPPER)
        chosen = _SCOPES.get(rest) or (lambda name, _: fnmatch.fnmatchcase(name, rest))
        picked = {name: shape for name, shape in shapes.items() if chosen(name, shape)}
        if rest != label:
            upper = upper_layers(shapes)
            picked = {name: shape for name, shape in picked.items() if layer_of(name) in upper}
        if not picked:
            hint = f"names here: {listed(sorted(shapes))}; or {did_you_mean(rest, _SCOPES)}"
            raise InputError(f"scope {label!r} selects none of the {len(shapes)} tensors; {hint}")
        return cls.of(label, picked)

    def __reduce__(self) -> tuple[Any, ...]:
        """How our own processes send it to each other; files never hold such bytes."""
        return Scope.of, (self.label, dict(self.shapes))

    @property
    def size(self) -> int:
        """How many entries the scope has: the denominator of every density."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def by_layer_and_kind(self) -> dict[tuple[str, str], int]:
        """How many entries it has per (layer, kind), in order: the denominators of `Region.by_layer_and_kind`."""
        return cell_sizes(self.shapes)

    def join(self, other: Scope) -> Scope:
        """The scope of both. Disagreeing shapes mean different models and are refused."""
        if self == other:
            return self
        for name in self.shapes.keys() & other.shapes.keys():
            if self.shapes[name] != other.shapes[name]:
                raise InputError(
                    f"{name} has shape {list(self.shapes[name])} on one side and {list(other.shapes[name])} on the other: "
                    "these regions belong to different models"
                )
        shapes = {**self.shapes, **other.shapes}
        for whole in (self, other):
            if len(whole.shapes) == len(shapes) and len(self.shapes) != len(other.shapes):
                return whole
        return Scope.of(" + ".join(sorted({*self.label.split(" + "), *other.label.split(" + ")})), shapes)

    def __hash__(self) -> int:
        return hash((self.label, tuple(self.shapes.items())))


def index_dtype(size: int) -> np.dtype[Any]:
    """int32 wherever it reaches, int64 beyond."""
    return np.dtype(np.int32 if size <= np.iinfo(np.int32).max else np.int64)


class Region:
    """An immutable set of entries (name, flat index) within a scope."""

    __slots__ = ("_sites", "scope")
    scope: Scope
    _sites: Mapping[str, Indices]

    def __init__(self, scope: Scope, sites: Mapping[str, npt.ArrayLike]) -> None:
        checked = {}
        for name in sorted(sites):
            if name not in scope.shapes:
                raise InputError(
                    f"{name} is not in the scope {scope.label!r}; {did_you_mean(name, list(scope.shapes)[:8])}"
                )
            indices = _checked(name, np.asarray(sites[name]), math.prod(scope.shapes[name]))
            if len(indices):
                checked[name] = indices
        object.__setattr__(self, "scope", scope)
        object.__setattr__(self, "_sites", MappingProxyType(checked))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Region is immutable: cannot set {name}")

    def __reduce__(self) -> tuple[Any, ...]:
        return Region, (self.scope, dict(self._sites))

    @classmethod
    def full(cls, scope: Scope) -> Region:
        """Every entry of the scope."""
        return cls(scope, {name: np.arange(math.prod(shape)) for name, shape in scope.shapes.items()})

    @classmethod
    def from_masks(cls, scope: Scope, masks: Mapping[str, npt.NDArray[np.bool_]]) -> Region:
        """The entries where a boolean mask of the parameter's shape is true."""
        for name, mask in masks.items():
            if mask.shape != scope.shapes.get(name, mask.shape):
                raise InputError(
                    f"{name}: the mask has shape {list(mask.shape)}, the parameter {list(scope.shapes[name])}"
                )
        return cls(scope, {name: np.flatnonzero(mask) for name, mask in masks.items()})

    @property
    def sites(self) -> Mapping[str, Indices]:
        """Parameter name → sorted flat indices; names without entries do not appear."""
        return self._sites

    def mask(self, name: str) -> npt.NDArray[np.bool_]:
        """The region inside one parameter, as a boolean array of its shape."""
        flat = np.zeros(math.prod(self.scope.shapes[name]), dtype=bool)
        flat[self._sites.get(name, np.empty(0, np.int64))] = True
        return flat.reshape(self.scope.shapes[name])

    def within(self, scope: Scope) -> Region:
        """The same entries seen as part of another scope that contains them."""
        return Region(scope, self._sites)

    def __len__(self) -> int:
        return sum(len(indices) for indices in self._sites.values())

    def __iter__(self) -> Iterator[str]:
        return iter(self._sites)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Region):
            return NotImplemented
        return (
            self.scope == other.scope
            and self._sites.keys() == other._sites.keys()
            and all(np.array_equal(indices, other._sites[name]) for name, indices in self._sites.items())
        )

    def __hash__(self) -> int:
        return hash((self.scope, tuple((name, indices.tobytes()) for name, indices in self._sites.items())))

    def __repr__(self) -> str:
        return f"Region({len(self):,} entries, density {self.density:.2e} of {self.scope.label!r})"

    @property
    def digest(self) -> str:
        """SHA-256 of the entries: which they are, whatever the scope."""
        sha = hashlib.sha256()
        for name, at in self._sites.items():
            sha.update(f"{name} {len(at)}\n".encode())
            sha.update(at.astype("<i8").data)
        return sha.hexdigest()

    @property
    def density(self) -> float:
        """Entries in the region / entries in the scope."""
        return len(self) / self.scope.size if self.scope.size else 0.0

    def __or__(self, other: Region) -> Region:
        return self._merge(other, _union)

    def __and__(self, other: Region) -> Region:
        return self._merge(other, _both)

    def __sub__(self, other: Region) -> Region:
        return self._merge(other, lambda a, b: _either(a, _both(a, b)))

    def __xor__(self, other: Region) -> Region:
        return self._merge(other, _either)

    def _merge(self, other: Region, combine: Callable[[Indices, Indices], Indices]) -> Region:
        scope = self.scope.join(other.scope)
        none = np.empty(0, np.int32)
        names = self._sites.keys() | other._sites.keys()
        return Region(scope, {n: combine(self._sites.get(n, none), other._sites.get(n, none)) for n in names})

    def isdisjoint(self, other: Region) -> bool:
        """Whether no entry is in both."""
        return len(self & other) == 0

    def coverage(self, *, of: Region) -> float:
        """|a ∩ b| / |b|: how much of `of` this region contains (P1 fig. 8a). 0 when `of` is empty."""
        return len(self & of) / len(of) if len(of) else 0.0

    def jaccard(self, other: Region) -> float:
        """|a ∩ b| / |a ∪ b| (P1 table 8). 1 for two empty regions."""
        either = len(self | other)
        return len(self & other) / either if either else 1.0

    @classmethod
    def load(cls, path: str | Path) -> Region:
        """The region of a region file or of a graft file. A hub name is fetched."""
        from skillgraft.files.graft_file import load_region
        from skillgraft.folders.hub import file_at

        return load_region(file_at(path))

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write a region file; an existing one is refused unless `overwrite`."""
        from skillgraft.files.graft_file import save_region

        save_region(self, path, overwrite=overwrite)

    def describe(self) -> dict[str, Any]:
        """Size, density and the distribution over layers and kinds, ready for JSON."""
        return {
            "entries": len(self),
            "density": self.density,
            "scope": self.scope.label,
            "scope_entries": self.scope.size,
            "by_layer": {layer or "outside the layers": count for layer, count in self.by_layer().items()},
            "by_kind": self.by_kind(),
        }

    def by_layer(self) -> dict[str, int]:
        """Entries per layer, every layer of the scope listed in order; "" holds what is outside the layers."""
        return by_layer(self.scope, {name: len(indices) for name, indices in self._sites.items()})

    def by_kind(self) -> dict[str, int]:
        """Entries per kind, in the order of `names.KINDS`, every kind of the scope listed; fused matrices by their parts."""
        return by_kind(self.by_layer_and_kind())

    def by_layer_and_kind(self) -> dict[tuple[str, str], int]:
        """Entries per (layer, kind), every pair that the scope has, in order."""
        return cell_counts(self.scope.shapes, self._sites)


def by_layer(scope: Scope, counts: Mapping[str, int]) -> dict[str, int]:
    """Entries per layer from entries per parameter, every layer of the scope listed in order; "" is outside the layers."""
    found = dict.fromkeys(sorted({layer_of(name) for name in scope.shapes}, key=natural_key), 0)
    for name, count in counts.items():
        found[layer_of(name)] += count
    return found


def by_kind(cells: Mapping[tuple[str, str], int]) -> dict[str, int]:
    """Entries per kind from entries per (layer, kind), in the order of `names.KINDS`."""
    present = {kind for _, kind in cells}
    return {each: sum(count for (_, kind), count in cells.items() if kind == each) for each in KINDS if each in present}


def places(sites: Indices, among: Indices) -> Indices | slice:
    """Where `sites` stand in `among`, which contains them; both sorted."""
    return slice(None) if len(sites) == len(among) else np.searchsorted(among, sites)


def _merged(a: Indices, b: Indices) -> tuple[Indices, npt.NDArray[np.bool_]]:
    """Both in one sorted row, and which of its members equal the next one. The stable sort merges two runs in one pass."""
    row = np.sort(np.concatenate([a, b]), kind="stable")
    return row, np.append(row[1:] == row[:-1], False)


def _union(a: Indices, b: Indices) -> Indices:
    row, twin = _merged(a, b)
    return row[~twin]


def _both(a: Indices, b: Indices) -> Indices:
    row, twin = _merged(a, b)
    return row[twin]


def _either(a: Indices, b: Indices) -> Indices:
    """In one but not in both."""
    row, twin = _merged(a, b)
    return row[~(twin | np.insert(twin[:-1], 0, False))] if len(row) else row


def _checked(name: str, indices: npt.NDArray[Any], size: int) -> Indices:
    """The indices, sorted and unique by proof, in their smallest dtype and read-only."""
    if indices.ndim != 1 or (len(indices) and not np.issubdtype(indices.dtype, np.integer)):
        raise InputError(
            f"{name}: indices must be one row of whole numbers, found {indices.dtype} of shape {indices.shape}"
        )
    if len(indices) and (indices[0] < 0 or indices[-1] >= size or not (indices[1:] > indices[:-1]).all()):
        raise InputError(_why_refused(name, indices, size))
    if indices.dtype == index_dtype(size):
        return frozen(indices)
    converted: Indices = indices.astype(index_dtype(size))
    converted.flags.writeable = False
    return converted


def _why_refused(name: str, indices: Indices, size: int) -> str:
    low, high = indices.min(), indices.max()
    if low < 0:
        return f"{name}: index {low} is negative ({int((indices < 0).sum())} of {len(indices)} are)"
    if high >= size:
        beyond = int((indices >= size).sum())
        return f"{name}: index {high} is out of range for {size} entries ({beyond} of {len(indices)} are)"
    if len(np.unique(indices)) < len(indices):
        return f"{name}: {len(indices) - len(np.unique(indices))} indices are duplicates"
    return f"{name}: indices are not sorted"
