"""What a fine-tune changed: by layer and kind, how much and how concentrated; streamed, nothing written.

Sums of squares are taken in float64 over blocks, so memory is a few chunks whatever the size. How much of ‖delta‖² the most
moved entries hold is read off a table of movements by their leading 16 bits: the entries of one row differ by less than
1/128, so that a share is right to 1.6 % of what the last row that counts contributes.

    found = diff("BASE", "TUNED")
    found.whole.changed, found.whole.relative     # entries whose bits differ; ‖delta‖ / ‖base‖
    found.by_layer()["encoder.layer.11"].norm
    found.top[0].share                            # of ‖delta‖² in the 1e-4 of the scope that moved most

Refused: what `extract` refuses, because there is no difference of two different models.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from skillgraft.errors import InputError
from skillgraft.folders.checkpoint import Tensors
from skillgraft.folders.extract import Pairing, opened_pair
from skillgraft.folders.movement import (
    BUCKETS,
    Progress,
    blocks,
    check_finite,
    count_of,
    leading_bits,
    movement_of,
    silent,
)
from skillgraft.values import strict_json
from skillgraft.values.kinds import KindPart, parts_of
from skillgraft.values.names import KINDS, layer_of, natural_key
from skillgraft.values.numbers import bits, widen
from skillgraft.values.region import Scope, index_dtype

DENSITIES = (1e-4, 1e-3, 1e-2)
# What a graft file's header says about a tensor with entries: three times its name, format, shape and offsets.
_HEADER_BYTES = 3 * 72
_OTHER_METADATA_BYTES = 800
Cell = tuple[str, str]
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Change:
    """How many entries there are, in how many the bits differ, and the squares of delta and base summed over all."""

    entries: int = 0
    changed: int = 0
    delta_squares: float = 0.0
    base_squares: float = 0.0

    def __add__(self, other: Change) -> Change:
        return Change(
            self.entries + other.entries,
            self.changed + other.changed,
            self.delta_squares + other.delta_squares,
            self.base_squares + other.base_squares,
        )

    @property
    def norm(self) -> float:
        """‖delta‖."""
        return math.sqrt(self.delta_squares)

    @property
    def relative(self) -> float | None:
        """‖delta‖ / ‖base‖; None where the base is zero."""
        return math.sqrt(self.delta_squares / self.base_squares) if self.base_squares else None

    @property
    def facts(self) -> dict[str, Any]:
        """The change as plain numbers."""
        return {"entries": self.entries, "changed": self.changed, "norm": self.norm, "relative": self.relative}


@dataclass(frozen=True)
class Top:
    """What `extract` would take at a density: entries, the file's size (estimated), the share of ‖delta‖² in them."""

    density: float
    entries: int
    bytes: int
    share: float


@dataclass(frozen=True)
class Diff:
    """What tuned changed in base.

    `cells` has the scope by (layer, kind), `outside` the other tensors that both have, where any of their bits differ. `heads`
    are whole tensors that differ, `added` and `removed` those of one side alone. `config` maps a key to what each side says.
    """

    base: str
    tuned: str
    scope: str
    cells: Mapping[Cell, Change]
    outside: Mapping[str, Change]
    top: tuple[Top, ...]
    heads: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    config: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def whole(self) -> Change:
        """The whole scope."""
        return sum(self.cells.values(), Change())

    def by_layer(self) -> dict[str, Change]:
        """Layer → its change, in order; "" holds what of the scope is outside the layers."""
        layers = sorted({layer for layer, _ in self.cells}, key=natural_key)
        return {each: sum((c for (layer, _), c in self.cells.items() if layer == each), Change()) for each in layers}

    def by_kind(self) -> dict[str, Change]:
        """Kind → its change, in the order of `names.KINDS`."""
        present = {kind for _, kind in self.cells}
        kinds = [kind for kind in KINDS if kind in present]
        return {each: sum((c for (_, kind), c in self.cells.items() if kind == each), Change()) for each in kinds}

    @property
    def facts(self) -> dict[str, Any]:
        """Everything as plain dictionaries, ready for JSON."""
        return {
            "base": self.base,
            "tuned": self.tuned,
            "scope": self.scope,
            **self.whole.facts,
            "by_layer": {layer or "outside the layers": change.facts for layer, change in self.by_layer().items()},
            "by_kind": {kind: change.facts for kind, change in self.by_kind().items()},
            "outside_scope": {name: change.facts for name, change in self.outside.items()},
            "heads": list(self.heads),
            "added": list(self.added),
            "removed": list(self.removed),
            "config": {key: dict(sides) for key, sides in self.config.items()},
            "extract": [vars(top) for top in self.top],
        }


def diff(
    base: str | Path,
    tuned: str | Path,
    *,
    scope: str = "layers",
    convert: bool = False,
    progress: Progress = silent,
) -> Diff:
    """Compare a fine-tune (a folder or a LoRA adapter) with its base; see `Diff`. `convert` rounds tuned to base's format."""
    before, after, source, pairing = opened_pair(base, tuned, convert=convert)
    within = Scope.select(scope, pairing.shared)
    tally = _Tally()
    cells: dict[Cell, Change] = {}
    done, size = 0, sum(map(math.prod, pairing.shared.values()))
    outside: dict[str, Change] = {}
    with before.steady(), after.steady():
        for name, shape in pairing.shared.items():
            if name in within.shapes:
                parts = parts_of(name, within.shapes)
                for part, change in zip(parts, _changes(before, source, name, parts, tally), strict=True):
                    cell = layer_of(name), part.kind
                    cells[cell] = cells.get(cell, Change()) + change
            else:
                outside[name] = sum(_changes(before, source, name, parts_of(name, {name: shape})), Change())
            done += math.prod(shape)
            progress(done, size)
    before.check_unchanged()
    after.check_unchanged()
    overhead = _overhead(source, pairing, within)
    return Diff(
        before.name,
        after.name,
        within.label,
        cells,
        {name: change for name, change in outside.items() if change.changed},
        tuple(_top(tally, within, before, density, overhead=overhead) for density in DENSITIES),
        heads=tuple(name for name in pairing.whole if name in before.shapes),
        added=(*(name for name in pairing.whole if name not in before.shapes), *pairing.tails),
        removed=pairing.removed,
        config=_differing_keys(before.config, after.config),
    )


