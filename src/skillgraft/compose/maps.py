"""Pictures' numbers about how skills share a model: disentanglement, function localisation, curves over one scale.

Each point's weights are set once and every task that needs them is measured there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from skillgraft.compose.scales import Scaled
from skillgraft.errors import InputError, listed
from skillgraft.measure.comparisons import disentanglement_error, function_localisation
from skillgraft.measure.intervals import Bootstrap, Estimate
from skillgraft.measure.summary import summary
from skillgraft.opening.runtime import Progress, silent
from skillgraft.predictions.predictions import AnyPredictions
from skillgraft.task_model import TaskModel
from skillgraft.values.graft import Graft
from skillgraft.values.info import FORMATS

ALPHAS = (-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0)


@dataclass(frozen=True)
class DisentanglementMap:
    """ξ over two scales (P2 fig. 2): `errors[i][j]` at scale `alphas[i]` of the first task, `alphas[j]` of the second."""

    tasks: tuple[str, str]
    alphas: tuple[float, ...]
    errors: tuple[tuple[Estimate, ...], ...]

    def as_json(self) -> dict[str, Any]:
        errors = [[error.as_json() for error in row] for row in self.errors]
        return {"format": FORMATS["map"], "tasks": list(self.tasks), "alphas": list(self.alphas), "errors": errors}


@dataclass(frozen=True)
class CurvePoint:
    """What base + scale · delta answers about every task."""

    scale: float
    predictions: Mapping[str, AnyPredictions]

    def as_json(self, *, base: Mapping[str, AnyPredictions] | None = None) -> dict[str, Any]:
        """Every task's summary; compared with the base's predictions where these are given."""
        tasks = {task: summary(found, base=base[task] if base else None) for task, found in self.predictions.items()}
        return {"scale": self.scale, "tasks": tasks}


def disentanglement_map(
    opened: TaskModel,
    grafts: Mapping[str, Graft],
    *,
    alphas: Sequence[float] = ALPHAS,
    linear: bool = False,
    bootstrap: Bootstrap = Bootstrap(),
    progress: Progress = silent,
) -> DisentanglementMap:
    """ξ(α₁, α₂) of two tasks' grafts on a grid: how many predictions of each task change when the other's delta joins.

    What each graft answers alone, f(x; base + α_t · delta_t), is computed once for each α and not for each cell. 0 everywhere
    means that the two skills do not see each other.
    """
    if len(grafts) != 2:
        raise InputError(f"a disentanglement map is about two tasks, found {len(grafts)}: {listed(grafts)}")
    first, second = grafts
    both = Scaled(opened, tuple(grafts.values()), linear=linear)
    alone = {
        (task, alpha): both.predict(*(alpha if other == task else 0.0 for other in grafts), tasks=[task])[task]
        for task in grafts
        for alpha in dict.fromkeys(alphas)
    }
    cells: dict[tuple[float, ...], Estimate] = {}
    for number, scales in enumerate(product(alphas, repeat=2), start=1):
        together = both.predict(*scales, tasks=list(grafts))
        pairs = [(alone[task, alpha], together[task]) for task, alpha in zip(grafts, scales, strict=True)]
        cells[scales] = disentanglement_error(pairs, bootstrap=bootstrap)
        progress(number, len(alphas) ** 2, {})
    errors = tuple(tuple(cells[down, across] for across in alphas) for down in alphas)
    return DisentanglementMap((first, second), tuple(alphas), errors)


def localisation_matrix(
    opened: TaskModel, grafts: Mapping[str, Graft], *, bootstrap: Bootstrap = Bootstrap()
) -> dict[str, dict[str, Estimate]]:
    """Accuracy of each tuned model on every task / base's accuracy on it (P2 fig. 3): `matrix[graft][task]`.

    Around 1 off the diagonal means that a skill leaves the other tasks' inputs alone. A linear head that comes with one
    graft tells nothing about the others' tasks, nor is it the base's: such grafts are refused.
    """
    with_heads = [name for name, graft in grafts.items() if graft.heads]
    if with_heads:
        raise InputError(
            f"function localisation reads every task off every model, but {listed(with_heads)} bring heads of their own; use a "
            "readout that needs none, and without_heads()"
        )
    opened.check_heads(None)
    base = opened.predict()
    return {
        name: {
            task: function_localisation(found, base[task], bootstrap=bootstrap)
            for task, found in opened.predict(graft).items()
        }
        for name, graft in grafts.items()
    }


def scale_curve(
    opened: TaskModel, graft: Graft, alphas: Sequence[float], *, progress: Progress = silent
) -> tuple[CurvePoint, ...]:
    """base + α · delta for each α: WiSE between the base (0) and the tuned model (1), P1 fig. 7."""
    points, along = [], Scaled(opened, (graft,))
    for number, alpha in enumerate(alphas, start=1):
        points.append(CurvePoint(alpha, along.predict(alpha)))
        progress(number, len(alphas), {})
    return tuple(points)
