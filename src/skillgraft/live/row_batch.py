"""A batch under way: which skill each row has, as the few tensors that every module's answer needs.

W · x is computed once for all rows by the model itself. Then one gather takes what the changed entries read of every token,
one product weighs it, and one scatter-add brings it to the outputs: three operations a module, whatever the number of skills.

Two layouts were kept of those tried on two cores (64 rows of 32 tokens, 1e-4 of 768 × 768 and 3072 × 768). *Rectangular*: every
row has as many entries as the fullest one, and each token's are neighbours in memory; the fastest where rows are alike. *Flat*:
no room is lost to padding; for decoding, batches with base rows, and rows that are unlike. Sorting entries along the wider side
matters most: it took a scatter into 3072 outputs from 7.6 to 1.3 ms. Slower were a transposed copy with embedding_bag (up to
10 ms), a block-diagonal sparse product in CSR (36 ms), a product by small dense matrices over each skill's own rows and
columns (as fast at best, 15 ms at worst), and one row after the other (dispatch).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from skillgraft.errors import InputError
from skillgraft.live.row_forms import EMBEDDING, NORM, NOTHING, RowForms, RowModule
from skillgraft.live.row_skill import RowSkill

_PADDING = 2.0  # at most so many times the entries themselves


class RowBatch:
    """What the rows of a batch change, module by module; made once, used in every forward pass."""

    def __init__(self, forms: RowForms, skills: Sequence[RowSkill | None]) -> None:
        self._forms, self._skills, self._rows = forms, skills, len(skills)
        self._changes: dict[int, ModuleChange | None] = {}
        self._factor = 1  # rows of the model's batch for each of ours: beams, choices
        self.asked = False
        held = [(row, skill) for row, skill in enumerate(skills) if skill is not None]
        self._active = [row for row, _ in held]
        self._held = [skill for _, skill in held]
        self._starts = [np.concatenate([[0], np.cumsum(skill.counts)]) for skill in self._held]
        self._touched = sum((skill.counts for skill in self._held), np.zeros(len(forms.modules), np.int64)) > 0

    @property
    def changes_something(self) -> bool:
        """Whether any row differs from the base."""
        return bool(self._touched.any())

    def answer(self, index: int, given: Tensor, output: Tensor) -> Tensor | None:
        """The module's output with every row's own skill; None if no row changes this module."""
        self.asked = True
        if not self._touched[index]:
            return None
        change = self._changes.get(index)
        if change is None:
            change = self._changes[index] = self._change(index)
        module = self._forms.modules[index]
        if module.kind == EMBEDDING:
            return self._embedded(change, module, given, output)
        self._factor = _factor(given, self._rows, module)
        source = module.unit(given) if module.kind == NORM and module.unit is not None else given
        return change.added(source.contiguous(), output)

    def _change(self, index: int) -> ModuleChange:
        """The entries of all rows in one module, row by row."""
        spans = [slice(starts[index], starts[index + 1]) for starts in self._starts]
        inputs, outputs, delta = (
            np.concatenate([getattr(skill, name)[span] for skill, span in zip(self._held, spans, strict=True)])
            for name in ("inputs", "outputs", "delta")
        )
        rows = np.repeat(self._active, [skill.counts[index] for skill in self._held])
        device = next(iter(self._forms.modules[index].module.parameters())).device
        return ModuleChange(self._rows, rows, inputs, outputs, delta, device, len(self._active) == self._rows)

    def _embedded(self, change: ModuleChange, module: RowModule, ids: Tensor, output: Tensor) -> Tensor:
        """Add to each token the entries that its own row's skill has for it, found by (row, token) in a sorted list."""
        if len(ids) == 1 < self._rows:  # positions, which all rows share
            count = self._rows * self._factor
            ids, output = ids.expand(count, *ids.shape[1:]), output.expand(count, *output.shape[1:])
        else:
            self._factor = _factor(ids, self._rows, module)
        per_row = ids.reshape(self._rows, -1).long()
        keys, order = change.by_token(module.input_width)
        asked = (torch.arange(self._rows, device=ids.device)[:, None] * module.input_width + per_row).reshape(-1)
        low, high = torch.searchsorted(keys, asked), torch.searchsorted(keys, asked, right=True)
        counts = high - low
        tokens = torch.repeat_interleave(torch.arange(len(asked), device=ids.device), counts)
        first = torch.repeat_interleave(low - (counts.cumsum(0) - counts), counts)
        found = order[first + torch.arange(len(tokens), device=ids.device)]
        flat = output.reshape(-1).clone()
        values = (change.delta[found] * module.scale).to(flat.dtype)
        return flat.index_add_(0, tokens * module.output_width + change.outputs[found], values).view(output.shape)


