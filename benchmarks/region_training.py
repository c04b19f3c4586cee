"""Training inside a random 10 % of MiniLM's layers, beside training all of them: the time of a step and AdamW's memory.

Both run the same batch of 16 × 32 tokens through the same code (`choose_trainables`, `make_optimizer`) with AdamW; embeddings
are frozen in both, so that the full optimizer holds the scope and nothing else. Memory is counted in bytes of tensors: the two
moments of every trained number, and the indices of the region's entries.
"""

from __future__ import annotations

import copy
import statistics
from dataclasses import dataclass
from typing import Self

import torch
from torch import nn

from folders import random_sites
from measuring import MEGABYTE, Figure, Measured, Settings, command, interleaved, median_ratio
from minilm import minilm
from skillgraft.live.grafted import parameter_names
from skillgraft.readouts.readout import Batch, Readout, loss_of
from skillgraft.task_model import TaskModel
from skillgraft.training.loop import make_optimizer
from skillgraft.training.plan import TrainingPlan
from skillgraft.training.trainables import Trainables, choose_trainables
from skillgraft.values.region import Region, Scope

_DENSITY = 0.1
_BATCH, _TOKENS = 16, 32
_STEPS = 40
_PLAN = TrainingPlan(optimizer="adamw", lr=1e-5, weight_decay=0.01)
_MOMENTS = ("exp_avg", "exp_avg_sq")


def measure(settings: Settings) -> Measured:
    """step: seconds inside the region / seconds of full AdamW; moments and state: % of full AdamW's moments."""
    opened, readout = minilm()
    region = _region(opened.model)
    batch = _batch(opened)
    full, inside = _Run.of(opened.model, readout, None), _Run.of(opened.model, readout, region)
    with inside.trainables.listening():
        jobs = {"region": lambda: inside.step(batch), "full": lambda: full.step(batch)}
        seconds = interleaved(jobs, rounds=settings.scaled(_STEPS))
    milliseconds = {name: 1000 * statistics.median(found) for name, found in seconds.items()}
    whole, moments, indices = full.moments, inside.moments, inside.indices
    vectors = sum(_bytes(master.tensor) for master in inside.trainables.masters.values())
    size = f"{whole / MEGABYTE:.1f} MB of full AdamW"
    return Measured(
        {
            "step": Figure(
                median_ratio(seconds["region"], seconds["full"]),
                f"region {milliseconds['region']:.0f} ms, full {milliseconds['full']:.0f} ms",
            ),
            "moments": Figure(100 * moments / whole, f"{moments / MEGABYTE:.1f} MB, {size}"),
            "state": Figure(
                100 * (moments + indices) / whole,
                f"{(moments + indices) / MEGABYTE:.1f} MB; the entries' own numbers take {vectors / MEGABYTE:.1f} MB more",
            ),
        },
        {"median_ms": milliseconds, "entries": len(region), "scope_entries": region.scope.size, "seconds": seconds},
    )


@dataclass(frozen=True)
class _Run:
    """A model in training."""

    model: nn.Module
    readout: Readout
    trainables: Trainables
    optimizer: torch.optim.Optimizer

    @classmethod
    def of(cls, base: nn.Module, readout: Readout, region: Region | None) -> Self:
        model = copy.deepcopy(base)
        trainables = choose_trainables(model, inside=region)
        return cls(model, readout, trainables, make_optimizer(_PLAN, trainables.tensors))

    def step(self, batch: Batch) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        loss = loss_of(self.readout.scores(self.model, batch), batch["labels"])
        loss.backward()  # type: ignore[no-untyped-call]
        self.trainables.before_step()
        self.optimizer.step()
        self.trainables.after_step()

    @property
    def moments(self) -> int:
        return sum(_bytes(state[name]) for state in self.optimizer.state.values() for name in _MOMENTS)

    @property
    def indices(self) -> int:
        return sum(_bytes(master.at) for master in self.trainables.masters.values() if master.at is not None)


def _region(model: nn.Module) -> Region:
    scope = Scope.select("layers", {name: tuple(p.shape) for name, p in parameter_names(model).items()})
    return Region(scope, random_sites(scope, int(_DENSITY * scope.size), seed=0))


def _batch(opened: TaskModel) -> Batch:
    torch.manual_seed(0)
    ids = torch.randint(1000, opened.source.config.vocab_size, (_BATCH, _TOKENS))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.arange(_BATCH) % 2}


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


if __name__ == "__main__":
    command("region_training", measure)
