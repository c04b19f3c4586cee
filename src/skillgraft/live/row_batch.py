"""A batch under way: which skill each row has, and what that changes in every module.

Skills that change few of a module's entries are added together (`row_change`). One that changes many, or all (a classification
head, a graft of everything), has a matrix of its own for its rows: gathering costs about a hundred times what a matrix product
does for each number, so that this is faster from 2 % of the entries on; in decoding, where making the matrix is what costs,
from 20 % on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import linear

from skillgraft.errors import InputError
from skillgraft.live.row_change import added, embedded, layout_for
from skillgraft.live.row_entries import BatchEntries, EntryLayout
from skillgraft.live.row_forms import EMBEDDING, NORM, NOTHING, Entries, RowForms, RowModule
from skillgraft.live.row_skill import RowSkill
from skillgraft.opening.compat import own_parameters

_MANY, _MANY_DECODING = 0.02, 0.2


@dataclass(frozen=True, eq=False)
class OwnMatrix:
    """A skill that changes so much of a module that its rows have a matrix of their own, made when it is needed."""

    rows: Tensor
    entries: Entries

    @classmethod
    def of(cls, skill: RowSkill | None, rows: list[int], index: int, device: torch.device) -> OwnMatrix:
        assert skill is not None
        return cls(torch.tensor(rows, device=device), skill.entries(index))

    def written(self, module: RowModule, given: Tensor, output: Tensor, count: int) -> None:
        """Write the output of its rows; `count` rows in all."""
        weight, bias = self._numbers(module)
        mine = given.reshape(count, -1, given.shape[-1])[self.rows]
        answer = linear(mine.to(weight.dtype), weight, bias)
        output.view(count, -1, output.shape[-1])[self.rows] = answer.to(output.dtype)

    def _numbers(self, module: RowModule) -> tuple[Tensor, Tensor | None]:
        inputs, outputs, delta = self.entries
        alone = inputs == NOTHING
        first, second = (inputs, outputs) if module.transposed else (outputs, inputs)
        flat = first.astype(np.int64) * module.shape[1] + second
        weight = own_parameters(module.module)["weight"]
        bias = own_parameters(module.module).get("bias")
        assert weight is not None
        changed = _changed(weight, flat[~alone], delta[~alone])
        shifted = None if bias is None else _changed(bias, outputs[alone].astype(np.int64), delta[alone])
        return (changed.t() if module.transposed else changed), shifted


@dataclass(frozen=True, eq=False)
class ModuleChange:
    """What one module's output of so many tokens a row becomes."""

    tokens: int
    layout: EntryLayout | None
    own: list[OwnMatrix]


