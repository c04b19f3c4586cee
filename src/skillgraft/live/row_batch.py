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
from skillgraft.live.row_change import ModuleChange
from skillgraft.live.row_forms import EMBEDDING, LINEAR, NORM, NOTHING, Entries, RowForms, RowModule
from skillgraft.live.row_skill import RowSkill
from skillgraft.opening.compat import own_parameters

_MANY, _MANY_DECODING = 0.02, 0.2


@dataclass(frozen=True, eq=False)
class OwnMatrix:
    """A skill that changes so much of a module that its rows have a matrix of their own, made when it is needed."""

    rows: Tensor
    entries: Entries

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


@dataclass(eq=False)
class RowBatch:
    """What the rows of a batch change; found once, used in every forward pass."""

    forms: RowForms
    skills: Sequence[RowSkill | None]
    _parts: dict[tuple[int, bool], tuple[ModuleChange | None, list[OwnMatrix]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        held = [skill.counts for skill in self.skills if skill is not None]
        self.touched: list[bool] = np.any([np.zeros(len(self.forms.modules)), *held], axis=0).tolist()

    def answer(self, index: int, given: Tensor, output: Tensor, per_row: int) -> Tensor:
        """The module's output with every row's own skill; `per_row` rows of the model's batch belong to each of ours."""
        module, rows = self.forms.modules[index], len(self.skills)
        if module.kind == EMBEDDING and len(given) == 1 < rows * per_row:  # positions, which all rows share
            given = given.expand(rows * per_row, *given.shape[1:])
            output = output.expand(rows * per_row, *output.shape[1:])
        decoding = output.numel() == rows * output.shape[-1]
        if (index, decoding) not in self._parts:
            self._parts[index, decoding] = self._divided(index, decoding=decoding)
        change, own = self._parts[index, decoding]
        if module.kind == EMBEDDING:
            return output if change is None else change.embedded(given, output, module)
        source = given
        if module.kind == NORM:
            source = output if module.unit is None else module.unit(given)
        output = output.contiguous()
        if torch.is_grad_enabled():
            output = output.clone()  # what a graph has seen is not written to
        if change is not None:
            output = change.added(source, output)
        for matrix in own:
            matrix.written(module, given, output, rows)
        return output

    def _divided(self, index: int, *, decoding: bool) -> tuple[ModuleChange | None, list[OwnMatrix]]:
        """The module's entries of all rows, and apart from them the skills that have too many for that."""
        module = self.forms.modules[index]
        most = (_MANY_DECODING if decoding else _MANY) * np.prod(module.shape) if module.kind == LINEAR else np.inf
        device = own_parameters(module.module)["weight"].device  # type: ignore[union-attr]
        few: list[tuple[int, Entries]] = []
        many: dict[int, list[int]] = {}
        for row, skill in enumerate(self.skills):
            if skill is not None and skill.counts[index] > most:
                many.setdefault(id(skill), []).append(row)
            elif skill is not None:
                few.append((row, skill.entries(index)))
        by_id = {id(skill): skill for skill in self.skills if skill is not None}
        own = [OwnMatrix(torch.tensor(rows, device=device), by_id[key].entries(index)) for key, rows in many.items()]
        if not any(len(delta) for _, (_, _, delta) in few):
            return None, own
        row_of = np.repeat([row for row, _ in few], [len(delta) for _, (_, _, delta) in few])
        inputs, outputs = (np.concatenate([entries[which] for _, entries in few]) for which in (0, 1))
        numbers = np.concatenate([delta for _, (_, _, delta) in few])
        alike = len(few) == len(self.skills)
        return ModuleChange(len(self.skills), row_of, inputs, outputs, numbers, device, alike), own


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
