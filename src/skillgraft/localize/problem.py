"""What every way to choose a region is given: a model, how tuned differs from it, and a loss on batches.

The model holds the reference's numbers and is given back as it was, bit for bit, whatever happens in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from skillgraft.checkpoint import Tensors
from skillgraft.errors import InputError, listed
from skillgraft.live import as_torch, parameter_names
from skillgraft.readouts.readout import Batch
from skillgraft.region import Region, Scope

Loss = Callable[[nn.Module, Batch], Tensor]
# One step's batches with the share of the step's rows that each holds.
Step = Sequence[tuple[Batch, float]]
Reference = Literal["base", "zero"]


@dataclass(frozen=True)
class Problem:
    """Where to look for a skill.

    `parameters` are the model's own, in the scope, under prefix-free names; `reference` and `delta` = tuned − reference are
    copies. `steps(s)` gives the batches of step s, `loss` the mean loss of a batch.
    """

    model: nn.Module
    scope: Scope
    parameters: Mapping[str, nn.Parameter]
    reference: Mapping[str, Tensor]
    delta: Mapping[str, Tensor]
    original: Mapping[str, Tensor] | None  # the model's own numbers where the reference is not they
    steps: Callable[[int], Step]
    loss: Loss

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
    ) -> Problem:
        """The problem of a model that holds the base's numbers and of the tuned numbers (prefix-free names).

        `reference="zero"` is P1's lottery test (fig. 4b): what is not in the region is 0 instead of the base's number.
        """
        names = parameter_names(model)
        chosen = Scope.select(scope, {name: tuple(parameter.shape) for name, parameter in names.items()})
        missing = [n for n in chosen.shapes if tuple(tuned.shapes.get(n, ())) != chosen.shapes[n]]
        if missing:
            raise InputError(f"tuned is not of this model: {listed(missing)} are missing there or have another shape")
        parameters = {name: names[name] for name in chosen.shapes}
        start, delta = {}, {}
        for name, parameter in parameters.items():
            after = as_torch(tuned.flat(name)).view_as(parameter).to(parameter)
            start[name] = parameter.detach().clone() if reference == "base" else torch.zeros_like(parameter)
            delta[name] = after - start[name]
        original = None if reference == "base" else {name: p.detach().clone() for name, p in parameters.items()}
        return cls(model, chosen, parameters, start, delta, original, steps, loss)

    @contextmanager
    def borrowed(self) -> Iterator[None]:
        """The model in eval mode with gradients for the scope alone; afterwards everything is as it was."""
        was_training = self.model.training
        wanted = {p: p.requires_grad for p in self.model.parameters()}
        numbers = self.original if self.original is not None else self.reference
        self.model.eval()
        for parameter in self.model.parameters():
            parameter.requires_grad_(False)
        for parameter in self.parameters.values():
            parameter.requires_grad_(True)
        try:
            yield
        finally:
            with torch.no_grad():
                for name, parameter in self.parameters.items():
                    parameter.copy_(numbers[name])
                    parameter.grad = None
            for parameter, grad in wanted.items():
                parameter.requires_grad_(grad)
            self.model.train(was_training)

    def backward(self, step: int) -> float:
        """Gradients of the mean loss of a step's rows at the model's present numbers; returns that loss."""
        for parameter in self.parameters.values():
            parameter.grad = None
        total = 0.0
        for batch, share in self.steps(step):
            loss = self.loss(self.model, batch) * share
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        return total

    @torch.no_grad()
    def put_on(self, region: Region) -> None:
        """The reference with tuned's numbers in the region: the grafted model."""
        for name, parameter in self.parameters.items():
            parameter.copy_(self.reference[name])
            at = region.sites.get(name)
            if at is not None:
                places = torch.from_numpy(np.array(at, np.int64))
                parameter.view(-1)[places] = (self.reference[name] + self.delta[name]).view(-1)[places]
