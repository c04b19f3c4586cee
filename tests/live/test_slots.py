"""Tensors that transformers stores in another order than it holds them: counted right, left alone, refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

from skillgraft import Graft, Region, Scope, grafted
from skillgraft.errors import InputError
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.folders.extract import extract
from skillgraft.live.grafted import fingerprint_of, graft_between, live_model, parameter_names, saved_names, tensors_of
from skillgraft.live.slots import rearranged, slots, stored

JOINED = "encoder.layers.0.attn.Wqkv.weight"  # query, key and value in one, which the model has apart
PLAIN = "encoder.layers.0.mlp.fc2.weight"


def nomic() -> Any:
    if not hasattr(transformers, "NomicBertModel"):
        pytest.skip("needs a transformers with NomicBert")
    torch.manual_seed(0)
    config = transformers.NomicBertConfig(
        vocab_size=20, hidden_size=8, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2
    )
    model = transformers.NomicBertModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def pair(root: Path) -> tuple[Path, Path]:
    model = nomic()
    model.save_pretrained(root / "base")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.5
    model.save_pretrained(root / "tuned")
    return root / "base", root / "tuned"


def bits_of(model: nn.Module) -> dict[str, bytes]:
    return {name: tensor.detach().numpy().tobytes() for name, tensor in model.state_dict().items()}


def test_a_model_with_joined_tensors_has_its_folders_fingerprint(tmp_path: Path) -> None:
    base, _ = pair(tmp_path)
    folder = Checkpoint.open(base)
    for model in (nomic(), transformers.AutoModel.from_pretrained(base)):
        assert fingerprint_of(model) == folder.fingerprint
        copies = rearranged(model)
        assert set(copies) == {JOINED, JOINED.replace("0", "1")} == stored(model).out_of_reach
        assert all(np.array_equal(copy.numpy(), folder.read(name)) for name, copy in copies.items())
    with torch.no_grad():
        model.layers[0].self_attn.k_proj.weight += 1
    assert fingerprint_of(model) != folder.fingerprint


def test_only_a_graft_that_touches_them_is_refused(tmp_path: Path) -> None:
    base, tuned = pair(tmp_path)
    model, g = transformers.AutoModel.from_pretrained(base), extract(base, tuned)
    before = bits_of(model)
    with pytest.raises(
        InputError, match=rf"{JOINED}.* which transformers fuses or transposes on loading.*to the folder"
    ):
        live_model(model).put_on(g)
    assert bits_of(model) == before
    within_reach = {name: at for name, at in g.region.sites.items() if "Wqkv" not in name}
    part = g & Region(g.region.scope, within_reach)
    wanted = transformers.AutoModel.from_pretrained(tuned)
    with grafted(model, part):
        now, theirs = bits_of(model), bits_of(wanted)
        assert {name for name in now if now[name] != theirs[name]} == {
            f"layers.{layer}.self_attn.{kind}_proj.weight" for layer in range(2) for kind in "qkv"
        }
    assert bits_of(model) == before


def test_their_parameters_keep_the_models_own_names() -> None:
    """So they train, count and go on live under those, as they do in parameter_names."""
    model = nomic()
    found = slots(model)
    assert list(found) == list(parameter_names(model))
    assert all(found[name].tensor is parameter for name, parameter in parameter_names(model).items())
    assert saved_names(model)["layers.0.self_attn.q_proj.weight"] == "layers.0.self_attn.q_proj.weight"
    assert saved_names(model)["layers.0.mlp.down_proj.weight"] == PLAIN
    other = nomic()
    with torch.no_grad():
        other.layers[0].self_attn.q_proj.weight += 1
    g = graft_between(model, other, Region.full(Scope.select("layers", tensors_of(model).shapes)))
    assert g.base_fingerprint == fingerprint_of(model)
    with grafted(model, g):
        assert bits_of(model) == bits_of(other)


class Square(nn.Module):
    """Pretends to be of transformers: its folder has `turned` transposed, under the same name and in the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.turned = nn.Parameter(torch.arange(9.0).view(3, 3))
        self.straight = nn.Parameter(torch.arange(4.0))
        self.alias = self.straight
        self.register_buffer("counted", torch.zeros(2))
        self.register_buffer("computed", torch.zeros(2), persistent=False)

    def save_pretrained(self) -> None: ...


def transposing(_model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.t().contiguous() if name == "turned" else tensor for name, tensor in tensors.items()}


@pytest.fixture
def square(monkeypatch: pytest.MonkeyPatch) -> Square:
    monkeypatch.setattr("skillgraft.live.slots.stored_form", transposing)
    return Square()


def test_a_transposed_tensor_of_the_same_name_and_shape_is_out_of_reach(square: Square) -> None:
    assert stored(square).out_of_reach == {"turned"}
    assert rearranged(square)["turned"].tolist() == square.turned.t().tolist()
    scope = Scope.select("all", {"turned": (3, 3), "straight": (4,)})
    zero = {"turned": np.zeros((3, 3), np.float32), "straight": np.arange(4, dtype=np.float32)}
    # At site 0 a transposed tensor holds the same number: only the layout tells.
    touching = Graft.between(zero, {**zero, "turned": zero["turned"] + 1}, Region(scope, {"turned": [0]}))
    with pytest.raises(InputError, match="changes turned, which transformers fuses or transposes"):
        live_model(square).put_on(touching)
    beside = Graft.between(zero, {**zero, "straight": zero["straight"] + 1}, Region(scope, {"straight": [3]}))
    with grafted(square, beside):
        assert square.straight.tolist() == [0, 1, 2, 4]


def test_parameters_once_and_saved_buffers_not(square: Square) -> None:
    assert list(slots(square)) == ["turned", "straight"]
    assert set(stored(square).slots) == {"turned", "straight", "alias", "counted"}
    assert stored(square).unstored == {"turned"}
    assert set(tensors_of(square).shapes) == {"turned", "alias", "counted"}


def test_a_new_tensor_is_found(square: Square) -> None:
    assert "late" not in slots(square)
    square.late = nn.Parameter(torch.zeros(1))
    assert "late" in slots(square)


def test_plain_torch_models_are_stored_as_they_are() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    assert set(stored(model).slots) == model.state_dict().keys()
    assert list(slots(model)) == [name for name, _ in model.named_parameters()]
    assert not stored(model).out_of_reach
    assert rearranged(model) == {}
