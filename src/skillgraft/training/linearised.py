"""Models linearised around the base: f(x; θ0) + ∂f(x; θ0)/∂θ · (θ − θ0), by forward-mode differentiation.

Training the linearised scores instead of the model's own gives task vectors that are disentangled by construction (P2's
baseline); reading a finished graft's scores this way is its post-hoc linearisation:

    predict(model, readout, rows, scores=post_hoc(model, readout, 0.4 * (g + h)))

Because that is linear in the delta, one pass per graft gives the scores at every scale: `tangent`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from skillgraft.errors import InputError, did_you_mean
from skillgraft.live.grafted import grafted, parameter_names
from skillgraft.measure.comparisons import distance_from_linear
from skillgraft.measure.intervals import Bootstrap, Estimate
from skillgraft.predictions.predict import Scores, predict
from skillgraft.predictions.predictions import Predictions, classes_of
from skillgraft.readouts.readout import Batch, Readout
from skillgraft.task_model import VALIDATION, TaskModel
from skillgraft.tasks.data import Data, TaskLike
from skillgraft.values.graft import Graft
from skillgraft.values.region import Region

Numbers = Mapping[str, Tensor]  # by the names of the model's own `named_parameters`


class _Scored(nn.Module):
    """A model and its readout as one module, so that torch.func can put other parameters in."""

    def __init__(self, model: nn.Module, readout: Readout) -> None:
        super().__init__()
        self.model = model
        self.readout = readout

    def forward(self, batch: Batch) -> Tensor:
        return self.readout.scores(self.model, batch)


def linear_scores(model: nn.Module, readout: Readout, batch: Batch, *, base: Numbers) -> Tensor:
    """The scores of the model linearised at `base`.

    The model's own parameters say where to go: gradients of the result reach them through θ − θ0.
    """
    current = dict(model.named_parameters())
    value, slope = _expanded(model, readout, batch, base, {name: current[name] - base[name] for name in base})
    return value + slope


def frozen_copy(model: nn.Module) -> dict[str, Tensor]:
    """The parameters as they are now, to linearise around later; only those that train need a direction."""
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


def _expanded(
    model: nn.Module, readout: Readout, batch: Batch, start: Numbers, direction: Numbers
) -> tuple[Tensor, Tensor]:
    """f(x; start) and J(x; start) · direction, in one pass."""
    if not start:  # a graft without entries has no direction
        value = readout.scores(model, batch)
        return value, torch.zeros_like(value)
    scored = _Scored(model, readout)

    def scores(parameters: dict[str, Tensor]) -> Tensor:
        result: Tensor = torch.func.functional_call(scored, parameters, (batch,))
        return result

    points = [{f"model.{name}": numbers[name] for name in start} for numbers in (start, direction)]
    with sdpa_kernel(SDPBackend.MATH):  # torch's other kernels have no forward-mode derivative
        value, slope = torch.func.jvp(scores, (points[0],), (points[1],))  # type: ignore[misc]
    return value, slope.masked_fill(torch.isneginf(value), 0.0)  # absent choices stay absent


def post_hoc(model: nn.Module, readout: Readout, graft: Graft) -> Scores:
    """How `predict` reads f(x; base) + J(x; base) · delta of a graft, or of a scaled sum of grafts, off the base's model.

    The model must hold the base's numbers at the graft's sites. Heads are not linearised: those that are on the model count.
    """
    return _read(model, readout, graft, torch.add)


def _read(model: nn.Module, readout: Readout, graft: Graft, join: Callable[[Tensor, Tensor], Tensor]) -> Scores:
    """Scores joined from f(x; base) and J(x; base) · delta."""
    start, direction = _along(model, graft)
    return lambda current, batch: join(*_expanded(current, readout, batch, start, direction))


def _along(model: nn.Module, graft: Graft) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The parameters that a graft touches, as they are, and the graft's delta as tensors of their shape."""
    with grafted(model, graft.without_heads()):
        pass  # it fits: every site holds the base's number
    own = {id(parameter): name for name, parameter in model.named_parameters()}
    start, direction = {}, {}
    for name, parameter in parameter_names(model).items():
        if name in graft.before:
            delta = np.zeros(parameter.numel())
            delta[graft.region.sites[name]] = graft.delta(name)
            start[own[id(parameter)]] = parameter.detach()
            direction[own[id(parameter)]] = torch.from_numpy(delta).view(parameter.shape).to(parameter)
    return start, direction


@dataclass(frozen=True, eq=False)
class Tangent:
    """A base's scores for some rows, and how fast they change along each delta: f(x; θ0) and J·τ by name."""

    base: Predictions
    slopes: Mapping[str, npt.NDArray[np.float32]] = field(repr=False)

    def at(self, scales: Mapping[str, float]) -> Predictions:
        """f(x; θ0) + Σ scale · J·τ: what the linearised model answers at base + Σ scale · delta. No model runs for it."""
        for name in scales:
            if name not in self.slopes:
                raise InputError(f"no delta is called {name!r}; {did_you_mean(name, self.slopes)}")
        scores = self.base.scores.astype(np.float64)
        for name, scale in scales.items():
            scores += scale * self.slopes[name]
        return replace(self.base, scores=scores.astype(np.float32))


def tangent(
    opened: TaskModel, task: str, grafts: Mapping[str, Graft], *, split: str = VALIDATION, batch_size: int = 64
) -> Tangent:
    """The linearised model along these deltas: one pass of the base, and one for each of them."""
    model, readout, rows = opened.model, opened.rows.readout(task), opened.rows.encoded(task, split)

    def slope(graft: Graft) -> npt.NDArray[np.float32]:
        read = _read(model, readout, opened.fitted(graft), lambda _value, slope: slope)
        found = classes_of(predict(model, readout, rows, batch_size=batch_size, scores=read)).scores
        return np.where(np.isneginf(found), np.float32(0), found)  # absent choices do not change

    base = classes_of(opened.predict(tasks=[task], split=split, batch_size=batch_size)[task])
    return Tangent(base, {name: slope(graft) for name, graft in grafts.items()})


def near_linearity(
    base: str | Path,
    graft: Graft,
    task: TaskLike,
    *,
    split: str = "test",
    data: Data = Data(),
    batch_size: int = 64,
    bootstrap: Bootstrap = Bootstrap(),
) -> Estimate:
    """‖f − f_lin‖ / ‖f − f_0‖ of base + graft on a task's rows (P2). The graft's heads, if any, are on in all three."""
    # Not every device has a forward-mode derivative of fused attention.
    opened = TaskModel.open(base, [task], data=data, splits=(split,), attention="eager")
    (name,) = opened.tasks
    asked: dict[str, Any] = {"split": split, "batch_size": batch_size}
    with opened.holding(graft & Region(graft.region.scope, {})):
        linear = tangent(opened, name, {"delta": graft.without_heads()}, **asked)
        own = classes_of(opened.predict(graft.without_heads(), tasks=[name], **asked)[name])
    return distance_from_linear(own, linear.at({"delta": 1.0}), base=linear.base, bootstrap=bootstrap)
