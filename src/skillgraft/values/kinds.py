"""Which entries of a parameter are of which kind, and how many entries each layer has of each kind.

Most tensors are of one kind, which their name gives (`names.kind_of`). A fused matrix holds several: here its parts are read
off names and shapes. Where that cannot be done (query, key and value interleaved head by head, as in GPT-NeoX, Bloom and
Falcon) the tensor stays whole, of a kind that says so. Either way the kinds partition a scope.

    >>> shapes = {"h.0.attn.c_attn.weight": (4, 12), "h.0.attn.c_proj.weight": (4, 4)}
    >>> [(part.kind, part.axis, part.start, part.stop) for part in parts_of("h.0.attn.c_attn.weight", shapes)]
    [('query', 1, 0, 4), ('key', 1, 4, 8), ('value', 1, 8, 12)]
    >>> cell_sizes(shapes)["h.0", "query"]
    16
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from skillgraft.values.names import FUSED, FUSED_PAIR, KINDS, kind_of, layer_of, natural_key

Shape = tuple[int, ...]
Cells = dict[tuple[str, str], int]


@dataclass(frozen=True)
class KindPart:
    """The entries of one kind in a tensor: those from `start` to `stop` along `axis`."""

    kind: str
    axis: int
    start: int
    stop: int

    @property
    def within(self) -> tuple[slice, ...]:
        """Where the part is, as an index of the whole array."""
        return (*[slice(None)] * self.axis, slice(self.start, self.stop))


@dataclass(frozen=True)
class _Fused:
    """Matrices that follow each other along an axis of one tensor.

    One of them (`known`) is as wide as the input of the attention's output matrix, `outputs` beside it; the others share the
    rest equally. `alone`: without an output in sight they are known to be equal where their number fits the shape.
    `equal`: they also follow each other when all are equally wide; otherwise such a tensor may be interleaved.
    """

    pattern: str
    outputs: tuple[str, ...]
    kinds: tuple[str, ...] = ("query", "key", "value")
    axis: int = 0
    known: int = 0
    alone: bool = False
    equal: bool = True

    def parts(self, shape: Shape, output: Shape | None) -> tuple[KindPart, ...]:
        """Where each kind is in a matrix of this shape; none where the shapes do not say."""
        if len(shape) != 2 or (output is not None and len(output) != 2):
            return ()
        width, count = self._known_width(shape, output), len(self.kinds)
        rest, left = divmod(shape[self.axis] - width, count - 1)
        if not width or rest <= 0 or left or (rest == width and not self.equal):
            return ()
        borders = accumulate((width if index == self.known else rest for index in range(count)), initial=0)
        return tuple(KindPart(kind, self.axis, *ends) for kind, ends in zip(self.kinds, pairwise(borders), strict=True))

    def _known_width(self, shape: Shape, output: Shape | None) -> int:
        """What the output matrix takes, which has its input on the other axis; without one, a part of equal ones or 0."""
        across = shape[1 - self.axis]
        if output is None:
            return across if self.alone and shape[self.axis] == len(self.kinds) * across else 0
        return output[1 - self.axis]


# The first row whose pattern fits and whose shapes agree decides. Names keep their case: `Wqkv` of ModernBERT, MPT and DBRX
# follows q, k, v; `wqkv` of InternLM2 is interleaved. A `qkv_proj` beside an `out_proj` is interleaved too (CodeGen, MiniMax).
_FUSED = (
    _Fused(
        r"(qkv|Wqkv|W_pack|att_proj)\.weight|in_proj_weight",
        ("proj", "projection", "projection_layer", "Wo", "out_proj", "o_proj"),
        alone=True,
    ),
    _Fused(r"qkv_proj\.weight", ("o_proj",)),
    # Qwen3.5's linear attention: queries and keys are equal, values are what its output takes.
    _Fused(r"in_proj_qkv\.weight", ("out_proj",), known=2),
    # Conv1D keeps its matrix as (in, out). In cross-attention the query has a matrix of its own.
    _Fused(r"(?<=crossattention\.)c_attn\.weight", ("c_proj",), ("key", "value"), axis=1, alone=True),
    _Fused(r"(?<!crossattention\.)c_attn\.weight", ("c_proj",), axis=1, alone=True),
    # GPTBigCode has nn.Linear here: one key and value for all heads follow the queries, as many as queries are interleaved.
    _Fused(r"(?<!crossattention\.)c_attn\.weight", ("c_proj",), equal=False),
)
_ROWS = tuple((row, re.compile(rf"(?:^|(?<=\.))(?:{row.pattern})$")) for row in _FUSED)


def parts_of(name: str, shapes: Mapping[str, Shape]) -> tuple[KindPart, ...]:
    """The parts of a tensor, which partition it: one for most, three for a fused matrix that can be taken apart.

    `shapes` are those of the whole scope: the width of a query is read off the layer's own output matrix.
    """
    shape = shapes[name]
    found = (row.parts(shape, _output(row, module, shapes)) for row, module in _layouts(name))
    return next(filter(None, found), (KindPart(kind_of(name), 0, 0, shape[0] if shape else 1),))


def _output(row: _Fused, module: str, shapes: Mapping[str, Shape]) -> Shape | None:
    """The shape of the output matrix that stands in the same module; None where the scope has none."""
    return next((shapes[name] for each in row.outputs if (name := f"{module}{each}.weight") in shapes), None)


@lru_cache(maxsize=65536)
def _layouts(name: str) -> tuple[tuple[_Fused, str], ...]:
    """The rows that a name fits, each with the module that the tensor belongs to."""
    if kind_of(name) not in (FUSED, FUSED_PAIR):
        return ()
    found = ((row, pattern.search(name)) for row, pattern in _ROWS)
    return tuple((row, name[: match.start()]) for row, match in found if match)


def cell_sizes(shapes: Mapping[str, Shape]) -> Cells:
    """(layer, kind) → how many entries a scope has there, in the order of layers and kinds."""
    return _cells(shapes, lambda name, parts: [_size(part, shapes[name]) for part in parts])


def cell_counts(shapes: Mapping[str, Shape], sites: Mapping[str, npt.NDArray[np.integer[Any]]]) -> Cells:
    """(layer, kind) → how many of the entries `sites` (name → sorted flat indices) lie there; every cell of the scope."""
    return _cells(shapes, lambda name, parts: counts_in(parts, shapes[name], sites[name]) if name in sites else ())


def _cells(shapes: Mapping[str, Shape], measure: Callable[[str, Sequence[KindPart]], Sequence[int]]) -> Cells:
    """One number for each part of each tensor, summed over the tensors of a layer."""
    found: Cells = {}
    for name in shapes:
        parts = parts_of(name, shapes)
        for part, number in zip(parts, measure(name, parts) or [0] * len(parts), strict=True):
            cell = layer_of(name), part.kind
            found[cell] = found.get(cell, 0) + number
    layers = sorted({layer for layer, _ in found}, key=natural_key)
    return {(layer, kind): found[layer, kind] for layer in layers for kind in KINDS if (layer, kind) in found}


def _size(part: KindPart, shape: Shape) -> int:
    return math.prod(shape[: part.axis]) * (part.stop - part.start) * math.prod(shape[part.axis + 1 :])


def counts_in(parts: Sequence[KindPart], shape: Shape, indices: npt.NDArray[np.integer[Any]]) -> list[int]:
    """How many of a tensor's sorted flat indices lie in each part; a tensor of several parts is a matrix."""
    if len(parts) == 1:
        return [len(indices)]
    stops, columns = np.array([part.stop for part in parts]), shape[1]
    if parts[0].axis == 0:  # parts are stretches of the sorted row: no look at every index
        ends = np.searchsorted(indices, (stops * columns).astype(indices.dtype)).tolist()
    else:
        along = indices % columns
        ends = [np.count_nonzero(along < stop) for stop in stops]
    return [end - start for start, end in pairwise([0, *ends])]
