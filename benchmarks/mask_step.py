"""Learning a region (P1 §2.3) on 64 examples of 32 tokens, beside plain passes and the authors' loop, written again here.

*Step*: one step on the mask beside one ordinary forward and backward pass of the same batches. *Run*: a whole run with its steps
compared on the rounded region (training and validation rows), beside as many plain passes. *Authors*: their loop holds
three models and dense buffers, runs a backward pass per micro-batch, copies and adds up every micro-batch's dense gradient,
and after every step scores all training and validation rows again; here with micro-batches of 8 rows.
"""

from __future__ import annotations

import copy
import statistics

import torch
from torch import Tensor, nn

from measuring import Figure, Measured, Settings, command, interleaved, median_ratio
from minilm import made_up_rows, minilm
from skillgraft.folders.checkpoint import MemoryTensors
from skillgraft.live.grafted import tensors_of
from skillgraft.measure.metrics import METRICS
from skillgraft.predictions.predict import predict
from skillgraft.readouts.readout import Batch, Encoded, Readout, loss_of
from skillgraft.regions.learned import START, MaskPlan, SoftMask, learn
from skillgraft.regions.problem import Problem, Step
from skillgraft.values.region import Region

_ROWS, _STEPS, _MICRO = 64, 12, 8


def measure(settings: Settings) -> Measured:
    """step, run: ours / plain passes; authors: their run / ours."""
    opened, readout = minilm()
    model = opened.model
    rows, steps = (made_up_rows(8), 4) if settings.small else (made_up_rows(_ROWS), _STEPS)
    batch = readout.collate(rows)

    def batches(_step: int) -> Step:
        return [(batch, 1.0)]

    def loss(current: nn.Module, given: Batch) -> Tensor:
        return loss_of(readout.scores(current, given), given["labels"])

    problem = Problem.between(model, _tuned(model), steps=batches, loss=loss)
    start = Region(problem.scope, {name: [0] for name in list(problem.scope.shapes)[:20]})

    def score() -> float:
        return METRICS["score"](predict(model, readout, [*rows, *rows]))

    with problem.borrowed():
        soft = SoftMask(problem, start)
        single = {"ours": lambda: _one_step(soft, problem), "plain": lambda: problem.backward(0)}
        one = interleaved(single, rounds=2 if settings.small else 15)
    runs = {
        "ours": lambda: learn(problem, start, MaskPlan(steps=steps), score=score),
        "plain": lambda: _plain(problem, steps),
        "authors": lambda: _authors(model, readout, rows, problem, steps),
    }
    whole = interleaved(runs, rounds=1 if settings.small else 3)
    return Measured(
        {
            "step": Figure(median_ratio(one["ours"], one["plain"]), _medians(one)),
            "run": Figure(median_ratio(whole["ours"], whole["plain"]), f"{steps} steps: {_medians(whole)}"),
            "authors": Figure(median_ratio(whole["authors"], whole["ours"]), "their loop, written again"),
        },
        {"step_seconds": one, "run_seconds": whole},
    )


def _medians(seconds: dict[str, list[float]]) -> str:
    return ", ".join(f"{name} {statistics.median(found):.2f} s" for name, found in seconds.items())


def _one_step(soft: SoftMask, problem: Problem) -> None:
    soft.blend()
    problem.backward(0)
    soft.descend(lr=1e7)


def _plain(problem: Problem, steps: int) -> None:
    with problem.borrowed():
        for step in range(steps):
            problem.backward(step)


def _authors(model: nn.Module, readout: Readout, rows: list[Encoded], problem: Problem, steps: int) -> None:
    base, tuned = copy.deepcopy(model), copy.deepcopy(model)
    names = list(problem.slots)
    deltas = {name: problem.delta(name) for name in names}
    weights = {name: slot.tensor for name, slot in problem.slots.items()}
    masks = {name: torch.full_like(deltas[name], START) for name in names}
    with problem.borrowed():
        for _ in range(steps):
            with torch.no_grad():
                for name in names:
                    weights[name].view(-1).copy_(problem.before[name])
                    weights[name].view(-1).add_(torch.sigmoid(masks[name]) * deltas[name])
            totals = {name: torch.zeros_like(masks[name]) for name in names}
            for low in range(0, len(rows), _MICRO):
                part = readout.collate(rows[low : low + _MICRO])
                loss_of(readout.scores(model, part), part["labels"]).backward()  # type: ignore[no-untyped-call]
                for name in names:
                    gradient = weights[name].grad
                    assert gradient is not None
                    copied = gradient.detach().clone().view(-1) * deltas[name]
                    totals[name] += copied * torch.sigmoid(masks[name]) * (1 - torch.sigmoid(masks[name]))
                    weights[name].grad = None
            for name in names:
                masks[name] -= 1e7 * totals[name] * _MICRO / len(rows)
            predict(model, readout, rows, batch_size=_MICRO)
            predict(model, readout, rows, batch_size=_MICRO)
    del base, tuned


def _tuned(model: nn.Module) -> MemoryTensors:
    generator = torch.Generator().manual_seed(1)
    arrays = tensors_of(model).arrays
    noise = {n: torch.randn(a.shape, generator=generator).numpy() for n, a in arrays.items() if a.dtype.kind == "f"}
    return MemoryTensors({n: a + 1e-3 * noise[n] if n in noise else a for n, a in arrays.items()})


if __name__ == "__main__":
    command("mask_step", measure)
