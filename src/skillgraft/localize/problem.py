"""What every way to choose a region is given: a model, how tuned differs from it, and a loss on batches.

The model holds the base's numbers. They are never written to: while it is borrowed its parameters have numbers of their own,
and afterwards they have the old ones back, whatever happened in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from skillgraft.checkpoint import Tensors
from skillgraft.errors import InputError, RunError, listed
from skillgraft.graft_file import load_region
from skillgraft.live import as_numpy, as_torch, parameter_names
from skillgraft.movement import most_moved
from skillgraft.region import Region, Scope
from skillgraft.training.processes import ALONE, Processes

Loss = Callable[[nn.Module, Any], Tensor]
# One step's batches, each with its share of the step's rows. Of several processes each gives its own batches.
Step = Iterable[tuple[Any, float]]
Reference = Literal["base", "zero"]
Start = float | str | Path | Region
EMPTY = "empty"  # a γ_base without entries


@dataclass(frozen=True)
class Problem:
    """Where to look for a skill.

    `parameters` are the model's own, in the scope, under prefix-free names; `reference` are the model's own numbers (float32
    copies where it is narrower), which may lie in a mapped file, and `delta` = tuned − reference. `steps(s)` gives the batches of
    step s, `loss` the mean loss of a batch.
    """

    model: nn.Module
    scope: Scope
    parameters: Mapping[str, nn.Parameter]
    reference: Mapping[str, Tensor]
    delta: Mapping[str, Tensor]
    steps: Callable[[int], Step]
    loss: Loss
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
        """The problem of a model that holds the base's numbers and of the tuned numbers (prefix-free names).

        `reference="zero"` is P1's lottery test (fig. 4b): what is not in the region is 0 instead of the base's number.
        """
        if reference not in ("base", "zero"):
            raise InputError(f"the reference is 'base' or 'zero', found {reference!r}")
        names = parameter_names(model)
        chosen = Scope.select(scope, {name: tuple(parameter.shape) for name, parameter in names.items()})
        missing = [n for n in chosen.shapes if tuple(tuned.shapes.get(n, ())) != chosen.shapes[n]]
        if missing:
            raise InputError(f"tuned is not of this model: {listed(missing)} are missing there or have another shape")
        parameters = {name: names[name] for name in chosen.shapes}
        start, delta = {}, {}
        for name, parameter in parameters.items():
            wide = torch.promote_types(parameter.dtype, torch.float32)
            nothing = torch.zeros((), dtype=wide, device=parameter.device).expand_as(parameter)  # takes no memory
            start[name] = parameter.detach().to(wide) if reference == "base" else nothing
            # as_torch copies, so that the subtraction can take place there.
            delta[name] = as_torch(tuned.flat(name)).view(parameter.shape).to(start[name]).sub_(start[name])
        return cls(model, chosen, parameters, start, delta, steps, loss, processes)

    def amplified(self, factor: float) -> Problem:
        """The same with a multiple of tuned's change."""
        if factor == 1.0:
            return self
        return replace(self, delta={name: delta * factor for name, delta in self.delta.items()})

    @contextmanager
    def borrowed(self) -> Iterator[None]:
        """The model in eval mode, with gradients for the scope alone and numbers there that may be written to."""
        was_training = {module: module.training for module in self.model.modules()}
        wanted = {p: p.requires_grad for p in self.model.parameters()}
        gradients = {name: parameter.grad for name, parameter in self.parameters.items()}
        numbers = {name: parameter.data for name, parameter in self.parameters.items()}
        self.model.eval()
        for parameter in self.model.parameters():
            parameter.requires_grad_(False)
        for name, parameter in self.parameters.items():
            parameter.data = numbers[name].clone()
            parameter.grad = None
            parameter.requires_grad_(True)
        try:
            yield
        finally:
            for name, parameter in self.parameters.items():
                parameter.data = numbers[name]
                parameter.grad = gradients[name]
            for parameter, grad in wanted.items():
                parameter.requires_grad_(grad)
            for module, training in was_training.items():
                module.training = training

    def backward(self, step: int) -> float:
        """Gradients of the mean loss of a step's rows at the model's present numbers; returns that loss."""
        for parameter in self.parameters.values():
            parameter.grad = None
        total = 0.0
        for batch, share in self.steps(step):
            loss = _checked(self.loss(self.model, batch)) * share
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        total = self.processes.sum_gradients(list(self.parameters.values()), total)
        if not math.isfinite(total):
            raise RunError(
                f"the loss is {total} at step {step + 1}; at the first step look for such numbers in base, tuned and batches, "
                "later use a smaller learning rate"
            )
        return total

    def movement(self, name: str) -> npt.NDArray[np.floating[Any]]:
        """|delta| of one parameter."""
        return as_numpy(self.delta[name].abs())

    @torch.no_grad()
    def put_on(self, region: Region) -> None:
        """The reference with tuned's change in the region: the grafted model."""
        for name, parameter in self.parameters.items():
            reference, delta = self.reference[name], self.delta[name]
            parameter.copy_(reference)
            at = region.sites.get(name)
            if at is not None:
                places = torch.from_numpy(np.array(at, np.int64)).to(parameter.device)
                numbers = reference.reshape(-1)[places] + delta.view(-1)[places]
                parameter.view(-1)[places] = numbers.to(parameter.dtype)

    @contextmanager
    def all_of(self, tuned: Tensors) -> Iterator[None]:
        """The model with every number of tuned, outside the scope too; afterwards it is as it was."""
        names = parameter_names(self.model)
        theirs = {name: p for name, p in names.items() if tuned.shapes.get(name) == tuple(p.shape)}
        saved: dict[str, Tensor] = {}
        with self.borrowed(), torch.no_grad():
            try:
                for name, parameter in theirs.items():
                    numbers = as_torch(tuned.flat(name)).view(parameter.shape).to(parameter)
                    if torch.equal(numbers, parameter):
                        continue
                    if name not in self.parameters:
                        saved[name] = parameter.detach().clone()
                    parameter.copy_(numbers)
                yield
            finally:
                for name, numbers in saved.items():
                    names[name].copy_(numbers)


def starting_region(start: Start, base: Tensors, tuned: Tensors, scope: Scope) -> Region:
    """γ_base: a density (or count) of the most moved entries, nothing ("empty"), a region, or its file."""
    if isinstance(start, Region):
        return start.within(scope)
    if start == EMPTY:
        return Region(scope, {})
    if isinstance(start, str | Path):
        return load_region(start).within(scope)
    return most_moved(base, tuned, scope, start)


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
