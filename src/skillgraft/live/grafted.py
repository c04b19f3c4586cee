"""Grafts on live torch models: put on, taken off, switched, in time that follows the graft and not the model.

    with grafted(model, g):
        model(**batch)          # the skill is on
    # every number is what it was, bit for bit, also after an exception

The numbers at a graft's sites must be its `before`: so a wrong base, a graft that is on already, or one that overlaps
another is refused before anything is written. Taking off proves that the sites still hold what was put there, then copies
`before` back. Every write raises the version of the parameters that it touches: backward through a graph from before the
write fails instead of being silently wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
from torch import Tensor, nn

from skillgraft.errors import AlreadyApplied, InputError, NotApplied, Overlap, SkillgraftError, WrongBase, listed
from skillgraft.folders.checkpoint import MemoryTensors, fingerprint
from skillgraft.live.binding import BoundGraft
from skillgraft.live.slots import Stored, layout, rearranged, stored
from skillgraft.opening.compat import table_ids
from skillgraft.values.graft import Graft, GraftLike, graft_of
from skillgraft.values.names import body_prefix, counting_order
from skillgraft.values.numbers import BFLOAT16, Array
from skillgraft.values.region import Region


@contextmanager
def grafted(model: nn.Module, graft: GraftLike) -> Iterator[nn.Module]:
    """The model with the graft on; the exact old numbers come back on exit. Disjoint grafts may be nested.

    If something wrote to the sites meanwhile, the old numbers come back all the same, and then that is an error. The body's own
    exception always comes through; such an error becomes a note on it.
    """
    live, graft = live_model(model), graft_of(graft)
    live.put_on(graft)
    try:
        yield model
    except BaseException as error:
        trouble = live._leave(graft)
        if trouble is not None:
            error.add_note(f"skillgraft: {trouble}")
        raise
    trouble = live._leave(graft)
    if trouble is not None:
        raise trouble


def live_model(model: nn.Module) -> LiveModel:
    """The model's own LiveModel: one per model, so that everybody knows what is on it."""
    model = _transformer(model)
    if model not in _LIVE:
        _LIVE[model] = LiveModel(model)
    return _LIVE[model]


def _transformer(model: nn.Module) -> nn.Module:
    """The model itself, or what a SentenceTransformer wraps with its pooling."""
    if type(model).__name__ != "SentenceTransformer":
        return model
    inner = getattr(model, "transformers_model", None) or getattr(next(model.children()), "auto_model", None)
    return inner if isinstance(inner, nn.Module) else model


def tensors_of(model: nn.Module) -> MemoryTensors:
    """What the model's folder stores, under prefix-free names, as numpy views that share the memory (CPU models).

    A tied parameter appears once, under the name that counts in a folder too: the body's own, the shortest. One that the folder
    stores in another order has the model's own name and order.
    """
    found = stored(model).slots
    counted = {found[name].identity: name for name in sorted(found, key=counting_order, reverse=True)}
    return MemoryTensors({name: as_numpy(found[name].data) for name in sorted(counted.values())})


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
    renamed = layout(model).renamed
    tensors = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return {name: renamed(name) for name, _ in tensors}


def fingerprint_of(model: nn.Module) -> str:
    """The base fingerprint of a live model: the same as its folder's."""
    unstored = stored(model).unstored
    views = {name: array for name, array in tensors_of(model).arrays.items() if name not in unstored}
    return fingerprint(MemoryTensors(views | {name: as_numpy(copy) for name, copy in rearranged(model).items()}))


def number_formats(model: nn.Module, names: Iterable[str]) -> dict[str, np.dtype[Any]]:
    """In which number format the model holds each of these tensors; names that it does not have are left out."""
    held = stored(model).slots
    return {name: as_numpy(held[name].tensor.new_empty(0)).dtype for name in names if name in held}


