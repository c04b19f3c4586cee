"""What every method that chooses a region is given: a model, tuned's numbers for it, and a loss on batches.

The model holds the base's numbers. While it is borrowed its parameters have numbers of their own, and where only some entries
change (`among`, `holding`) these are kept and copied back: afterwards it has the old ones, whatever happened in between. Base's
and tuned's numbers stay where they are, in mapped files if they were loaded from such: tuned − base is computed tensor by tensor,
whenever it is needed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from skillgraft.errors import InputError, RunError, listed
from skillgraft.files.graft_file import load_region
from skillgraft.folders.checkpoint import Checkpoint, Tensors
from skillgraft.folders.movement import count_of, most_moved
from skillgraft.live.grafted import as_numpy, as_torch
from skillgraft.live.slots import Slot, slots, stored
from skillgraft.opening.processes import ALONE, Processes
from skillgraft.opening.shards import is_split
from skillgraft.predictions.predict import evaluating
from skillgraft.regions.ranking import Numbers, Ranking, at_positions, starts_of
from skillgraft.values.numbers import BFLOAT16, Array, blended
from skillgraft.values.region import Indices, Region, Scope

Loss = Callable[[nn.Module, Any], Tensor]
# One step's batches, each with its weight in the step's loss. Of several processes each gives its own batches.
Step = Iterable[tuple[Any, float]]
Reference = Literal["base", "zero"]
Start = float | str | Path | Region
EMPTY = "empty"  # a γ_base without entries
_BLOCK = 1 << 19  # entries


@dataclass(frozen=True)
class Problem:
    """Where to look for a skill.

    `slots` say where the scope's tensors live in the model; `before` and `after` are base's and tuned's numbers, in their own
    formats, those of this process where the model is split. The change that is searched is scale · (after − reference); the
    reference is `before`, or 0 (P1's lottery test).
    `steps(s)` gives the batches of step s, `loss` the mean loss of a batch.
    """

    model: nn.Module
    scope: Scope
    slots: Mapping[str, Slot]
    before: dict[str, Tensor]
    after: Mapping[str, Tensor]
    steps: Callable[[int], Step]
    loss: Loss
    reference: Reference = "base"
    scale: float = 1.0
    processes: Processes = ALONE

    @classmethod
    def between(
        cls,
        model: nn.Module,
        tuned: Tensors,
        *,
        steps: Callable[[int], Step],
        loss: Loss,
        scope: str = "layers",
        reference: Reference = "base",
        processes: Processes = ALONE,
    ) -> Problem:
        """The problem of a model that holds the base's numbers and of the tuned numbers (prefix-free names)."""
        if reference not in ("base", "zero"):
            raise InputError(f"the reference is 'base' or 'zero', found {reference!r}")
        held = slots(model)
        chosen = Scope.select(scope, {name: slot.stored_shape for name, slot in held.items()})
        missing = [n for n in chosen.shapes if tuple(tuned.shapes.get(n, ())) != chosen.shapes[n]]
        if missing:
            raise InputError(f"tuned is not of this model: {listed(missing)} are missing there or have another shape")
        inside = {name: held[name] for name in chosen.shapes}
        before = {name: slot.flat.detach() for name, slot in inside.items()}
        after = _Numbers(tuned, {name: numbers.device for name, numbers in before.items()}, inside)
        return cls(model, chosen, inside, before, after, steps, loss, reference, processes=processes)

    def resident(self) -> Problem:
        """The same with tuned's numbers on the model's device, for who needs all of them at every step."""
        return replace(self, after=dict(self.after))

    def scaled(self, factor: float) -> Problem:
        """The same with a multiple of tuned's change."""
        return replace(self, scale=self.scale * factor)

    @property
    def parameters(self) -> list[Tensor]:
        """The model's own parameters that hold the scope, each once: a fused one holds several of the scope's tensors."""
        return list({id(slot.tensor): slot.tensor for slot in self.slots.values()}.values())

    @property
    def device(self) -> torch.device:
        """Where the numbers are."""
        return next(iter(self.before.values())).device

    def size(self, name: str) -> int:
        """How many entries of a tensor this process holds."""
        return len(self.before[name])

    def first(self, name: str) -> int:
        """The flat index of the first of these."""
        return self.slots[name].held[0]

    def numbers(self, name: str, low: int = 0, high: int | None = None) -> tuple[Tensor, Tensor]:
        """Entries [low, high) of the reference and of the change, in float32 or wider."""
        before, after = self.before[name][low:high], self.after[name][low:high]
        format = torch.promote_types(before.dtype, torch.float32)
        base = before.to(format)
        reference = base if self.reference == "base" else torch.zeros_like(base)
        change = torch.sub(after.to(format), reference)
        return reference, change if self.scale == 1.0 else change.mul_(self.scale)

    def delta(self, name: str) -> Tensor:
        """The change of one tensor, flat."""
        return self.numbers(name)[1]

    def delta_at(self, name: str, at: Tensor) -> tuple[Tensor, Tensor]:
        """Reference and change at some entries of one tensor."""
        some = replace(self, before={name: self.before[name][at]}, after={name: self.after[name][at]})
        return some.numbers(name)

    def grafted_at(self, name: str, at: Tensor) -> Tensor:
        """What a graft of this scale writes at some entries: tuned's own numbers, or a multiple of the change rounded once.

        The numbers have tuned's format, so that a folder which is searched in a wider one is not rounded otherwise than `apply`
        does it.
        """
        after = self.after[name][at]
        if self.scale == 1.0:
            return after
        before = self.before[name][at].to(after.dtype) if self.reference == "base" else torch.zeros_like(after)
        numbers = as_torch(blended(as_numpy(before), as_numpy(after), scale=self.scale)).to(after.device)
        return torch.where(before == after, before, numbers)  # where nothing moved even the sign of a zero stays

    def blocks(self, name: str) -> Iterator[tuple[int, int]]:
        """Stretches of a tensor: what is computed of one stays in a core's cache and takes no memory."""
        size = len(self.before[name])
        return ((low, min(low + _BLOCK, size)) for low in range(0, size, _BLOCK))

    def movement(self, name: str) -> npt.NDArray[np.floating[Any]]:
        """|change| of one tensor."""
        return as_numpy(self.delta(name).abs_())

    def indices(self, name: str, at: Indices) -> Tensor:
        """Flat indices of a tensor, those that this process holds and counted from its first; on the model's device."""
        low, high = self.slots[name].held
        mine = np.array(at[slice(*np.searchsorted(at, (low, high)))], np.int64) - low
        return torch.from_numpy(mine).to(self.before[name].device)

    def region(self, sites: Mapping[str, Tensor]) -> Region:
        """The region of every process's entries; each gives its own, counted from its first."""
        if not self.processes.split:
            return Region(self.scope, {name: as_numpy(at) for name, at in sites.items() if len(at)})
        return at_positions(self.scope, np.sort(as_numpy(self.processes.gathered(self.positions(sites)))))

    def positions(self, sites: Mapping[str, Tensor]) -> Tensor:
        """Where these entries stand among all of the scope's, the sites of one tensor after another."""
        starts = dict(zip(self.scope.shapes, starts_of(self.scope), strict=False))
        found = [at.to(torch.int64) + (starts[name] + self.first(name)) for name, at in sites.items()]
        return torch.cat([torch.zeros(0, dtype=torch.int64, device=self.device), *found])

    def ranking(self, scores: Numbers, *, most: int) -> Ranking:
        """The scope's entries by a score that each process has for its own; ties go by the change."""
        firsts = {name: self.first(name) for name in self.slots}
        return Ranking(self.scope, scores, self.movement, most=most, firsts=firsts, processes=self.processes)

    @contextmanager
    def borrowed(self) -> Iterator[None]:
        """The model in eval mode, with gradients for the scope alone and numbers there that may be written to."""
        with self._in_place() if self.processes.split else self._swapped(), self.asked(self.parameters):
            yield

    @contextmanager
    def _swapped(self) -> Iterator[None]:
        """Copies that may be written to in the place of the model's own numbers."""
        kept = [(parameter, parameter.data) for parameter in self.parameters]
        for parameter, numbers in kept:
            parameter.data = numbers.clone()
        try:
            yield
        finally:
            for parameter, numbers in kept:
                parameter.data = numbers

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        """A split model is put together from where its numbers are: the base's are copied out, and copied back."""
        for name, slot in self.slots.items():
            self.before[name] = slot.flat.clone()
        try:
            yield
        finally:
            for name, slot in self.slots.items():
                slot.flat.copy_(self.before[name])
                self.before[name] = slot.flat

    @contextmanager
    def asked(self, wanted: Sequence[Tensor]) -> Iterator[None]:
        """The model in eval mode with gradients for these parameters alone; what it had of gradients comes back."""
        switches = {p: p.requires_grad for p in self.model.parameters()}
        kept = [(parameter, parameter.grad) for parameter in self.parameters]
        for each in switches:
            each.requires_grad_(False)
        for parameter, _ in kept:
            parameter.grad = None
        for parameter in wanted:
            parameter.requires_grad_(True)
        try:
            with evaluating(self.model):
                yield
        finally:
            for parameter, gradient in kept:
                parameter.grad = gradient
            for each, grad in switches.items():
                each.requires_grad_(grad)

    @contextmanager
    def among(self, names: Iterable[str]) -> Iterator[Touched]:
        """The model in eval mode at the reference, with gradients for these tensors; what is written over is kept.

        Of the model nothing is copied, but where the reference is zero.
        """
        wanted = list({id(self.slots[name].tensor): self.slots[name].tensor for name in names}.values())
        with self.borrowed() if self.reference == "zero" else nullcontext():
            if self.reference == "zero":
                self.put_on(Region(self.scope, {}))
            touched = Touched(self)
            with self.asked(wanted):
                try:
                    yield touched
                finally:
                    touched.take_off()

    @contextmanager
    def holding(self, region: Region) -> Iterator[None]:
        """The model in eval mode as the region's graft makes it."""
        with self.among(()) as touched:
            touched.put_on({name: self.indices(name, at) for name, at in region.sites.items()})
            yield

    def backward(self, step: int) -> float:
        """Gradients of a step's loss at the model's present numbers; returns that loss."""
        for parameter in self.parameters:
            parameter.grad = None
        return self.summed(self.parameters, self.run(step), step)

    def run(self, step: int) -> float:
        """This process's batches of a step, forward and backward; returns its part of the loss."""
        total = 0.0
        for batch, share in self.steps(step):
            loss = _checked(self.loss(self.model, batch)) * share
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        return total

    def summed(self, tensors: Sequence[Tensor], loss: float, step: int) -> float:
        """The loss of all processes; the gradients of these tensors are added up over them."""
        here = [tensor for tensor in tensors if not is_split(tensor)]  # those of a split model arrive as sums
        total = self.processes.sum_gradients(here, loss, self.device)
        if not math.isfinite(total):
            raise RunError(
                f"the loss is {total} at step {step + 1}; at the first step look for such numbers in base, tuned and batches, "
                "later use a smaller learning rate"
            )
        return total

    def gradient(self, name: str) -> Tensor | None:
        """The gradient of one tensor, flat; None where the loss did not reach it."""
        slot = self.slots[name]
        grad = slot.tensor.grad
        return None if grad is None else slot.own(grad)

    @torch.no_grad()
    def write(self, name: str, numbers: Tensor, low: int = 0, high: int | None = None) -> None:
        """Write entries [low, high) of one tensor of the borrowed model, rounded to its format."""
        self.slots[name].flat[low:high] = numbers.to(self.before[name].dtype)

    @torch.no_grad()
    def put_on(self, region: Region) -> None:
        """The reference with the change in the region: bit for bit the model that the region's graft makes."""
        for name, slot in self.slots.items():
            flat = slot.flat
            flat.copy_(self.before[name]) if self.reference == "base" else flat.zero_()
            if name in region.sites:
                at = self.indices(name, region.sites[name])
                flat[at] = self.grafted_at(name, at).to(flat.dtype)


class Touched:
    """Entries of a problem's model that hold other numbers than the reference's, with what stood there before."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.kept: dict[str, tuple[Tensor, Tensor]] = {}

    @torch.no_grad()
    def put_on(self, sites: Mapping[str, Tensor]) -> None:
        """A graft's numbers at these entries, the reference's at all others."""
        self.take_off()
        for name, at in sites.items():
            flat = self._flat(name)
            self.kept[name] = at, flat[at]
            flat[at] = self.problem.grafted_at(name, at).to(flat.dtype)

    @torch.no_grad()
    def reference(self, name: str, at: Tensor) -> Tensor:
        """The reference's numbers at some entries of a tensor, which are kept from now on: `write` writes there."""
        earlier, numbers = self.kept.get(name, (None, None))
        if earlier is not at:
            flat = self._flat(name)
            if earlier is not None and numbers is not None:
                flat[earlier] = numbers
            self.kept[name] = at, flat[at]
        return self.kept[name][1]

    @torch.no_grad()
    def write(self, name: str, numbers: Tensor) -> None:
        """Other numbers at the entries whose reference is kept."""
        flat = self._flat(name)
        flat[self.kept[name][0]] = numbers.to(flat.dtype)

    @torch.no_grad()
    def take_off(self) -> None:
        """The reference's numbers everywhere."""
        for name, (at, numbers) in self.kept.items():
            self._flat(name)[at] = numbers
        self.kept.clear()

    def _flat(self, name: str) -> Tensor:
        return self.problem.slots[name].flat


class _Numbers(Mapping[str, Tensor]):
    """Tuned's numbers of some tensors, flat, of the entries that this process holds: mapped where they lie, brought to a device
    when they are asked for.
    """

    def __init__(self, tuned: Tensors, devices: Mapping[str, torch.device], slots: Mapping[str, Slot]) -> None:
        self._held = {name: held_numbers(tuned, name)[slice(*slots[name].held)] for name in devices}
        self._devices = devices

    def __getitem__(self, name: str) -> Tensor:
        return self._held[name].to(self._devices[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)


@contextmanager
def holding_all(model: nn.Module, tuned: Tensors) -> Iterator[None]:
    """The model in eval mode with every number of tuned, saved buffers too; afterwards it has its own back.

    Nothing is copied where formats agree.
    """
    kept: list[tuple[Tensor, Tensor]] = []
    parts: dict[int, list[tuple[str, Slot]]] = {}
    for name, slot in stored(model).slots.items():
        if name in tuned.shapes and tuple(tuned.shapes[name]) == slot.stored_shape:
            parts.setdefault(id(slot.tensor), []).append((name, slot))
    split: list[tuple[Slot, Tensor]] = []
    try:
        for group in parts.values():
            tensor = group[0][1].tensor
            if is_split(tensor):
                split += [(slot, slot.flat.clone()) for _, slot in group]
                for name, slot in group:
                    slot.flat.copy_(held_numbers(tuned, name)[slice(*slot.held)])
            else:
                kept.append((tensor, tensor.data))
                tensor.data = _filled(tuned, group)
        with evaluating(model):
            yield
    finally:
        for slot, numbers in split:
            slot.flat.copy_(numbers)
        for tensor, numbers in kept:
            tensor.data = numbers


def _filled(tuned: Tensors, group: list[tuple[str, Slot]]) -> Tensor:
    """The numbers of one parameter or buffer, which tuned stores as one tensor or several."""
    name, first = group[0]
    if first.is_whole:
        return held_numbers(tuned, name).to(first.data).view(first.stored_shape)
    whole = first.tensor.data.clone()
    for name, slot in group:
        slot.part(whole).copy_(held_numbers(tuned, name).view(slot.stored_shape))
    return whole


def held_numbers(tensors: Tensors, name: str) -> Tensor:
    """One tensor, flat: mapped, not copied, where it lies in a folder's file as it is."""
    return as_view(tensors.mapped(name) if isinstance(tensors, Checkpoint) else tensors.flat(name))


def as_view(array: Array) -> Tensor:
    """A torch view of a read-only numpy array, bfloat16 included. Nobody may write to it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        if array.dtype == BFLOAT16:
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)


def starting_region(start: Start, base: Tensors, tuned: Tensors, scope: Scope) -> Region:
    """γ_base: a density of the most moved entries, nothing ("empty"), a region, or its file."""
    if isinstance(start, Region):
        return start.within(scope)
    if start == EMPTY:
        return Region(scope, {})
    if isinstance(start, str | Path):
        return load_region(start).within(scope)
    return most_moved(base, tuned, scope, count_of(scope, density=start))


def _checked(loss: object) -> Tensor:
    """One number that the scope's parameters had a part in."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        found = f"shape {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise InputError(
            f"loss(model, batch) must give a tensor of one number, found {found}; take the mean over the rows"
        )
    if not loss.requires_grad:
        raise InputError(
            "the loss does not depend on the scope's parameters: compute it from the model's output, with gradients on, "
            "or choose another scope"
        )
    return loss.reshape(())
