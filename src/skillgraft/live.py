"""Grafts on live torch models: put on, taken off, switched, in time that follows the graft and not the model.

    with grafted(model, g):
        model(**batch)          # the skill is on
    # every number is what it was, bit for bit, also after an exception

The numbers at a graft's sites must be its `before`: so a wrong base, a graft that is on already, or one that overlaps
another is refused before anything is written, and taking off is copying `before` back. Every write raises the version of
the parameters that it touches: backward through a graph from before the write fails instead of being silently wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
from torch import Tensor, nn

from skillgraft.binding import Bound, Owner
from skillgraft.checkpoint import MemoryTensors, fingerprint
from skillgraft.dtypes import BFLOAT16, Array
from skillgraft.errors import AlreadyApplied, NotApplied, Overlap, SkillgraftError, WrongBase, listed
from skillgraft.graft import Graft
from skillgraft.names import body_prefix, counting_order
from skillgraft.region import Region


@contextmanager
def grafted(model: nn.Module, graft: Graft) -> Iterator[nn.Module]:
    """The model with the graft on; the exact old numbers come back on exit. Disjoint grafts may be nested."""
    live = live_model(model)
    live.put_on(graft)
    try:
        yield model
    finally:
        live.take_off(graft)


def live_model(model: nn.Module) -> LiveModel:
    """The model's own LiveModel: one per model, so that everybody knows what is on it."""
    if model not in _LIVE:
        _LIVE[model] = LiveModel(model)
    return _LIVE[model]


def tensors_of(model: nn.Module) -> MemoryTensors:
    """What the model's folder stores, under prefix-free names, as numpy views that share the memory (CPU models).

    A tied parameter appears once, under the name that counts in a folder too: the body's own, the shortest.
    """
    tensors = {name: table[key] for name, (table, key) in _owners(model).items()}
    names = sorted(tensors, key=counting_order, reverse=True)
    counted = {id(tensors[name]): name for name in names}
    return MemoryTensors({name: as_numpy(tensors[name]) for name in sorted(counted.values())})


def parameter_names(model: nn.Module) -> dict[str, nn.Parameter]:
    """The model's parameters under prefix-free names; a tied one once, under the name that comes first."""
    saved = saved_names(model)
    names = {saved[name]: parameter for name, parameter in model.named_parameters()}
    prefix = body_prefix(names)
    return {name.removeprefix(prefix): parameter for name, parameter in names.items()}


def saved_names(model: nn.Module) -> dict[str, str]:
    """Name of each parameter and buffer in the model → its name in the model's folder.

    transformers loads some architectures (ViT) under other names than it stores; a tensor that is stored in parts, or together
    with others, keeps the model's own name.
    """
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    plain = {name: name for name, _ in tensors}
    if not hasattr(model, "save_pretrained"):
        return plain
    from transformers.core_model_loading import revert_weight_conversion

    probes = {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors}
    stored = {id(probe): name for name, probe in revert_weight_conversion(model, dict(probes)).items()}
    return {name: stored.get(id(probe), name) for name, probe in probes.items()}


def fingerprint_of(model: nn.Module) -> str:
    """The base fingerprint of a live model: the same as its folder's."""
    return fingerprint(tensors_of(model))


def graft_between(base: nn.Module, tuned: nn.Module, region: Region, **rest: Any) -> Graft:
    """The exact graft that turns the live base into the live tuned model inside `region`."""
    before = tensors_of(base)
    return Graft.between(before.arrays, tensors_of(tuned).arrays, region, base_fingerprint=fingerprint(before), **rest)


def as_numpy(tensor: Tensor) -> Array:
    """A numpy view of a CPU tensor (bfloat16 through ml_dtypes); tensors elsewhere are copied over."""
    plain = tensor.detach().cpu()
    if plain.dtype == torch.bfloat16:
        return plain.view(torch.int16).numpy().view(BFLOAT16)
    return plain.numpy()


def as_torch(array: Array) -> Tensor:
    """A torch copy of a numpy array (bfloat16 included)."""
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