def graft_between(base: nn.Module, tuned: nn.Module, region: Region, **rest: Any) -> Graft:
    """The exact graft that turns the live base into the live tuned model inside `region`."""
    before, after = tensors_of(base).arrays, tensors_of(tuned).arrays
    return Graft.between(before, after, region, base_fingerprint=fingerprint_of(base), **rest)


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
        self._tables, self._stored = table_ids(model), stored(model)
        self._on: list[tuple[Graft, BoundGraft]] = []
        self._bound: WeakKeyDictionary[Graft, BoundGraft] = WeakKeyDictionary()

    @property
    def on(self) -> tuple[Graft, ...]:
        """The grafts that are on, in the order in which they came."""
        return tuple(graft for graft, _ in self._on)

    def put_on(self, graft: Graft) -> None:
        """Write the graft's numbers, after proving that its `before` stands at every site."""
        bound = self._bind(graft)
        self._check_apart(graft)
        if not bound.holds(bound.before):
            raise why_not(graft, bound)
        bound.write(bound.after)
        self._on.append((graft, bound))

    def take_off(self, graft: Graft, *, force: bool = False) -> None:
        """Copy the old numbers back, after proving that the sites hold what was put there; `force` does without the proof."""
        here, bound = self._find(graft)
        if not force and not here.holds(bound.after):
            raise WrongBase(
                f"{_changed(graft, here, bound)}; nothing was written now. Take it off all the same, with the old numbers back "
                "at its sites: take_off(graft, force=True)"
            )
        here.write(bound.before)
        self._on = [(on, other) for on, other in self._on if other is not bound]

    def switch(self, graft: Graft | None) -> None:
        """Take off everything that is on, and put this graft on instead (None: nothing). If it is refused, nothing changes."""
        before = self.on
        try:
            for on in reversed(before):
                self.take_off(on)
            if graft is not None:
                self.put_on(graft)
        except SkillgraftError:
            for on in before[len(self.on) :]:
                self.put_on(on)
            raise

    def _leave(self, graft: Graft) -> Exception | None:
        """Take off as well as possible. What was wrong is returned: the caller may have an exception that matters more."""
        try:
            here, bound = self._find(graft)
            trouble = None if here.holds(bound.after) else _changed(graft, here, bound)
            self.take_off(graft, force=True)
        except Exception as error:  # torch's own errors, too
            return error
        if trouble is None:
            return None
        return WrongBase(f"{trouble}; the old numbers are back. Take a graft off before its model is trained or loaded")

    def _find(self, graft: Graft) -> tuple[BoundGraft, BoundGraft]:
        """The graft as it stands in the model now, and as it was when it came on."""
        found = [bound for on, bound in self._on if on.digest == graft.digest]
        if not found:
            raise NotApplied(f"{graft!r} is not on this model; on it: {list(self.on)}")
        self._look_up()
        if found[0].is_current(self._stored.slots):
            return found[0], found[0]
        return BoundGraft(graft, self._stored.slots), found[0]  # the model moved while the graft was on

    def _look_up(self) -> None:
        """Find the parameters again if a submodule was replaced: the old one's would be written without any effect."""
        model = self._model()
        if model is not None and self._tables != (ids := table_ids(model)):
            self._tables, self._stored = ids, stored(model)

    def _bind(self, graft: Graft) -> BoundGraft:
        self._look_up()
        check_reach(graft, self._stored)
        bound = self._bound.get(graft)
        if bound is not None and not bound.is_current(self._stored.slots):
            self._bound.clear()  # the model moved: views of the old parameters would keep them in memory
            bound = None
        if bound is None or graft.heads:  # the model's own head may have changed since
            bound = BoundGraft(graft, self._stored.slots)
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


def check_reach(graft: Graft, model: Stored) -> None:
    """Raise if the graft changes what no parameter of the model holds in the folder's order."""
    lost = model.out_of_reach & (graft.region.sites.keys() | graft.heads.keys()) if model.out_of_reach else ()
    if lost:
        raise InputError(
            f"the graft changes {listed(sorted(lost))}, which transformers fuses or transposes on loading: no parameter of this "
            "model holds these numbers in the folder's order; apply the graft to the folder, and load the folder that this gives"
        )


def _changed(graft: Graft, here: BoundGraft, bound: BoundGraft) -> str:
    name, differ, count = here.worst_mismatch(bound.after)
    return f"the model was changed while {graft!r} was on: in {name} {differ} of {count} sites hold other numbers"


def why_not(graft: Graft, bound: BoundGraft) -> SkillgraftError:
    """The error for a graft whose `before` does not stand in the model."""
    if bound.holds(bound.after):
        return AlreadyApplied(f"this model holds the numbers of {graft!r} already, at all {len(graft)} sites")
    name, differ, count = bound.worst_mismatch(bound.before)
    return WrongBase(
        f"this model is not the graft's base: in {name} {differ} of {count} sites hold other numbers; the graft was made "
        f"for {graft.info.text('base') or 'an unnamed base'} (fingerprint {graft.base_fingerprint[:12]}…)"
    )
