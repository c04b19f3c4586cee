"""Borrowed random numbers come back: the CPU's, and those of the model's device or of the accelerator."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from skillgraft.training.loop import borrowed_random
from tests.training.toys import tiny_bert


class FakeAccelerator:
    """The random states of two devices, as `torch.cuda` has them."""

    def __init__(self) -> None:
        self.states = {0: torch.tensor([1]), 1: torch.tensor([2])}

    def device_count(self) -> int:
        return len(self.states)

    def get_rng_state(self, device: int) -> Tensor:
        return self.states[device].clone()

    def set_rng_state(self, state: Tensor, device: int) -> None:
        self.states[device] = state


def on(kind: str) -> Any:
    return SimpleNamespace(parameters=lambda: iter([SimpleNamespace(device=torch.device(kind))]))


@pytest.mark.parametrize("kind", ["cpu", "meta", "xpu:1"])
def test_the_state_of_every_device_comes_back(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model on the CPU too: `torch.manual_seed` seeds the accelerator whether it is used or not."""
    fake = FakeAccelerator()
    monkeypatch.setattr(torch, "get_device_module", lambda kind: fake if str(kind) == "xpu" else torch.cpu)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("xpu"))
    before = torch.get_rng_state()
    with borrowed_random(on(kind)):
        torch.rand(3)
        fake.states = {0: torch.tensor([8]), 1: torch.tensor([9])}
    assert {device: int(state) for device, state in fake.states.items()} == {0: 1, 1: 2}
    assert torch.equal(torch.get_rng_state(), before)


def test_without_an_accelerator_the_cpus_state_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after an exception."""
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: None)
    model = tiny_bert()
    before = torch.get_rng_state()

    def fail() -> None:
        with borrowed_random(model):
            torch.manual_seed(5)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert torch.equal(torch.get_rng_state(), before)
