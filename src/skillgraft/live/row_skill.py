"""A graft as a batch needs it: for every module, which inputs reach which outputs, and by how much.

    skill = row_skill(graft, forms)
    skill.counts[3]              # how many entries it has in forms.modules[3]

The delta is what the graft writes minus what stood there, in float32: after the number format's own rounding, so that a
bfloat16 model answers as it would with the graft on. Entries that change nothing are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from skillgraft.errors import InputError, listed
from skillgraft.live.binding import BoundGraft
from skillgraft.live.grafted import as_numpy, check_reach, why_not
from skillgraft.live.row_forms import Columns, Entries, RowForms
from skillgraft.values.graft import Graft
from skillgraft.values.numbers import Array

_NONE: Entries = (np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.float32))


@dataclass(frozen=True, eq=False)
class RowSkill:
    """Entries sorted by module; within a module by the wider of its two sides, so that a batch walks through memory."""

    counts: npt.NDArray[np.int64]  # entries in each module
    inputs: Columns
    outputs: Columns
    delta: npt.NDArray[np.float32]

    @cached_property
    def _ends(self) -> list[int]:
        return [0, *np.cumsum(self.counts).tolist()]

    def entries(self, index: int) -> Entries:
        """What it changes in one module."""
        part = slice(self._ends[index], self._ends[index + 1])
        return self.inputs[part], self.outputs[part], self.delta[part]

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(array.nbytes for array in (self.counts, self.inputs, self.outputs, self.delta))


def row_skill(graft: Graft, forms: RowForms) -> RowSkill:
    """The skill of a graft, or the refusal: of another base, or in a parameter that has no per-row form."""
    check_reach(graft, forms.stored)
    bound = BoundGraft(graft, forms.stored.slots)
    if not bound.holds(bound.before):
        raise why_not(graft, bound)
    _check_forms(graft, forms)
    found: list[list[Entries]] = [[] for _ in forms.modules]
    for name, at, delta in _changes(graft, forms):
        moved = delta != 0
        flat = at[moved] + forms.stored.slots[name].low
        for index, key in forms.owners(name):
            found[index] += forms.modules[index].entries(key, flat, delta[moved])
    parts = [_sorted(pieces, forms, index) for index, pieces in enumerate(found)]
    counts = np.array([len(delta) for _, _, delta in parts], np.int64)
    inputs, outputs = (np.concatenate([_NONE[which], *(part[which] for part in parts)]) for which in (0, 1))
    return RowSkill(counts, inputs, outputs, np.concatenate([_NONE[2], *(delta for _, _, delta in parts)]))


def _check_forms(graft: Graft, forms: RowForms) -> None:
    refused = forms.refusals([*graft.region.sites, *graft.heads])
    if refused:
        reasons = [f"{name}: {reason}" for name, reason in refused.items()]
        raise InputError(
            f"the graft changes what cannot differ from row to row: {listed(reasons, most=3)}; put it on the whole model with "
            "grafted(), or restrict it to the layers' matrices (graft & region)"
        )


def _changes(graft: Graft, forms: RowForms) -> list[tuple[str, Array, npt.NDArray[np.float32]]]:
    """Each tensor's sites and deltas; of a head every entry, against the model's own head."""
    found = []
    for name, at in graft.region.sites.items():
        found.append((name, at, _delta(graft.written(name), graft.before[name])))
    for name, head in graft.heads.items():
        ours = as_numpy(forms.stored.slots[name].data).reshape(-1)
        found.append((name, np.arange(head.size), _delta(head.reshape(-1), ours)))
    return found


def _delta(after: Array, before: Array) -> npt.NDArray[np.float32]:
    difference: npt.NDArray[np.float32] = after.astype(np.float32) - before.astype(np.float32)
    return difference


def _sorted(pieces: list[Entries], forms: RowForms, index: int) -> Entries:
    if not pieces:
        return _NONE
    inputs, outputs = (np.concatenate([piece[which] for piece in pieces]) for which in (0, 1))
    module = forms.modules[index]
    order = np.argsort(outputs if module.output_width >= module.input_width else inputs, kind="stable")
    return inputs[order], outputs[order], np.concatenate([delta for _, _, delta in pieces])[order]
