"""A patch file seen as the tuned model that it makes of its base: absolute numbers at flat indices, whole tensors beside them.

    extract("BASE", "patch.safetensors")           # the graft that the patch is

Refused: indices out of range or repeated, numbers that are not finite or not in the base's format, tensors and shapes that the
base does not have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from skillgraft.errors import FormatError, InputError
from skillgraft.files.tensors import TensorFile
from skillgraft.folders.checkpoint import Checkpoint, OverBase
from skillgraft.values import strict_json
from skillgraft.values.names import in_layers, is_head
from skillgraft.values.numbers import Array, all_finite
from skillgraft.values.region import Indices, Region, Scope, Shape

SHAPES = "shapes"  # in the metadata: the tensors' full shapes, as JSON
_PARTS = (".indices", ".values")


def dense_file(path: str | Path) -> Path:
    """Where a patch's whole tensors are: beside it."""
    return Path(path).with_suffix(".dense.safetensors")


def is_patch(path: Path) -> bool:
    """Whether the path is a file that could be a patch, and not a folder."""
    return path.is_file() and path.suffix == ".safetensors"


@dataclass(frozen=True, eq=False)
class PatchCheckpoint(OverBase):
    """Base and patch together, read as one model."""

    path: Path
    base: Checkpoint
    file: TensorFile
    region: Region
    values: Mapping[str, Array]
    whole: Mapping[str, Array]
    under: frozenset[str]  # those of `whole` that sit under the body's prefix

    @classmethod
    def open(cls, path: Path, base: Checkpoint) -> PatchCheckpoint:
        """Read a patch file and the whole tensors beside it, and match both with the base."""
        file = TensorFile.open(path)
        found = sorted({name.removesuffix(part) for name in file.entries for part in _PARTS if name.endswith(part)})
        odd = sorted(name for name in file.entries if not name.endswith(_PARTS))
        if odd or not found:
            raise FormatError(
                f"{path}: expected <tensor>.indices and <tensor>.values, found {odd[0] if odd else 'none'}"
            )
        shapes = _shapes(file)
        sites, values = {}, {}
        for raw in found:
            name = _known(base, raw, path)
            if shapes.get(raw, base.shapes[name]) != base.shapes[name]:
                raise InputError(
                    f"{path}: {raw} is of shape {list(shapes[raw])}, the base's is {list(base.shapes[name])}"
                )
            sites[name], values[name] = _sorted_sites(file, raw, base, name)
        region = Region(Scope.of("all", {name: base.shapes[name] for name in sites}), sites)
        dense = TensorFile.open(dense_file(path)) if dense_file(path).is_file() else None
        whole = {raw: dense.read(raw) for raw in dense.entries} if dense else {}
        inside = {raw: raw.removeprefix(base.prefix) for raw in whole}
        body = [
            raw for raw, name in inside.items() if in_layers(name) or not (is_head(name) or name not in base.places)
        ]
        if body:
            raise InputError(
                f"{dense_file(path)}: {body[0]} is a tensor of the base's body; a patch changes it by entries"
            )
        under = frozenset(name for raw, name in inside.items() if raw != name)
        return cls(path, base, file, region, values, {inside[raw]: tensor for raw, tensor in whole.items()}, under)

    def under_prefix(self, name: str) -> bool:
        """Whether a tensor's full name begins with the body's prefix."""
        return name in self.under if name in self.whole else self.base.under_prefix(name)

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def prefix(self) -> str:
        return self.base.prefix

    @property
    def config(self) -> Mapping[str, Any]:
        return self.base.config

    @property
    def shapes(self) -> Mapping[str, Shape]:
        return {**self.base.shapes, **{name: array.shape for name, array in self.whole.items()}}

    @property
    def dtypes(self) -> Mapping[str, np.dtype[Any]]:
        return {**self.base.dtypes, **{name: array.dtype for name, array in self.whole.items()}}

    @property
    def twins(self) -> Mapping[str, str]:
        """The base's tied copies, but for those that the patch changes on their own."""
        return {twin: name for twin, name in self.base.twins.items() if twin not in self.values}

    def flat(self, name: str, low: int = 0, high: int | None = None) -> Array:
        """Entries [low, high): the base's, with the patch's numbers."""
        if name in self.whole:
            return self.whole[name].reshape(-1)[low:high]
        numbers = self.base.flat(name, low, high)
        if name not in self.values:
            return numbers
        at = self.region.sites[name]
        first, last = np.searchsorted(at, (low, low + len(numbers)))
        numbers = numbers.copy()
        numbers[at[first:last] - low] = self.values[name][first:last]
        return numbers

    def read(self, name: str) -> Array:
        return self.flat(name).reshape(self.shapes[name])


def _shapes(file: TensorFile) -> dict[str, Shape]:
    """The full shapes that the file states; none if it does not."""
    try:
        stated = strict_json.parse(file.metadata.get(SHAPES, "{}"))
        return {str(name): tuple(int(size) for size in shape) for name, shape in stated.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise FormatError(f"{file.path}: its {SHAPES} cannot be read ({error})") from None


def _known(base: Checkpoint, raw: str, path: Path) -> str:
    """The base's prefix-free name of a patched tensor."""
    name = raw if raw in base.places else raw.removeprefix(base.prefix)
    if name not in base.places:
        raise InputError(f"{path}: {raw} is not a tensor of {base.path}; a patch belongs to one base")
    return name


def _sorted_sites(file: TensorFile, raw: str, base: Checkpoint, name: str) -> tuple[Indices, Array]:
    """A tensor's indices and values in the order of the indices; `Region` checks them further."""
    missing = [raw + part for part in _PARTS if raw + part not in file.entries]
    if missing:
        raise FormatError(f"{file.path}: {missing[0]} is missing")
    at, values = (file.read(raw + part) for part in _PARTS)
    if at.dtype.kind not in "iu" or at.ndim != 1 or values.shape != at.shape:
        raise FormatError(
            f"{file.path}: {raw}: expected a row of whole numbers and as many values, found {at.dtype} {list(at.shape)} and "
            f"{values.dtype} {list(values.shape)}"
        )
    if values.dtype != base.dtypes[name]:
        raise InputError(f"{file.path}: {raw} holds {values.dtype} numbers, the base's are {base.dtypes[name]}")
    if not all_finite(values):
        raise FormatError(f"{file.path}: {raw} holds numbers that are NaN or infinite")
    size = math.prod(base.shapes[name])
    if len(at) and (at.min() < 0 or at.max() >= size):
        raise FormatError(f"{file.path}: {raw}: indices must lie in 0 … {size - 1}, found {at.min()} … {at.max()}")
    order = np.argsort(at, kind="stable")
    return at[order].astype(np.int64), values[order].copy()
