"""Regions of a model that is not on the CPU: every method finds the same entries, and the model comes back as it was."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from skillgraft.live.grafted import parameter_names, tensors_of
from skillgraft.measure.metrics import METRICS
from skillgraft.opening.runtime import Runtime
from skillgraft.predictions.predict import on_device, predict
from skillgraft.readouts.readout import Batch, Encoded
from skillgraft.regions.fisher import fisher_diagonal
from skillgraft.regions.learned import Learned, MaskPlan, learn
from skillgraft.regions.live import localize_live
from skillgraft.regions.methods import METHODS
from skillgraft.regions.problem import Problem, holding_all
from skillgraft.regions.sensitivity import least_sensitive, most_sensitive
from skillgraft.training.snapshot import Snapshot
from skillgraft.values.names import in_layers
from skillgraft.values.region import Region, Scope
from tests.devices.models import batch_for, built, moved
from tests.devices.running import CPU, bits, is_whole_on
from tests.devices.test_training_on_own_device import Killed
from tests.regions.toys import READOUT, a_start, bert_loss, bert_steps, tuned_bert
from tests.training.toys import ToyReadout, tiny_bert, toy_rows

Where = torch.device


@pytest.fixture(scope="module")
def tuned() -> Any:
    return tensors_of(tuned_bert())


def loss_there(model: nn.Module, batch: Batch) -> Tensor:
    return bert_loss(model, on_device(batch, next(model.parameters()).device))


def a_problem(where: Where, tuned: Any, *, dtype: torch.dtype = torch.float32, **settings: Any) -> Problem:
    return Problem.between(tiny_bert().to(where, dtype), tuned, steps=bert_steps, loss=loss_there, **settings)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_ranks_the_same_entries(device: Where, tuned: Any, name: str) -> None:
    options = {"learned": {"steps": 6, "lr": 100.0}, "budgeted": {"steps": 6}, "attribution": {"points": 2}}.get(
        name, {}
    )
    found = []
    for where in (CPU, device):
        problem = a_problem(where, tuned)
        base = bits(problem.model)
        found.append(METHODS[name](problem, a_start(problem), most=300, **options))
        assert bits(problem.model) == base
        assert is_whole_on(problem.model, where)
    theirs, ours = found
    assert ours.facts == theirs.facts
    assert all(ours.ranking.top(count) == theirs.ranking.top(count) for count in (1, 40, 300))


def learned(
    where: Where, tuned: Any, *, between: dict[str, Any], plan: Any = MappingProxyType({}), **rest: Any
) -> Learned:
    problem = a_problem(where, tuned, **between)

    def score() -> float:
        return METRICS["score"](predict(problem.model, READOUT, toy_rows(12)))

    return learn(problem, a_start(problem), MaskPlan(steps=6, lr=300.0, look_every=2, **plan), score=score, **rest)


@pytest.mark.parametrize("between", [{}, {"reference": "zero"}, {"dtype": torch.bfloat16}], ids=str)
@pytest.mark.parametrize("settings", [{}, {"init": "uniform", "l1": 1e-3}], ids=str)
def test_the_learned_region(device: Where, tuned: Any, between: dict[str, Any], settings: dict[str, Any]) -> None:
    theirs, ours = (learned(where, tuned, between=between, plan=settings) for where in (CPU, device))
    assert (ours.losses, ours.looks, ours.region) == (theirs.losses, theirs.looks, theirs.region)
    assert all(s.device == device and torch.equal(s.cpu(), theirs.soft.s[name]) for name, s in ours.soft.s.items())


def test_a_killed_search_resumes(device: Where, tuned: Any, tmp_path: Path) -> None:
    straight = learned(device, tuned, between={})

    def kill(step: int, _steps: int, _entry: Any) -> None:
        if step == 4:
            raise Killed

    kept = Snapshot.at(tmp_path / "kept", {})
    with pytest.raises(Killed):
        learned(device, tuned, between={}, snapshot=kept, runtime=Runtime(progress=kill, snapshot_seconds=0.0))
    seen: list[int] = []
    again = Runtime(progress=lambda step, *_: seen.append(step), snapshot_seconds=0.0)
    resumed = learned(device, tuned, between={}, snapshot=kept, runtime=again)
    assert seen[0] > 1
    assert (resumed.losses, resumed.region) == (straight.losses, straight.region)


def test_all_of_tuned_is_on_and_comes_off(device: Where, tuned: Any) -> None:
    problem, whole = a_problem(device, tuned), bits(tuned_bert())
    base = bits(problem.model)
    with holding_all(problem.model, tuned):
        assert bits(problem.model) == whole
    with problem.borrowed():
        problem.put_on(Region.full(problem.scope))
        assert bits(problem.model) != base
    assert bits(problem.model) == base


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "vit"])
@pytest.mark.parametrize("given", ["model", "state dict"])
def test_localize_live(device: Where, name: str, given: str) -> None:
    base, other = built(name), built(name)
    with torch.no_grad():
        for number, parameter in enumerate(other.parameters()):
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)), alpha=0.02)
    start = 10 / Scope.select("layers", tensors_of(base).shapes).size
    grafts = []
    for where in (CPU, device):
        base.to(where), other.to(where)
        batch, before = moved(batch_for(name), where), bits(base)
        theirs = other if given == "model" else copy.deepcopy(other).state_dict()
        grafts.append(
            localize_live(
                base,
                theirs,
                [batch],
                loss=lambda m, b: m(**b).loss,
                method="learned",
                entries=50,
                steps=3,
                lr=100.0,
                start=start,
            )
        )
        assert bits(base) == before
    assert grafts[0] == grafts[1]


class Placed(ToyReadout):
    """A readout whose batches are on the device already."""

    def collate(self, rows: Sequence[Encoded]) -> Batch:
        return on_device(super().collate(rows), torch.device("own"))


READOUTS = (ToyReadout(), Placed())


def in_the_layers(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in parameter_names(model).items() if in_layers(name)}


@pytest.mark.parametrize("labels", ["sampled", "true"])
@pytest.mark.parametrize("readout", READOUTS, ids=["batches of the CPU", "batches of the device"])
def test_the_fisher_diagonal(device: Where, labels: Any, readout: ToyReadout) -> None:
    theirs, ours = tiny_bert(), tiny_bert().to(device)
    expected = fisher_diagonal(theirs, ToyReadout(), toy_rows(10), in_the_layers(theirs), labels=labels, samples=2)
    found = fisher_diagonal(ours, readout, toy_rows(10), in_the_layers(ours), labels=labels, samples=2)
    for name, numbers in found.items():
        assert numbers.device == device
        assert torch.equal(numbers.cpu(), expected[name]), name


class Shared(nn.Module):
    """Runs one layer twice: its examples run one at a time."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = tiny_bert()
        self.inner.encoder.layer[1] = self.inner.encoder.layer[0]

    def forward(self, **batch: Tensor) -> Any:
        return self.inner(**batch)


@pytest.mark.parametrize("readout", READOUTS, ids=["batches of the CPU", "batches of the device"])
def test_the_fisher_diagonal_one_example_at_a_time(device: Where, readout: ToyReadout) -> None:
    theirs, ours = Shared(), Shared().to(device)
    expected = fisher_diagonal(theirs, ToyReadout(), toy_rows(4), dict(theirs.named_parameters()))
    found = fisher_diagonal(ours, readout, toy_rows(4), dict(ours.named_parameters()))
    assert all(torch.equal(found[name].cpu(), numbers) for name, numbers in expected.items())
    assert any(numbers.any() for numbers in expected.values())


@pytest.mark.parametrize("readout", READOUTS, ids=["batches of the CPU", "batches of the device"])
@pytest.mark.parametrize("choose", [least_sensitive, most_sensitive])
def test_regions_by_sensitivity(device: Where, choose: Any, readout: ToyReadout) -> None:
    model = tiny_bert().to(device)
    before = bits(model)
    found = choose(model, readout, toy_rows(10), density=0.1)
    assert found.region == choose(tiny_bert(), ToyReadout(), toy_rows(10), density=0.1).region
    assert bits(model) == before
