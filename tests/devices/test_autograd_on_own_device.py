"""Autograd and random numbers on our own device: torch's own graph, versions and hooks; a stream of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Where = torch.device
X = torch.linspace(-2, 3, 24).view(4, 6).sin()


def leaf(device: Where) -> Tensor:
    return X.to(device).requires_grad_()


def test_a_write_under_a_graph_makes_backward_fail(device: Where) -> None:
    x = leaf(device)
    loss = x.square().sum()
    with torch.no_grad():
        x.view(-1)[0] = 3.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_so_does_a_raised_version(device: Where) -> None:
    x = leaf(device)
    loss, before = x.square().sum(), x._version
    torch.autograd.graph.increment_version([x])
    assert x._version == before + 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_hooks(device: Where) -> None:
    x, seen = leaf(device), []
    x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.reshape(-1)[torch.tensor([0, 3], device=device)]))
    y = x * 3
    y.register_hook(lambda gradient: gradient * 2)
    y.sum().backward()
    assert seen[0].tolist() == [6.0, 6.0]


def test_a_gradient_of_the_cpu_is_refused(device: Where) -> None:
    with pytest.raises(RuntimeError, match="ensure that the gradient and the tensor are on the same device"):
        leaf(device).grad = torch.ones(4, 6)


def test_copies_are_differentiable(device: Where) -> None:
    x = X.clone().requires_grad_()
    (x.to(device).sin().cpu() * 2).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, (2 * torch.ones(4, 6)) * X.cos())


def test_functional_call_jvp_and_vmap(device: Where) -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 2))
    weights = {name: p.detach().clone() for name, p in layers.named_parameters()}
    steps = {name: torch.randn_like(weight) for name, weight in weights.items()}

    def everything(where: Where) -> list[Tensor]:
        layers.to(where)
        mine, step = ({n: t.to(where) for n, t in table.items()} for table in (weights, steps))
        values, slopes = torch.func.jvp(
            lambda w: torch.func.functional_call(layers, w, (X.to(where),)), (mine,), (step,)
        )
        alone = torch.func.grad(lambda w, x: torch.func.functional_call(layers, w, (x,)).square().sum())
        each = torch.func.vmap(alone, in_dims=(None, 0))(mine, X.to(where))
        return [values, slopes, *each.values()]

    expected = everything(torch.device("cpu"))
    for found, wanted in zip(everything(device), expected, strict=True):
        assert found.device == device
        assert torch.equal(found.cpu(), wanted)


def test_checkpointing_runs_again_with_the_same_random_numbers(device: Where) -> None:
    def run(x: Tensor) -> Tensor:
        return F.dropout(x.square(), 0.5)

    plain, again = leaf(device), leaf(device)
    torch.manual_seed(1)
    run(plain).sum().backward()
    torch.manual_seed(1)
    torch.utils.checkpoint.checkpoint(run, again, use_reentrant=False).sum().backward()
    assert torch.equal(again.grad.cpu(), plain.grad.cpu())


LATE_AND_FORKED = """
import os, torch
from tests.devices.own_device import own_device
torch.ones(3, requires_grad=True).sum().backward()
x = torch.ones(3, device=own_device(), requires_grad=True)
x.sum().backward()
if os.fork() == 0:
    (x * 2).sum().backward()
    os._exit(int(x.grad.sum()))
raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_the_device_may_come_late_and_the_process_may_be_forked() -> None:
    """Other tests of the same process run backward passes before, and fork after."""
    done = subprocess.run([sys.executable, "-c", LATE_AND_FORKED], cwd=Path(__file__).parents[2], timeout=120)
    assert done.returncode == 3 + 6


def test_inference_mode(device: Where) -> None:
    with torch.inference_mode():
        x = X.to(device)
        assert x.is_inference()
        assert torch.equal(F.scaled_dot_product_attention(x, x, x).cpu(), F.scaled_dot_product_attention(X, X, X))


@pytest.mark.parametrize("draw", [torch.rand, torch.randn], ids=["rand", "randn"])
def test_seeds_are_the_cpus(device: Where, draw: object) -> None:
    assert callable(draw)
    torch.manual_seed(3)
    expected = draw(5)
    assert torch.equal(draw(5, device=device).cpu(), expected)
    assert not torch.equal(draw(5, device=device).cpu(), expected)


def test_its_random_numbers_are_a_stream_of_their_own(device: Where) -> None:
    torch.manual_seed(3)
    cpu, own = torch.get_rng_state(), torch.own.get_rng_state()
    first = torch.rand(3, device=device)
    assert torch.equal(torch.get_rng_state(), cpu)
    torch.rand(3)
    torch.own.set_rng_state(own)
    assert torch.equal(torch.rand(3, device=device).cpu(), first.cpu())
    with torch.random.fork_rng(device_type=device.type):
        torch.manual_seed(9)
        torch.rand(3, device=device)
    second = torch.rand(3, device=device)
    torch.own.set_rng_state(own)
    assert torch.equal(torch.rand(6, device=device)[3:].cpu(), second.cpu())


def test_a_generator_of_the_cpu_is_refused(device: Where) -> None:
    generator = torch.Generator().manual_seed(0)
    with pytest.raises(RuntimeError, match="Expected a 'own' device type for generator but found 'cpu'"):
        torch.rand(3, device=device, generator=generator)
    with pytest.raises(RuntimeError, match="Expected a 'own' device type for generator but found 'cpu'"):
        torch.empty(3, device=device).bernoulli_(0.5, generator=generator)