class LiveModel:
    """A torch model whose parameters were looked up once, and the grafts that are on it."""

    def __init__(self, model: nn.Module) -> None:
        self._model = ref(model)  # weak, like the keys below: what nobody else uses must not stay in memory
        self._tables, self._owners = _tables(model), _owners(model)
        self._on: list[tuple[Graft, Bound]] = []
        self._bound: WeakKeyDictionary[Graft, Bound] = WeakKeyDictionary()

    @property
    def on(self) -> tuple[Graft, ...]:
        """The grafts that are on, in the order in which they came."""
        return tuple(graft for graft, _ in self._on)

    def put_on(self, graft: Graft) -> None:
        """Write the graft's numbers, after proving that its `before` stands at every site."""
        bound = self._bind(graft)
        self._check_apart(graft)
        if not bound.holds(bound.before):
            raise _why_not(graft, bound)
        bound.write(bound.after)
        self._on.append((graft, bound))

    def take_off(self, graft: Graft) -> None:
        """Copy the old numbers back."""
        found = [bound for on, bound in self._on if on.digest == graft.digest]
        if not found:
            raise NotApplied(f"{graft!r} is not on this model; on it: {list(self.on)}")
        self._look_up()
        here = found[0].is_current(self._owners)
        place = found[0] if here else Bound(graft, self._owners)  # the model moved while the graft was on
        place.write(found[0].before)
        self._on = [(on, bound) for on, bound in self._on if on.digest != graft.digest]

    def switch(self, graft: Graft | None) -> None:
        """Take off everything that is on, and put this graft on instead (None: nothing). If it is refused, nothing changes."""
        before = self.on
        for on in reversed(before):
            self.take_off(on)
        try:
            if graft is not None:
                self.put_on(graft)
        except SkillgraftError:
            for on in before:
                self.put_on(on)
            raise

    def _look_up(self) -> None:
        """Find the parameters again if a submodule was replaced: the old one's would be written without any effect."""
        model = self._model()
        if model is not None and self._tables != (tables := _tables(model)):
            self._tables, self._owners = tables, _owners(model)

    def _bind(self, graft: Graft) -> Bound:
        self._look_up()
        bound = self._bound.get(graft)
        if bound is not None and not bound.is_current(self._owners):
            self._bound.clear()  # the model moved: views of the old parameters would keep them in memory
            bound = None
        if bound is None or graft.heads:  # the model's own head may have changed since
            bound = Bound(graft, self._owners)
            self._bound[graft] = bound
        return bound

    def _check_apart(self, graft: Graft) -> None:
        for on in self.on:
            if on.digest == graft.digest:
                raise AlreadyApplied(f"{graft!r} is on this model already")
            heads = sorted(on.heads.keys() & graft.heads.keys())
            shared = len(on.region & graft.region)
            if shared or heads:
                what = f"{shared} entries" if shared else f"the heads {listed(heads)}"
                raise Overlap(f"{graft!r} shares {what} with {on!r}, which is on; put on their sum instead: g + h")


_LIVE: WeakKeyDictionary[nn.Module, LiveModel] = WeakKeyDictionary()


def _tables(model: nn.Module) -> list[int]:
    """Which tables of parameters the model has: another answer means that a submodule came, went or was replaced."""
    modules: list[nn.Module | None] = [model]
    for module in modules:
        if module is not None and module._modules:
            modules.extend(module._modules.values())
    return [id(module._parameters) for module in modules if module is not None]


def _owners(model: nn.Module) -> dict[str, Owner]:
    """Prefix-free name → (the module's own table, key). Tied parameters appear under each of their names.

    Buffers that are computed and never saved (rotary frequencies) are not part of the model's numbers.
    """
    saved = saved_names(model)
    found: dict[str, Owner] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for table in (module._parameters, module._buffers):
            for key, tensor in table.items():
                if tensor is not None and key not in module._non_persistent_buffers_set:
                    name = f"{path}.{key}" if path else key
                    found[saved.get(name, name)] = (table, key)
    prefix = body_prefix(found)
    return {name.removeprefix(prefix): owner for name, owner in found.items()}


def _why_not(graft: Graft, bound: Bound) -> SkillgraftError:
    if bound.holds(bound.after):
        return AlreadyApplied(f"this model holds the numbers of {graft!r} already, at all {len(graft)} sites")
    name, differ, count = bound.worst_mismatch()
    return WrongBase(
        f"this model is not the graft's base: in {name} {differ} of {count} sites hold other numbers; the graft was made "
        f"for {graft.info.text('base') or 'an unnamed base'} (fingerprint {graft.base_fingerprint[:12]}…)"
    )
