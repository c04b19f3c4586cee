"""What the rows of a batch change in one module, added to the module's output.

W · x was computed once for all rows by the model itself. One gather takes what the changed entries read of every token, one
product weighs it, and one scatter-add brings it to the outputs: three operations, whatever the number of skills.

Two layouts were kept of those tried on two cores (64 rows of 32 tokens, 1e-4 of 768 × 768 and 3072 × 768). *Rectangular*: every
row has as many entries as the fullest one, and each token's are neighbours in memory; the fastest where rows are alike. *Flat*:
no room is lost to padding; for decoding, batches with base rows, and rows that are unlike. Sorting entries along the wider side
matters most: it took a scatter into 3072 outputs from 7.6 to 1.3 ms. Slower were a transposed copy with embedding_bag (up to
10 ms), a block-diagonal sparse product in CSR (36 ms), a product by small dense matrices over each skill's own rows and
columns (as fast at best, 15 ms at worst), and one row after the other (dispatch).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from skillgraft.live.row_forms import NOTHING, Columns, RowModule

_PADDING = 2.0  # the rectangle holds at most so many times the entries themselves
Made = TypeVar("Made")


@dataclass(eq=False)
class ModuleChange:
    """All rows' entries in one module. What each layout needs is made when it is first asked for."""

    rows: int
    row: npt.NDArray[np.int64]  # of each entry
    inputs: Columns
    outputs: Columns
    numbers: npt.NDArray[np.float32]
    device: torch.device
    every_row: bool  # whether no row is the base's
    _made: dict[Any, Any] = field(default_factory=dict)

    def added(self, given: Tensor, output: Tensor) -> Tensor:
        """The output plus what the entries make of `given`; entries of row i see its tokens alone."""
        tokens = output.numel() // (self.rows * output.shape[-1])
        if tokens > 1 and self._is_rectangular:
            return self._rectangular(given, output, tokens)
        return self._flat(given, output, tokens)

    def embedded(self, ids: Tensor, output: Tensor, module: RowModule) -> Tensor:
        """The embeddings plus what each row's skill adds to its own tokens, found by (row, token) in a sorted list."""
        keys, order, outputs, delta = self._once(("tokens",), lambda: self._by_token(module.input_width))
        row = torch.arange(self.rows, device=ids.device)[:, None]
        asked = (row * module.input_width + ids.reshape(self.rows, -1)).view(-1)
        low = torch.searchsorted(keys, asked)
        counts = torch.searchsorted(keys, asked, right=True) - low
        tokens = torch.repeat_interleave(torch.arange(len(asked), device=ids.device), counts)
        first = torch.repeat_interleave(low - (counts.cumsum(0) - counts), counts)
        found = order[first + torch.arange(len(tokens), device=ids.device)]
        flat = output.reshape(-1).clone()
        flat.index_add_(0, tokens * module.output_width + outputs[found], (delta[found] * module.scale).to(flat.dtype))
        return flat.view(output.shape)

    @property
    def _is_rectangular(self) -> bool:
        return self.every_row and self.rows * int(self._counts.max()) <= _PADDING * len(self.row)

    @property
    def _counts(self) -> npt.NDArray[np.int64]:
        return self._once(("counts",), lambda: np.bincount(self.row, minlength=self.rows))

    def _flat(self, given: Tensor, output: Tensor, tokens: int) -> Tensor:
        """Entries one after the other, token by token: indices into the flattened tensors."""
        wide, narrow = given.shape[-1], output.shape[-1]
        inputs, outputs, delta, constant = self._once(
            ("flat", tokens, wide, narrow), lambda: self._starts(tokens, wide, narrow)
        )
        if tokens > 1:  # made anew: kept, they would take eight bytes for every entry of every token
            step = torch.arange(tokens, device=self.device)[:, None]
            inputs, outputs = (inputs + step * wide).view(-1), (outputs + step * narrow).view(-1)
        flat = output.reshape(-1)
        taken = given.reshape(-1).gather(0, inputs).view(tokens, -1)
        flat.scatter_add_(0, outputs, _weighed(taken, delta, constant, flat.dtype).view(-1))
        return flat.view(output.shape)

    def _starts(self, tokens: int, wide: int, narrow: int) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        inputs = self._tensor(self.row * (tokens * wide) + np.maximum(self.inputs, 0))
        outputs = self._tensor(self.row * (tokens * narrow) + self.outputs)
        return (inputs, outputs, *self._weights(self.inputs, self.numbers))

    def _rectangular(self, given: Tensor, output: Tensor, tokens: int) -> Tensor:
        inputs, outputs, delta, constant = self._once(("rectangle", tokens), lambda: self._rectangle(tokens))
        result = output.reshape(self.rows, tokens, -1)
        taken = given.reshape(self.rows, tokens, -1).gather(2, inputs)
        result.scatter_add_(2, outputs, _weighed(taken, delta, constant, result.dtype))
        return result.view(output.shape)

    def _rectangle(self, tokens: int) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        size, starts = int(self._counts.max()), np.cumsum(self._counts) - self._counts
        at = self.row * size + np.arange(len(self.row)) - starts[self.row]
        inputs, outputs = (np.zeros(self.rows * size, np.int64) for _ in range(2))
        numbers = np.zeros(self.rows * size, np.float32)  # padding adds 0 times a number of its own row
        inputs[at], outputs[at], numbers[at] = self.inputs, self.outputs, self.numbers
        shape = self.rows, 1, size
        first, second = (
            self._tensor(index.reshape(shape)).expand(-1, tokens, -1) for index in (np.maximum(inputs, 0), outputs)
        )
        return (first, second, *self._weights(inputs.reshape(shape), numbers.reshape(shape)))

    def _by_token(self, known: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        keys = self.row * known + self.inputs
        order = np.argsort(keys, kind="stable")
        outputs = self.outputs.astype(np.int64)
        return self._tensor(keys[order]), self._tensor(order), self._tensor(outputs), self._tensor(self.numbers)

    def _weights(self, inputs: npt.NDArray[Any], numbers: Any) -> tuple[Tensor, Tensor | None]:
        """What inputs are multiplied by, and what is added without any input: None where there are no biases."""
        alone = inputs == NOTHING
        if not alone.any():
            return self._tensor(numbers), None
        return self._tensor(np.where(alone, 0, numbers)), self._tensor(np.where(alone, numbers, 0))

    def _tensor(self, array: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def _once(self, key: tuple[object, ...], make: Callable[[], Made]) -> Made:
        if key not in self._made:
            self._made[key] = make()
        found: Made = self._made[key]
        return found


def _weighed(taken: Tensor, delta: Tensor, constant: Tensor | None, dtype: torch.dtype) -> Tensor:
    """taken · delta + constant, rounded once; in place where no graph is recorded."""
    if torch.is_grad_enabled():
        product = taken * delta if constant is None else torch.addcmul(constant, taken, delta)
        return product.to(dtype)
    if constant is None:
        return taken.mul_(delta)
    return torch.addcmul(constant, taken, delta, out=taken)
