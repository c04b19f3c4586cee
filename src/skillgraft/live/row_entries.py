"""What all rows of a batch change, module after module, in one buffer: a few passes over the entries, whatever their modules.

A server's batches never meet in the same order again, and a language model has hundreds of modules: made module by module, row
by row, these arrays took a third of the time of a token of SmolLM2; so every layout is made for all modules at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from skillgraft.live.row_forms import NOTHING, Columns, RowForms
from skillgraft.live.row_skill import RowSkill

Integers = npt.NDArray[np.int64]
Made = TypeVar("Made")


@dataclass(frozen=True)
class EntryLayout:
    """One module's entries as a gather, a product and a scatter-add take them; `constant` is added without any input."""

    inputs: Tensor
    outputs: Tensor
    delta: Tensor
    constant: Tensor | None

    def on(self, device: torch.device) -> EntryLayout:
        """The same on a module's device."""
        if self.delta.device == device:
            return self
        constant = None if self.constant is None else self.constant.to(device)
        return EntryLayout(self.inputs.to(device), self.outputs.to(device), self.delta.to(device), constant)


@dataclass(eq=False)
class BatchEntries:
    """The entries of all rows, sorted by module and then by row. Layouts are made when they are first asked for."""

    counts: Integers  # (rows, modules): how many entries
    row: Integers  # of each entry
    inputs: Columns
    outputs: Columns
    numbers: npt.NDArray[np.float32]
    widths: Integers  # (2, modules): how many numbers of a token each module reads and gives
    device: torch.device
    _made: dict[Any, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, skills: Sequence[RowSkill | None], few: npt.NDArray[np.bool_], forms: RowForms, device: torch.device
    ) -> BatchEntries:
        """Those of the rows' skills; of each row only the modules that `few` (rows, modules) says."""
        counts = np.zeros(few.shape, np.int64)
        for row, skill in enumerate(skills):
            counts[row] = 0 if skill is None else skill.counts
        held = [skill for skill in skills if skill is not None]
        source = counts.cumsum().reshape(counts.shape) - counts  # where a row's entries of a module begin
        counts *= few
        rows = np.repeat(np.tile(np.arange(len(skills)), few.shape[1]), counts.T.ravel())
        at = _ranges(source.T.ravel(), counts.T.ravel())
        inputs, outputs, numbers = (
            np.concatenate([np.empty(0, like), *(getattr(skill, name) for skill in held)])[at]
            for name, like in (("inputs", np.int32), ("outputs", np.int32), ("delta", np.float32))
        )
        return cls(counts, rows, inputs, outputs, numbers, forms.widths, device)

    @cached_property
    def touched(self) -> list[bool]:
        """Which modules have entries."""
        found: list[bool] = (self.counts.sum(0) > 0).tolist()
        return found

    @cached_property
    def _ends(self) -> list[int]:
        return [0, *self.counts.sum(0).cumsum().tolist()]

    def part(self, index: int) -> slice:
        """Where a module's entries stand."""
        return slice(self._ends[index], self._ends[index + 1])

    def flat(self, index: int, tokens: int) -> EntryLayout:
        """Entries one after the other, as positions in the flattened tensors of a batch of so many tokens a row."""
        inputs, outputs = self._latest(tokens)
        delta, constant, biased = self._once("weights", lambda: self._weights(self.inputs, self.numbers))
        part = self.part(index)
        return EntryLayout(inputs[part], outputs[part], delta[part], constant[part] if biased[index] else None)

    def rectangle(self, index: int, tokens: int) -> EntryLayout:
        """(rows, tokens, entries of the fullest row): every token's entries are neighbours in memory."""
        ends, *columns, biased = self._once("rectangle", self._padded)
        shape = len(self.counts), 1, -1
        inputs, outputs, delta, constant = (column[ends[index] : ends[index + 1]].view(shape) for column in columns)
        wide = len(self.counts), tokens, -1
        return EntryLayout(inputs.expand(wide), outputs.expand(wide), delta, constant if biased[index] else None)

    def by_token(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        """A table's entries sorted by (row, token), with the number of the embedding that they change, and by how much."""
        return self._once(("tokens", index), lambda: self._sorted_by_token(index))

    def padding(self, index: int) -> float:
        """How many times the entries themselves a module's rectangle holds."""
        return self._paddings[index]

    @cached_property
    def _paddings(self) -> list[float]:
        total, most = self.counts.sum(0), self.counts.max(0)
        found: list[float] = (len(self.counts) * most / np.maximum(total, 1)).tolist()
        return found

    def _sorted_by_token(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        part = self.part(index)
        keys = self.row[part] * self.widths[0, index] + self.inputs[part]
        order = np.argsort(keys, kind="stable")
        outputs = self.outputs[part].astype(np.int64)
        return self._tensor(keys[order]), self._tensor(outputs[order]), self._tensor(self.numbers[part][order])

    def _latest(self, tokens: int) -> tuple[Tensor, Tensor]:
        """Kept for one token and for the last other number: a text that grows without a cache has a new one each time."""
        key = "flat", tokens > 1
        if key not in self._made or self._made[key][0] != tokens:
            self._made[key] = tokens, self._starts(tokens)
        found: tuple[Tensor, Tensor] = self._made[key][1]
        return found

    def _starts(self, tokens: int) -> tuple[Tensor, Tensor]:
        wide, narrow = (np.repeat(width, self.counts.sum(0)) for width in self.widths)
        above = self.row * tokens
        return self._tensor(above * wide + np.maximum(self.inputs, 0)), self._tensor(above * narrow + self.outputs)

    def _padded(self) -> tuple[Any, ...]:
        sizes = self.counts.max(0) * len(self.counts)
        ends = np.concatenate([[0], sizes.cumsum()])
        first = ends[:-1, None] + np.arange(len(self.counts)) * self.counts.max(0)[:, None]
        at = _ranges(first.ravel(), self.counts.T.ravel())
        inputs, outputs = (np.zeros(ends[-1], np.int64) for _ in range(2))
        numbers = np.zeros(ends[-1], np.float32)  # padding adds 0 times a number of its own row
        inputs[at], outputs[at], numbers[at] = self.inputs, self.outputs, self.numbers
        weights = self._weights(inputs, numbers, sizes)
        return ends.tolist(), self._tensor(np.maximum(inputs, 0)), self._tensor(outputs), *weights

    def _weights(
        self, inputs: npt.NDArray[Any], numbers: npt.NDArray[np.float32], sizes: Integers | None = None
    ) -> tuple[Tensor, Tensor, list[bool]]:
        """What inputs are multiplied by, what is added without any input, and in which modules there is such a thing."""
        alone = inputs == NOTHING
        module = np.repeat(np.arange(self.counts.shape[1]), self.counts.sum(0) if sizes is None else sizes)
        biased = np.bincount(module[alone], minlength=self.counts.shape[1]) > 0
        delta, constant = np.where(alone, np.float32(0), numbers), np.where(alone, numbers, np.float32(0))
        return self._tensor(delta), self._tensor(constant), biased.tolist()

    def _tensor(self, array: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def _once(self, key: Any, make: Callable[[], Made]) -> Made:
        if key not in self._made:
            self._made[key] = make()
        found: Made = self._made[key]
        return found


def _ranges(first: Integers, counts: Integers) -> Integers:
    """first[0], first[0] + 1, … counts[0] of them; then first[1], …"""
    found = np.repeat(first - (counts.cumsum() - counts), counts) + np.arange(counts.sum())
    return found.astype(np.int64, copy=False)
