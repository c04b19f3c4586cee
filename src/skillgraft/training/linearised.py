"""Models linearised around the base: f(x; θ0) + ∂f(x; θ0)/∂θ · (θ − θ0), by forward-mode differentiation.

Training the linearised scores instead of the model's own gives task vectors that are disentangled by construction (P2's
baseline); reading a finished vector's scores this way is its post-hoc linearisation.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from skillgraft.readouts.readout import Batch, Readout


class _Scored(nn.Module):
    """A model and its readout as one module, so that torch.func can put other parameters in."""

    def __init__(self, model: nn.Module, readout: Readout) -> None:
        super().__init__()
        self.model = model
        self.readout = readout

    def forward(self, batch: Batch) -> Tensor:
        return self.readout.scores(self.model, batch)


def linear_scores(model: nn.Module, readout: Readout, batch: Batch, *, base: Mapping[str, Tensor]) -> Tensor:
    """The scores of the model linearised at `base` (parameter name → numbers; names as in `named_parameters`).

    The model's own parameters say where to go: gradients of the result reach them through θ − θ0.
    """
    scored = _Scored(model, readout)
    current = dict(model.named_parameters())
    start = {f"model.{name}": base[name] for name in base}
    direction = {f"model.{name}": current[name] - base[name] for name in base}

    def scores(parameters: dict[str, Tensor]) -> Tensor:
        result: Tensor = torch.func.functional_call(scored, parameters, (batch,))
        return result

    value, slope = torch.func.jvp(scores, (start,), (direction,))  # type: ignore[misc]
    result: Tensor = value + slope
    return result


def frozen_copy(model: nn.Module) -> dict[str, Tensor]:
    """The parameters as they are now, to linearise around later; only those that train need a direction."""
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
