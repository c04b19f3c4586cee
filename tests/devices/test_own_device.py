"""The device by itself: the CPU's numbers, no mixing, views that share memory, autograd, and random numbers of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

Where = torch.device
CPU = torch.device("cpu")
X = torch.linspace(-2, 3, 24).view(4, 6).sin()
AT = torch.tensor([3, 0, 2])
IDS = torch.tensor([[0, 3, 1], [2, 2, 0]])


def x(where: Where) -> Tensor:
    return X.clone().to(where)


OPERATIONS: dict[str, Callable[[Where], Any]] = {
    "zeros": lambda d: torch.zeros(2, 3, device=d),
    "full": lambda d: torch.full((2,), 1.5, dtype=torch.bfloat16, device=d),
    "arange": lambda d: torch.arange(3, 9, device=d),
    "tensor": lambda d: torch.tensor([[1.0, 2.0]], device=d),
    "as_tensor": lambda d: torch.as_tensor(np.float32([1, 2]), device=d),
    "empty_strided": lambda d: torch.empty_strided((2, 3), (1, 2), device=d).fill_(7),
    "eye": lambda d: torch.eye(3, device=d),
    "tril": lambda d: x(d).tril(),
    "new_tensor": lambda d: x(d).new_tensor([1, 2]),
    "numbers": lambda d: (2 - x(d)) * 3 + x(d) % 2 + x(d).remainder(0.3),
    "one number of the CPU": lambda d: x(d) * torch.tensor(2.5, dtype=torch.float64),
    "in place": lambda d: x(d).add_(1).mul_(2).clamp_(min=0).div_(3),
    "out": lambda d: torch.add(x(d), 1, out=torch.empty(4, 6, device=d)),
    "growing out": lambda d: torch.add(x(d), 1, out=torch.empty(0, device=d)),
    "addcmul out": lambda d: torch.addcmul(x(d), x(d), x(d), out=torch.empty(4, 6, device=d).view(-1).view(4, 6)),
    "matmul": lambda d: x(d) @ x(d).T,
    "einsum": lambda d: torch.einsum("ij,kj->ik", x(d), x(d)),
    "index": lambda d: x(d)[AT.to(d)],
    "index by the CPU": lambda d: x(d)[AT],
    "index by a mask": lambda d: x(d)[x(d) > 0],
    "index by int32": lambda d: x(d).view(-1)[AT.int().to(d)],
    "index_put": lambda d: x(d).index_put_((AT.to(d),), torch.ones(6, device=d), accumulate=True),
    "index_put by the CPU": lambda d: x(d).index_put_((AT,), torch.ones(6, device=d)),
    "index_add": lambda d: x(d).index_add_(0, AT.to(d), torch.ones(3, 6, device=d)),
    "masked_fill": lambda d: x(d).masked_fill(x(d) < 0, -torch.inf),
    "where": lambda d: torch.where(x(d) > 0, x(d), -1.0),
    "gather": lambda d: x(d).gather(1, IDS.to(d)),
    "scatter": lambda d: x(d).scatter_(1, IDS.to(d), 9.0),
    "scatter_add": lambda d: x(d).scatter_add_(1, IDS.to(d), torch.ones(2, 3, device=d)),
    "take_along_dim": lambda d: x(d)[:2].take_along_dim(IDS.to(d), 1),
    "topk": lambda d: torch.topk(x(d), 3),
    "sort": lambda d: x(d).sort(descending=True, stable=True),
    "argsort": lambda d: x(d).argsort(),
    "kthvalue": lambda d: x(d).view(-1).kthvalue(5),
    "searchsorted": lambda d: torch.searchsorted(torch.arange(5.0, device=d), x(d)),
    "nonzero": lambda d: (x(d) > 0).nonzero(),
    "unique": lambda d: IDS.to(d).unique(return_counts=True),
    "bincount": lambda d: IDS.to(d).view(-1).bincount(),
    "cumsum": lambda d: x(d).cumsum(1),
    "max": lambda d: x(d).max(1),
    "quantile": lambda d: x(d).quantile(0.3),
    "norm": lambda d: torch.linalg.vector_norm(x(d)),
    "cat": lambda d: torch.cat([x(d), x(d)]),
    "split": lambda d: x(d).split([1, 3]),
    "bits": lambda d: x(d).view(torch.int32),
    "bfloat16": lambda d: x(d).to(torch.bfloat16).float(),
    "embedding": lambda d: F.embedding(IDS.to(d), x(d)),
    "layer_norm": lambda d: F.layer_norm(x(d), (6,), torch.ones(6, device=d)),
    "rms_norm": lambda d: F.rms_norm(x(d), (6,)),
    "gelu": lambda d: F.gelu(x(d), approximate="tanh"),
    "silu": lambda d: F.silu(x(d)),
    "softmax": lambda d: x(d).softmax(-1),
    "log_softmax": lambda d: x(d).log_softmax(-1),
    "cross_entropy": lambda d: F.cross_entropy(x(d), torch.tensor([0, 5, -100, 2], device=d)),
    "conv2d": lambda d: F.conv2d(x(d).view(1, 1, 4, 6), torch.ones(2, 1, 2, 2, device=d), stride=2),
    "attention": lambda d: F.scaled_dot_product_attention(*[x(d).view(1, 2, 4, 3)] * 3, is_causal=True),
    "sigmoid_backward": lambda d: torch.ops.aten.sigmoid_backward(x(d), x(d).sigmoid()),
    "complex": lambda d: torch.view_as_real(torch.polar(x(d).abs(), x(d)).conj() * 2),
    "foreach": lambda d: torch._foreach_mul([x(d), x(d)], 2),
    "to a tensor": lambda d: X.double().to(torch.zeros(1, device=d)),
    "nothing": lambda d: torch.zeros(0, 3, device=d) + torch.zeros(0, 3, device=d),
}


def flat(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else list(value)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_gives_the_numbers_of_the_cpu(device: Where, name: str) -> None:
    for found, expected in zip(flat(OPERATIONS[name](device)), flat(OPERATIONS[name](CPU)), strict=True):
        assert found.device == device
        assert (found.dtype, found.shape, found.stride()) == (expected.dtype, expected.shape, expected.stride())
        assert torch.equal(found.cpu(), expected)


MIXED: dict[str, Callable[[Tensor], Any]] = {
    "add": lambda x: x + X,
    "the other way round": lambda x: X + x,
    "in place": lambda x: x.mul_(X),
    "into the CPU": lambda x: X.clone().add_(x),
    "one number of the CPU is written": lambda x: torch.zeros(()).add_(x.sum()),
    "out": lambda x: torch.add(x, 1, out=torch.empty(4, 6)),
    "one dimension": lambda x: x * torch.ones(1),
    "matmul": lambda x: x @ X.T,
    "linear": lambda x: F.linear(x, X),
    "cat": lambda x: torch.cat([x, X]),
    "where": lambda x: torch.where(x > 0, x, X),
    "gather": lambda x: x.gather(1, IDS),
    "embedding": lambda x: F.embedding(IDS, x),
    "an index of the device into the CPU": lambda x: X[AT.to(x.device)],
    "numbers of the CPU at indices": lambda x: x.index_put_((AT.to(x.device),), torch.ones(6)),
    "an assignment of a CPU mask's numbers": lambda x: x.masked_fill_(X > 0, 0.0),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.tensor([0, 1, 2, 3])),
    "equal": lambda x: torch.equal(x, X),
    "foreach": lambda x: torch._foreach_add_([x, x], [X, X]),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=torch.ones(4, 4, dtype=torch.bool)),
}


@pytest.mark.parametrize("name", MIXED)
def test_mixing_is_refused(device: Where, name: str) -> None:
    x = X.to(device)
    with pytest.raises(RuntimeError, match=r"Expected all tensors to be on the same device.*own:0 and cpu"):
        MIXED[name](x)
    assert torch.equal(x.cpu(), X)


def test_numpy_cannot_reach_it(device: Where) -> None:
    with pytest.raises(TypeError, match="can't convert own:0 device type tensor to numpy"):
        X.to(device).numpy()
    with pytest.raises(TypeError, match="can't convert own:0"):
        np.asarray(X.to(device))


def test_what_may_cross(device: Where) -> None:
    x = X.to(device)
    assert x.data_ptr() != X.data_ptr()
    x.copy_(X + 1)
    there = torch.empty(4, 6).copy_(x)
    assert torch.equal(there, X + 1)
    assert (x[1, 2].item(), float(x[1, 2]), x[0].tolist()) == (
        there[1, 2].item(),
        float(there[1, 2]),
        there[0].tolist(),
    )
    assert bool((x > -9).all())
    assert "device='own:0'" in repr(x)
    assert torch.equal(x.to("cpu", torch.float64), there.double())


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "view": lambda x: x.view(-1)[6:12],
    "data": lambda x: x.data.view(-1)[6:12],
    "detach": lambda x: x.detach().reshape(2, 2, 6)[0, 1],
    "transpose": lambda x: x.T[:, 1],
    "select": lambda x: x.select(0, 1),
    "narrow": lambda x: x.narrow(0, 1, 1).squeeze(0),
    "unbind": lambda x: x.unbind()[1],
    "as_strided": lambda x: x.as_strided((6,), (1,), 6),
    "unfold": lambda x: x.unfold(0, 1, 1)[1, :, 0],
    "view_as": lambda x: x.view_as(x)[1],
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_write_through_a_view_changes_the_tensor(device: Where, name: str) -> None:
    x = X.to(device)
    VIEWS[name](x)[torch.tensor([0, 4], device=device)] = torch.tensor([7.0, 8.0], device=device)
    expected = X.clone()
    expected[1, 0], expected[1, 4] = 7.0, 8.0
    assert torch.equal(x.cpu(), expected)


def test_bits_through_a_view(device: Where) -> None:
    x = X.to(device)
    x.view(torch.int32).view(-1)[3] = 0x7FC01234
    assert x.cpu().view(torch.int32)[0, 3] == 0x7FC01234


def test_a_parameter_gets_other_numbers(device: Where) -> None:
    p, new = nn.Parameter(X.to(device)), torch.ones(4, 6, device=device)
    before = p.data_ptr()
    assert p.data_ptr() == before
    p.data = new
    assert p.data_ptr() == new.data_ptr() != before
    new.zero_()
    assert not p.any()


def test_storages(device: Where, tmp_path: Path) -> None:
    x = X.to(device)
    assert x.untyped_storage().data_ptr() == x.view(-1)[2:].untyped_storage().data_ptr()
    assert torch.UntypedStorage(8, device=device).device == torch.UntypedStorage(device=device).device == device
    assert torch.UntypedStorage(8).device == CPU
    pair = copy.deepcopy({"whole": x, "row": x[1]})
    pair["row"].zero_()
    assert pair["whole"].device == device
    assert not pair["whole"][1].any()
    assert torch.equal(x.cpu(), X)
    save_file({"x": x}, tmp_path / "x.safetensors")
    assert torch.equal(load_file(tmp_path / "x.safetensors")["x"], X)


def test_resize(device: Where) -> None:
    x = torch.arange(6, device=device)
    assert x.resize_(4).tolist() == [0, 1, 2, 3]
    assert x.resize_(100).shape == (100,)
    assert x.fill_(3).sum() == 300
