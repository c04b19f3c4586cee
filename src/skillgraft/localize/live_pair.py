"""A live base model and whatever is given as its tuned numbers, matched name by name.

Nothing is skipped silently: tensors of another shape or format, and tensors that the base does not have, are refused; what
changed outside the scope is counted.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from torch import Tensor, nn

from skillgraft.checkpoint import Checkpoint, MemoryTensors, Tensors
from skillgraft.dtypes import Array, bits, same_bits
from skillgraft.errors import InputError, listed
from skillgraft.graft import Graft
from skillgraft.live import as_numpy, fingerprint_of, parameter_names, saved_names
from skillgraft.names import body_prefix, is_head
from skillgraft.region import Region, Scope

State = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class LivePair:
    """A model with the base's numbers, and tuned's under the same prefix-free names.

    `before` shares the model's memory where it can: it tells the base's numbers while the model holds them.
    """

    model: nn.Module
    before: MemoryTensors
    after: Tensors
    fingerprint: str

    @classmethod
    def of(cls, base: nn.Module | State, tuned: nn.Module | State | str | Path) -> LivePair:
        """Of two models, or a model and a state dict, or a model and tuned's folder."""
        model = _model(base, tuned)
        names = _names(model)
        before = MemoryTensors({name: as_numpy(tensor) for name, tensor in names.items()})
        pair = cls(model, before, _tuned(model, names, tuned), fingerprint_of(model))
        _check_same_form(pair.before, pair.after)
        return pair

    @cached_property
    def heads(self) -> dict[str, Array]:
        """Tuned's own heads: they travel whole."""
        return {
            name: self.after.flat(name).reshape(self.after.shapes[name]).copy()
            for name in parameter_names(self.model)
            if is_head(name)
            and name in self.after.shapes
            and not same_bits(self.before.flat(name), self.after.flat(name))
        }

    def outside(self, scope: Scope) -> dict[str, int]:
        """Tensor → entries that changed though neither the scope nor a head holds them."""
        rest = [
            n for n in self.before.arrays if n in self.after.shapes and n not in scope.shapes and n not in self.heads
        ]
        changed = {name: int((bits(self.before.flat(name)) != bits(self.after.flat(name))).sum()) for name in rest}
        return {name: count for name, count in changed.items() if count}

    def cut(self, region: Region) -> Graft:
        """The graft of this region, tuned's heads with it."""
        return Graft(
            region,
            {name: self.before.flat(name)[at] for name, at in region.sites.items()},
            {name: self.after.flat(name)[at] for name, at in region.sites.items()},
            heads=self.heads,
            base_fingerprint=self.fingerprint,
        )


def _model(base: nn.Module | State, tuned: object) -> nn.Module:
    """A model that holds the base's numbers: the base itself, or a copy of tuned with them."""
    if isinstance(base, nn.Module):
        return base
    if not isinstance(tuned, nn.Module):
        raise InputError("a loss needs a model to run: give base or tuned as a torch module, found none")
    model = copy.deepcopy(tuned)
    try:
        model.load_state_dict(base)
    except RuntimeError as error:
        raise InputError(f"base's numbers do not fit the tuned model: {error}") from error
    return model


def _names(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and saved buffers under prefix-free names; a tied one once."""
    short, stored = _short_names(model), model.state_dict().keys()
    buffers = {short[name]: tensor for name, tensor in model.named_buffers() if name in stored}
    return {**parameter_names(model), **buffers}


def _short_names(model: nn.Module) -> dict[str, str]:
    """Every name by which a tensor may be called (the model's, its folder's, without prefix) → its prefix-free name."""
    saved = saved_names(model)
    prefix = body_prefix(saved[name] for name, _ in model.named_parameters())
    short = {raw: name.removeprefix(prefix) for raw, name in saved.items()}
    return {**{name: name for name in short.values()}, **{saved[raw]: name for raw, name in short.items()}, **short}


def _tuned(model: nn.Module, names: Mapping[str, Tensor], tuned: nn.Module | State | str | Path) -> Tensors:
    short = _short_names(model)
    if isinstance(tuned, str | Path):
        folder = Checkpoint.open(tuned)
        _check_known(folder.shapes.keys() - folder.twins.keys() - short.keys())
        return folder
    state = tuned.state_dict() if isinstance(tuned, nn.Module) else tuned
    _check_known(state.keys() - short.keys())
    found = {short[name]: as_numpy(tensor) for name, tensor in state.items()}
    return MemoryTensors({name: found[name] for name in names if name in found})


def _check_known(odd: set[str]) -> None:
    if odd:
        raise InputError(
            f"tuned has {len(odd)} tensors that base does not have: {listed(sorted(odd))}; "
            "give base and tuned of one architecture"
        )


def _check_same_form(before: Tensors, after: Tensors) -> None:
    for name in sorted(before.shapes.keys() & after.shapes.keys()):
        ours, theirs = (f"{list(side.shapes[name])} of {np.dtype(side.dtypes[name])}" for side in (before, after))
        if ours != theirs:
            raise InputError(
                f"{name} is {ours} in base and {theirs} in tuned; give base and tuned of one shape and format"
            )