@dataclass(eq=False)
class ModuleChange:
    """All rows' entries in one module, as indices into its flattened input and output."""

    rows: int
    row: npt.NDArray[np.int64]
    columns: npt.NDArray[np.int32]
    targets: npt.NDArray[np.int32]
    numbers: npt.NDArray[np.float32]
    device: torch.device
    every_row: bool  # whether every row has a skill
    _made: dict[Any, Any] = field(default_factory=dict)

    def added(self, given: Tensor, output: Tensor) -> Tensor:
        """The output plus what the entries make of `given`."""
        tokens = output.numel() // (self.rows * output.shape[-1])
        if tokens > 1 and self.every_row and self._rectangle_pays:
            return self._rectangular(given, output, tokens)
        return self._flat(given, output, tokens)

    @property
    def delta(self) -> Tensor:
        found: Tensor = self._once("delta", lambda: self._tensor(self.numbers))
        return found

    @property
    def outputs(self) -> Tensor:
        found: Tensor = self._once("outputs", lambda: self._tensor(self.targets.astype(np.int64)))
        return found

    def by_token(self, width: int) -> tuple[Tensor, Tensor]:
        """Sorted keys row · width + token, and the entry that each belongs to."""

        def made() -> tuple[Tensor, Tensor]:
            keys = self.row * width + self.columns
            order = np.argsort(keys, kind="stable")
            return self._tensor(keys[order]), self._tensor(order)

        found: tuple[Tensor, Tensor] = self._once("by_token", made)
        return found

    @property
    def _rectangle_pays(self) -> bool:
        return self.rows * int(self._counts.max()) <= _PADDING * len(self.row)

    @property
    def _counts(self) -> npt.NDArray[np.int64]:
        found: npt.NDArray[np.int64] = self._once("counts", lambda: np.bincount(self.row, minlength=self.rows))
        return found

    def _flat(self, given: Tensor, output: Tensor, tokens: int) -> Tensor:
        """Entries one after the other; token t of a row is a view of the flattened tensors that begins t widths further on."""
        wide, narrow = given.shape[-1], output.shape[-1]
        columns, targets, delta, constant = self._once(
            ("flat", tokens, wide, narrow), lambda: self._flat_indices(tokens, wide, narrow)
        )
        flat = output.reshape(-1)
        taken = _shifted(given.view(-1), tokens, wide, self.rows).gather(1, columns)
        _shifted(flat, tokens, narrow, self.rows).scatter_add_(1, targets, _weighed(taken, delta, constant, flat.dtype))
        return flat.view(output.shape)

    def _rectangular(self, given: Tensor, output: Tensor, tokens: int) -> Tensor:
        columns, targets, delta, constant = self._once(("rectangle", tokens), lambda: self._rectangle(tokens))
        result = output.reshape(self.rows, tokens, -1)
        taken = given.view(self.rows, tokens, -1).gather(2, columns)
        result.scatter_add_(2, targets, _weighed(taken, delta, constant, result.dtype))
        return result.view(output.shape)

    def _flat_indices(self, tokens: int, wide: int, narrow: int) -> tuple[Tensor | None, ...]:
        columns = self.row * (tokens * wide) + np.maximum(self.columns, 0)
        targets = self.row * (tokens * narrow) + self.targets
        spread = [self._tensor(index)[None].expand(tokens, -1) for index in (columns, targets)]
        return (*spread, *self._weights(self.columns, self.numbers))

    def _rectangle(self, tokens: int) -> tuple[Tensor | None, ...]:
        size = int(self._counts.max())
        starts = np.cumsum(self._counts) - self._counts
        at = self.row * size + np.arange(len(self.row)) - starts[self.row]
        padded = [np.zeros(self.rows * size, array.dtype) for array in (self.columns, self.targets, self.numbers)]
        for whole, array in zip(padded, (self.columns, self.targets, self.numbers), strict=True):
            whole[at] = array
        columns, targets, numbers = (whole.reshape(self.rows, 1, size) for whole in padded)
        spread = [self._tensor(index.astype(np.int64)) for index in (np.maximum(columns, 0), targets)]
        return (*(index.expand(-1, tokens, -1) for index in spread), *self._weights(columns, numbers))

    def _weights(self, columns: Any, numbers: Any) -> tuple[Tensor, Tensor | None]:
        """What inputs are multiplied by, and what is added without any input: None where there are no biases."""
        alone = columns == NOTHING
        if not alone.any():
            return self._tensor(numbers), None
        return self._tensor(np.where(alone, 0, numbers)), self._tensor(np.where(alone, numbers, 0))

    def _tensor(self, array: Any) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def _once(self, key: Any, make: Any) -> Any:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]


def _shifted(flat: Tensor, tokens: int, width: int, rows: int) -> Tensor:
    """Overlapping views of a flattened (rows, tokens, width) tensor: line t begins t widths further on."""
    return flat.as_strided((tokens, (rows * tokens - tokens + 1) * width), (width, 1))


def _weighed(taken: Tensor, delta: Tensor, constant: Tensor | None, dtype: torch.dtype) -> Tensor:
    if constant is None:
        return taken.mul_(delta) if taken.dtype == dtype else (taken * delta).to(dtype)
    return torch.addcmul(constant, taken, delta).to(dtype)


def _factor(given: Tensor, rows: int, module: RowModule) -> int:
    """How many rows of the model's batch belong to each of ours: more than one for beams and choices."""
    count = given.shape[0] if given.dim() > 1 else 0
    factor, left = divmod(count, rows)
    if left or not factor:
        raise InputError(
            f"{module.path} was given {list(given.shape)}, but the batch was announced with {rows} rows: the first axis must "
            "be the rows, or as many for each of them; name one skill (or None) for every row of the batch"
        )
    return factor
