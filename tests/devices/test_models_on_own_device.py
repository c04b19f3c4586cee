"""Whole models on our own device: every number is the CPU's, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.devices.models import MODELS, Batch, batch_for, built, moved


def results(model: nn.Module, batch: Batch, *, seed: int = 5) -> dict[str, Tensor]:
    """The loss and every gradient."""
    torch.manual_seed(seed)
    loss = model(**batch).loss
    loss.backward()
    return {"loss": loss.detach()} | {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def assert_same_bits(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], device: torch.device) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert tensor.device == device, name
        assert torch.equal(tensor.cpu(), expected[name]), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", MODELS)
def test_forward_and_backward(device: torch.device, name: str, attention: str, dtype: torch.dtype) -> None:
    """With dropout: the device's own random numbers are those of the CPU under the same seed."""
    ours, theirs = (built(name, attn_implementation=attention).to(dtype).train() for _ in range(2))
    batch = {key: value.to(dtype) if value.is_floating_point() else value for key, value in batch_for(name).items()}
    expected = results(theirs, batch)
    assert_same_bits(results(ours.to(device), moved(batch, device)), expected, device)
    assert all(buffer.device == device for buffer in ours.buffers())


@pytest.mark.parametrize("name", MODELS)
def test_mixed_precision(device: torch.device, name: str) -> None:
    ours, theirs = built(name), built(name)
    with torch.autocast("cpu", torch.bfloat16):
        expected = results(theirs, batch_for(name))
    with torch.autocast(device.type, torch.bfloat16):
        found = results(ours.to(device), moved(batch_for(name), device))
    assert_same_bits(found, expected, device)
    assert not torch.equal(expected["loss"], results(built(name), batch_for(name))["loss"])


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_left_on_the_cpu_is_refused(device: torch.device, name: str) -> None:
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        built(name).to(device)(**batch_for(name))
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        built(name)(**moved(batch_for(name), device))


@pytest.mark.parametrize("settings", [{"do_sample": False}, {"do_sample": True}, {"num_beams": 3}], ids=str)
@pytest.mark.parametrize("name", ["llama", "gpt2", "t5"])
def test_generation(device: torch.device, name: str, settings: dict[str, Any]) -> None:
    texts = []
    for where in (torch.device("cpu"), device):
        model, batch = built(name).to(where), moved(batch_for(name), where)
        del batch["labels"]
        torch.manual_seed(3)
        texts.append(model.generate(**batch, max_new_tokens=5, **settings))
    assert texts[1].device == device
    assert torch.equal(texts[0], texts[1].cpu())


OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p, **how: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, **how),
    "adamw": lambda p, **how: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1, **how),
}


def trained(where: torch.device, optimizer: str, **how: Any) -> dict[str, Tensor]:
    model, batch = built("bert").to(where), moved(batch_for("bert"), where)
    stepper = OPTIMIZERS[optimizer](model.parameters(), **how)
    for _ in range(3):
        stepper.zero_grad()
        model(**batch).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        stepper.step()
    return {name: p.detach() for name, p in model.named_parameters()}


@pytest.mark.parametrize("how", [{"foreach": False}, {"foreach": True}, {"fused": True}, {}], ids=str)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers(device: torch.device, optimizer: str, how: dict[str, bool]) -> None:
    # With nothing asked for, torch takes the list-wise form on every accelerator and not on the CPU.
    expected = trained(torch.device("cpu"), optimizer, **(how or {"foreach": True}))
    assert_same_bits(trained(device, optimizer, **how), expected, device)


def test_it_stays_itself_when_it_moves(device: torch.device) -> None:
    """As with CUDA: the parameters are the same objects, and tied ones stay tied."""
    model = built("gpt2")
    before = list(model.parameters())
    model.to(device)
    assert all(mine is was for mine, was in zip(model.parameters(), before, strict=True))
    assert model.lm_head.weight is model.transformer.wte.weight
    expected = built("gpt2").state_dict()
    assert_same_bits(model.state_dict(), expected, device)
    assert_same_bits(model.cpu().state_dict(), expected, torch.device("cpu"))


def test_it_is_saved_and_loaded_there(device: torch.device, tmp_path: Path) -> None:
    model = built("gpt2").to(device)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, device_map=device)
    assert_same_bits(loaded.state_dict(), built("gpt2").state_dict(), device)