@dataclass(eq=False)
class RowBatch:
    """What the rows of a batch change; found once, used in every forward pass."""

    forms: RowForms
    skills: Sequence[RowSkill | None]
    _changes: dict[tuple[int, bool], ModuleChange] = field(default_factory=dict)
    _entries: dict[bool, BatchEntries] = field(default_factory=dict)

    def __post_init__(self) -> None:
        nothing = np.zeros(len(self.forms.modules), np.int64)
        self._counts = np.stack([nothing if skill is None else skill.counts for skill in self.skills])
        self.touched: list[bool] = (self._counts.sum(0) > 0).tolist()
        self._total = int(self._counts.sum())
        self._every_row = all(skill is not None for skill in self.skills)

    def answer(self, index: int, given: Tensor, output: Tensor, per_row: int) -> Tensor:
        """The module's output with every row's own skill; `per_row` rows of the model's batch belong to each of ours."""
        module, rows = self.forms.modules[index], len(self.skills)
        if module.kind == EMBEDDING:
            return self._embedded(index, given, output, rows * per_row)
        source = given
        if module.kind == NORM:
            source = output if module.unit is None else module.unit(given)
        if not output.is_contiguous():
            output = output.contiguous()
        if torch.is_grad_enabled():
            output = output.clone()  # what a graph has seen is not written to
        tokens = output.numel() // (rows * output.shape[-1])
        change = self._changes.get((index, tokens == 1))
        if change is None or change.tokens != tokens:
            change = self._change(index, tokens)
        if change.layout is not None:
            output = added(change.layout, source, output, tokens)
        for matrix in change.own:
            matrix.written(module, given, output, rows)
        return output

    def _embedded(self, index: int, ids: Tensor, output: Tensor, rows: int) -> Tensor:
        if len(ids) == 1 < rows:  # positions, which all rows share
            ids, output = ids.expand(rows, *ids.shape[1:]), output.expand(rows, *output.shape[1:])
        return embedded(self._divided(decoding=False), index, ids, output, self.forms.modules[index])

    def _change(self, index: int, tokens: int) -> ModuleChange:
        entries = self._divided(decoding=tokens == 1)
        layout = None
        if entries.touched[index]:
            layout = layout_for(entries, index, tokens, every_row=self._every_row).on(self._device(index))
        many: dict[int, list[int]] = {}
        for row in self._left_out(entries, index):
            many.setdefault(id(self.skills[row]), []).append(row)
        own = [OwnMatrix.of(self.skills[rows[0]], rows, index, self._device(index)) for rows in many.values()]
        change = self._changes[index, tokens == 1] = ModuleChange(tokens, layout, own)
        return change

    def _left_out(self, entries: BatchEntries, index: int) -> list[int]:
        if len(entries.row) == self._total:
            return []
        rows: list[int] = np.flatnonzero(self._counts[:, index] > entries.counts[:, index]).tolist()
        return rows

    def _divided(self, *, decoding: bool) -> BatchEntries:
        """All rows' entries but those of skills that have too many in a module: they have a matrix of their own there."""
        if decoding not in self._entries:
            few = self._counts <= (_MANY_DECODING if decoding else _MANY) * self.forms.sizes
            other = self._entries.get(not decoding)
            same = other is not None and np.array_equal(other.counts, self._counts * few)
            self._entries[decoding] = (
                other if other and same else BatchEntries.of(self.skills, few, self.forms, self._device(0))
            )
        return self._entries[decoding]

    def _device(self, index: int) -> torch.device:
        weight = own_parameters(self.forms.modules[index].module)["weight"]
        assert weight is not None
        return weight.device


@dataclass(eq=False)
class UnderWay:
    """A batch that was entered: its bank's token, and what its forward passes have shown so far.

    An input is the batch's if its first axis is the rows (or as many for each: beams, choices, windows), or if it is flat and as
    long as such an input was. Anything else has no axis of rows, and is refused rather than answered with some skill.
    """

    token: object
    batch: RowBatch
    asked: bool = False
    per_row: int = 1
    flat: set[int] = field(default_factory=set)

    def answer(self, index: int, given: Tensor, output: Tensor) -> Tensor | None:
        """What a module gives in this batch; None if it stays as it is."""
        self.asked = True
        module, rows = self.batch.forms.modules[index], len(self.batch.skills)
        shape = given.shape if module.kind == EMBEDDING else given.shape[:-1]
        each, left = divmod(shape[0], rows) if shape else (0, 1)
        if len(shape) > 1 and each and not left:
            self.per_row = each
            self.flat.add(shape.numel())
        if not self.batch.touched[index]:
            return None
        shared = module.kind == EMBEDDING and shape[:1] == (1,)
        if not shared and (left or not each or (len(shape) == 1 and shape[0] not in (rows * self.per_row, *self.flat))):
            raise InputError(
                f"{module.path} was given {list(given.shape)} in a batch of {rows} rows: that has no axis of rows; name one "
                "skill (or None) for every row of the batch, and put a graft that changes this module on with grafted()"
            )
        return self.batch.answer(index, given, output, self.per_row)


def _changed(numbers: Tensor, at: npt.NDArray[np.int64], delta: npt.NDArray[np.float32]) -> Tensor:
    """A changed copy: after = before + delta, in float32, then in the model's own format."""
    flat = numbers.detach().float().reshape(-1).clone()
    flat.index_add_(
        0, torch.from_numpy(at).to(flat.device), torch.from_numpy(np.ascontiguousarray(delta)).to(flat.device)
    )
    return flat.view(numbers.shape).to(numbers.dtype)
