"""Networks without a folder: one that is trained in a moment, and a tiny BERT with tuned numbers for it."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from skillgraft.live.grafted import tensors_of
from skillgraft.readouts.readout import Batch
from skillgraft.regions.problem import Problem, Step
from skillgraft.values.region import Region
from tests.training.toys import ToyReadout, tiny_bert, toy_rows

Pair = tuple[nn.Module, nn.Module]
READOUT = ToyReadout()


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2))


def net_rows(count: int = 32) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(1))
    return x, (x[:, 0] > 0).long()


def net_batches(size: int = 16) -> list[tuple[Tensor, Tensor]]:
    x, y = net_rows()
    return [(x[low : low + size], y[low : low + size]) for low in range(0, len(x), size)]


def net_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def net_accuracy(model: nn.Module) -> float:
    x, y = net_rows()
    return float((model(x.to(next(model.parameters()).dtype)).argmax(1) == y).float().mean())


def tuned_net(base: nn.Module) -> nn.Module:
    tuned = copy.deepcopy(base).eval()
    optimizer = torch.optim.Adam(tuned.parameters(), lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        net_loss(tuned, net_rows()).backward()
        optimizer.step()
    return tuned


FEW: dict[str, Any] = {"method": "learned", "loss": net_loss, "scope": "all", "steps": 10, "lr": 30.0, "start": 4 / 56}


def bert_loss(model: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.cross_entropy(READOUT.scores(model, batch), batch["labels"])


def bert_steps(_number: int) -> Step:
    rows = toy_rows(24)
    return [(READOUT.collate(rows[:8]), 8 / 24), (READOUT.collate(rows[8:]), 16 / 24)]


def tuned_bert(optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW, *, lr: float = 3e-3) -> nn.Module:
    """Sixty steps of plain training: enough that a region is worth something."""
    tuned = tiny_bert()
    steps = optimizer(tuned.parameters(), lr=lr)  # type: ignore[call-arg]
    batch = READOUT.collate(toy_rows(24))
    for _ in range(60):
        steps.zero_grad()
        bert_loss(tuned, batch).backward()
        steps.step()
    return tuned


def bert_pair() -> tuple[nn.Module, Any]:
    """A tiny BERT, and tuned's numbers for it."""
    return tiny_bert(), tensors_of(tuned_bert())


def net_problem() -> Problem:
    """The small network and its tuned numbers, of which everything may be searched."""
    base = net()
    tuned = tensors_of(tuned_net(base))
    return Problem.between(base, tuned, steps=lambda _: [(net_rows(), 1.0)], loss=net_loss, scope="all")


def a_problem(pair: tuple[nn.Module, Any], **settings: Any) -> Problem:
    return Problem.between(pair[0], pair[1], steps=bert_steps, loss=bert_loss, **settings)


def a_start(problem: Problem, count: int = 20) -> Region:
    names = list(problem.scope.shapes)[:4]
    return Region(problem.scope, {name: np.arange(0, 2 * (count // 4), 2) for name in names})


def nothing(problem: Problem) -> Region:
    return Region(problem.scope, {})


class BlendedLoss(nn.Module):
    """The loss of a tiny BERT as a function of numbers put in from outside, for autograd to go through."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.model = problem.model
        own = {id(parameter): name for name, parameter in self.named_parameters()}
        self.names = {name: own[id(slot.tensor)] for name, slot in problem.slots.items()}
        self.shapes = problem.scope.shapes

    def forward(self, batch: Batch) -> Tensor:
        return bert_loss(self.model, batch)

    def at(self, numbers: dict[str, Tensor]) -> Tensor:
        """The loss of step 0 with these numbers in the scope (flat, by prefix-free name)."""
        inside = {self.names[name]: flat.view(self.shapes[name]) for name, flat in numbers.items()}
        losses = [torch.func.functional_call(self, inside, (batch,)) * share for batch, share in bert_steps(0)]
        return torch.stack(losses).sum()