class _Tally:
    """Movements of the scope by their leading bits: how many there are in each tensor, and the sum of their squares."""

    def __init__(self) -> None:
        self.squares = np.zeros(BUCKETS, np.float64)
        self.counts = np.zeros(BUCKETS, np.int64)
        self.tensors: dict[str, tuple[int, npt.NDArray[np.int64]]] = {}  # name → first row in use, counts from there on

    def add(self, name: str, movement: npt.NDArray[np.floating[Any]], squares: _Floats) -> None:
        row = leading_bits(movement)
        self.squares += np.bincount(row, weights=squares, minlength=BUCKETS)
        counts = np.bincount(row, minlength=BUCKETS)
        self.counts += counts
        first, earlier = self.tensors.get(name, (0, np.zeros(0, np.int64)))
        counts[first : first + len(earlier)] += earlier
        used = np.flatnonzero(counts)
        self.tensors[name] = int(used[0]), counts[used[0] : used[-1] + 1].copy()

    def cut(self, count: int) -> tuple[int, float]:
        """The last row of the `count` largest movements, and the share of that row which is among them."""
        reached = np.cumsum(self.counts[::-1])
        place = int(np.searchsorted(reached, count))
        row = BUCKETS - 1 - place
        return row, (count - int(reached[place] - self.counts[row])) / int(self.counts[row])

    def share(self, row: int, part: float) -> float:
        """The share of the squares above a row, with that part of the row itself."""
        total = float(self.squares.sum())
        return float(self.squares[row + 1 :].sum() + part * self.squares[row]) / total if total else 0.0

    def entries(self, row: int, part: float) -> dict[str, int]:
        """Tensor → about how many of its entries lie above a row, with that part of the row itself."""
        found = {}
        for name, (first, counts) in self.tensors.items():
            above, here = max(0, row + 1 - first), row - first
            found[name] = int(counts[above:].sum())
            if 0 <= here < len(counts):
                found[name] += round(part * int(counts[here]))
        return {name: count for name, count in found.items() if count}


def _changes(
    base: Tensors, tuned: Tensors, name: str, parts: tuple[KindPart, ...], tally: _Tally | None = None
) -> Iterator[Change]:
    """One change for each part of a tensor, from one pass over it."""
    shape, sums = base.shapes[name], np.zeros((4, len(parts)))
    try:
        for low, before, after in blocks(base, tuned, name):
            movement = movement_of(before, after)
            check_finite(movement)
            squares = np.square(movement, dtype=np.float64)
            if tally is not None:
                tally.add(name, movement, squares)
            own = np.square(before if before.dtype == np.float64 else widen(before), dtype=np.float64)
            changed = bits(before) != bits(after)
            for each, at in enumerate(_where(parts, shape, low, len(before))):
                sums[:, each] += [
                    len(own[at]),
                    int(np.count_nonzero(changed[at])),
                    float(squares[at].sum()),
                    float(own[at].sum()),
                ]
    except InputError as error:
        raise error.within(name) from None
    return (Change(round(entries), round(changed), delta, own) for entries, changed, delta, own in sums.T.tolist())


def _where(
    parts: tuple[KindPart, ...], shape: tuple[int, ...], low: int, count: int
) -> Iterator[slice | npt.NDArray[np.bool_]]:
    """For each part, which of the `count` entries from `low` on belong to it."""
    if len(parts) == 1:
        yield slice(None)
        return
    axis = parts[0].axis
    along = np.arange(low, low + count) // math.prod(shape[axis + 1 :]) % shape[axis]
    for part in parts:
        yield (along >= part.start) & (along < part.stop)


def _top(tally: _Tally, scope: Scope, base: Tensors, density: float, *, overhead: int) -> Top:
    """What `extract` would take. Sites are indices or, where smaller, a bitmap, as in the file."""
    count = count_of(scope, density=density)
    cut = tally.cut(count)
    size = overhead
    for name, entries in tally.entries(*cut).items():
        whole = math.prod(scope.shapes[name])
        sites = min(entries * index_dtype(whole).itemsize, (whole + 7) // 8)
        size += 3 * len(name) + _HEADER_BYTES + sites + 2 * entries * base.dtypes[name].itemsize
    return Top(density, count, size, tally.share(*cut))


def _overhead(tuned: Tensors, pairing: Pairing, scope: Scope) -> int:
    """Bytes of a graft file besides its entries: heads, the scope's shapes and the rest of the metadata."""
    heads = sum(math.prod(tuned.shapes[name]) * tuned.dtypes[name].itemsize for name in pairing.whole)
    shapes = len(strict_json.canonical({name: list(shape) for name, shape in scope.shapes.items()}))
    return heads + shapes + _OTHER_METADATA_BYTES


def _differing_keys(base: Mapping[str, Any], tuned: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Key → what each side that has it says."""
    sides = {"base": base, "tuned": tuned}
    found = {
        key: {side: config[key] for side, config in sides.items() if key in config}
        for key in sorted(base.keys() | tuned.keys())
    }
    return {key: values for key, values in found.items() if len(values) < 2 or values["base"] != values["tuned"]}
