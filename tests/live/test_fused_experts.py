"""Mixtures of experts, which transformers fuses on loading: grafts of folders go on live models and come off, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from skillgraft import Graft, Region, Scope, grafted
from skillgraft.errors import InputError, WrongBase
from skillgraft.folders.apply import apply
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.folders.extract import extract
from skillgraft.live.grafted import as_numpy, fingerprint_of, graft_between, live_model, tensors_of
from skillgraft.live.slots import Slot, slots
from tests.model_folders import named, same_weights

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 20,
    "hidden_size": 8,
    "intermediate_size": 16,  # the grouped products of torch want strides of 16 bytes
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_experts_per_tok": 2,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
}
# Class, what it needs besides, and how a folder and the model call the third expert's first matrix in layer 1.
FAMILIES: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "mixtral": (
        "MixtralForCausalLM",
        {"num_local_experts": 4},
        "block_sparse_moe.experts.2.w1",
        "mlp.experts.gate_up_proj",
    ),
    "qwen2": (
        "Qwen2MoeForCausalLM",
        {"num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24},
        "mlp.experts.2.gate_proj",
        "mlp.experts.gate_up_proj",
    ),
    "qwen3": (
        "Qwen3MoeForCausalLM",
        {"num_experts": 4, "moe_intermediate_size": 16, "head_dim": 4},
        "mlp.experts.2.gate_proj",
        "mlp.experts.gate_up_proj",
    ),
    "olmoe": ("OlmoeForCausalLM", {"num_experts": 4}, "mlp.experts.2.gate_proj", "mlp.experts.gate_up_proj"),
}
FORMATS = [torch.float32, torch.bfloat16]
FIRST = "layers.1.block_sparse_moe.experts.2.w1.weight"
SECOND = "layers.1.block_sparse_moe.experts.2.w3.weight"
FUSED = "layers.1.mlp.experts.gate_up_proj"


def built(family: str = "mixtral", *, dtype: Any = torch.float32, **settings: Any) -> Any:
    """A model from a configuration alone: nobody loaded it."""
    name, needs, *_ = FAMILIES[family]
    torch.manual_seed(0)
    cls = getattr(transformers, name)
    model = cls(cls.config_class(**{**SIZES, **needs, **settings})).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def moved(model: Any, *, share: float = 0.3) -> None:
    """About that share of every parameter changes."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.5 * (torch.rand(parameter.shape) < share)


def folders(root: Path, family: str, dtype: Any) -> tuple[Path, Path]:
    model = built(family, dtype=dtype)
    model.save_pretrained(root / "base")
    moved(model)
    model.save_pretrained(root / "tuned")
    return root / "base", root / "tuned"


def loaded(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()


def bits_of(model: Any) -> dict[str, Any]:
    integers = {2: torch.int16, 4: torch.int32}
    return {name: p.detach().clone().view(integers[p.itemsize]) for name, p in model.named_parameters()}


def same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def logits(model: Any) -> Any:
    with torch.no_grad():
        return model(torch.arange(3, 17).view(2, 7)).logits


@pytest.mark.parametrize("reach", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_graft_of_folders_goes_on_the_live_model_and_comes_off(
    family: str, dtype: Any, reach: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reach == "torch":  # as if numpy could not reach the memory
        monkeypatch.setattr("skillgraft.live.binding._THROUGH_NUMPY", ())
    base, tuned = folders(tmp_path, family, dtype)
    g = extract(base, tuned)
    model, wanted = loaded(base), loaded(tuned)
    assert model.dtype == dtype
    before, base_logits = bits_of(model), logits(model)
    with grafted(model, g):
        assert same(bits_of(model), bits_of(wanted))
        assert torch.equal(logits(model), logits(wanted))
    assert same(bits_of(model), before)
    assert torch.equal(logits(model), base_logits)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_live_model_is_its_folder_tensor_by_tensor(family: str, dtype: Any, tmp_path: Path) -> None:
    base, tuned = folders(tmp_path, family, dtype)
    folder = Checkpoint.open(base)
    for model in (loaded(base), built(family, dtype=dtype)):
        assert fingerprint_of(model) == folder.fingerprint
        assert fingerprint_of(model) != Checkpoint.open(tuned).fingerprint
        tensors = tensors_of(model)
        assert tensors.shapes == folder.shapes
        assert all(array.tobytes() == folder.read(name).tobytes() for name, array in tensors.arrays.items())
        found = slots(model)
        assert {name: tuple(slot.data.shape) for name, slot in found.items()} == folder.shapes
        assert all(as_numpy(slot.data).tobytes() == folder.read(n).tobytes() for n, slot in found.items())


@pytest.mark.parametrize("family", FAMILIES)
def test_an_experts_tensor_is_a_stretch_of_the_fused_parameter(family: str) -> None:
    *_, stored, fused = FAMILIES[family]
    model = built(family)
    slot = slots(model)[f"layers.1.{stored}.weight"]
    whole = model.get_parameter(f"model.layers.1.{fused}")
    assert slot.tensor is whole
    assert not slot.is_whole
    assert slot.numel == whole[2, :16].numel()
    assert torch.equal(slot.data, whole[2, :16])
    assert whole.grad is None
    logits_now = model(torch.arange(3, 17).view(2, 7)).logits
    logits_now.square().sum().backward()
    assert torch.equal(slot.part(whole.grad), whole.grad[2, :16])
    assert torch.equal(slot.own(whole.grad), whole.grad[2, :16].reshape(-1))
    assert torch.equal(slot.part(torch.arange(whole.numel()).view(whole.shape)).view(-1), 2 * 256 + torch.arange(128))
    slot.data[0, 0] = 7
    slot.part(whole.grad)[0, 1] = 9
    assert whole[2, 0, 0] == 7
    assert whole.grad[2, 0, 1] == 9


def test_the_other_parameters_are_whole() -> None:
    model = built()
    whole = {name: slot for name, slot in slots(model).items() if ".experts." not in name}
    assert len(whole) == 3 * 7 + 3
    assert all(slot.is_whole for slot in whole.values())
    query = whole["layers.0.self_attn.q_proj.weight"]
    assert query.tensor is query.part(query.tensor) is model.model.layers[0].self_attn.q_proj.weight
    assert (query.numel, query.stored_shape) == (64, (8, 8))
    assert sum(slot.numel for slot in slots(model).values()) == sum(p.numel() for p in model.parameters())


def test_a_slot_follows_a_parameter_that_is_replaced() -> None:
    model = built()
    slot = slots(model)[FIRST]
    experts = model.model.layers[1].mlp.experts
    experts.gate_up_proj = torch.nn.Parameter(torch.zeros_like(experts.gate_up_proj))
    assert slot.tensor is experts.gate_up_proj
    assert slot.data.eq(0).all()


def test_a_view_of_what_is_not_contiguous_is_refused() -> None:
    slot = slots(built())[FIRST]
    turned = torch.zeros(4, 8, 32).transpose(1, 2)
    with pytest.raises(
        InputError, match=r"gate_up_proj: expected a contiguous tensor to view \[16, 8\] of it, found strides"
    ):
        slot.part(turned)


def graft_at(model: Any, sites: Mapping[str, list[int]], step: float = 1.0) -> Graft:
    arrays = tensors_of(model).arrays
    scope = Scope.select("all", tensors_of(model).shapes)
    tuned = {name: arrays[name] + step for name in sites}
    return Graft.between(
        {name: arrays[name] for name in sites}, tuned, Region(scope, sites), base_fingerprint=fingerprint_of(model)
    )


def test_a_graft_of_one_expert_touches_nothing_else() -> None:
    model = built()
    g, before = graft_at(model, {FIRST: [0, 127], SECOND: [3]}), model.get_parameter(f"model.{FUSED}").detach().clone()
    rest = {name: bits for name, bits in bits_of(model).items() if name != f"model.{FUSED}"}
    with grafted(model, g):
        changed = (model.get_parameter(f"model.{FUSED}") != before).nonzero().tolist()
        assert changed == [[2, 0, 0], [2, 15, 7], [2, 16, 3]]
        now = bits_of(model)
        assert all(torch.equal(now[name], bits) for name, bits in rest.items())
    assert torch.equal(model.get_parameter(f"model.{FUSED}"), before)


def test_grafts_of_two_experts_nest_and_name_their_own_tensor() -> None:
    model = built()
    g, h = graft_at(model, {FIRST: [0, 1]}), graft_at(model, {SECOND: [0, 1]})
    before, live = bits_of(model), live_model(model)
    live.put_on(g)
    live.put_on(h)
    with torch.no_grad():
        model.get_parameter(f"model.{FUSED}")[2, 16, 0] += 1  # the first entry of SECOND
    live.take_off(g)
    with pytest.raises(WrongBase, match=rf"in {SECOND} 1 of 2 sites"):
        live.take_off(h)
    live.take_off(h, force=True)
    assert same(bits_of(model), before)


def test_a_write_to_one_expert_fails_an_older_graph() -> None:
    model = built()
    g = graft_at(model, {FIRST: [0]})
    loss = model(torch.arange(3, 17).view(2, 7)).logits.square().sum()
    with grafted(model, g), pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_model_that_moves_while_a_graft_is_on() -> None:
    model = built()
    g, before = graft_at(model, {FIRST: [0], SECOND: [5]}), bits_of(model)
    with grafted(model, g):
        fused = model.get_parameter(f"model.{FUSED}")
        fused.data = fused.data.clone()
    assert same(bits_of(model), before)


def test_the_wrong_base_is_named_by_the_folders_tensor() -> None:
    model = built()
    g = graft_at(model, {FIRST: [0, 1], SECOND: [5]})
    slots(model)[FIRST].data[0, 0] += 1
    with pytest.raises(WrongBase, match=rf"in {FIRST} 1 of 2 sites hold other numbers"):
        live_model(model).put_on(g)


def test_a_graft_between_live_models_applies_to_the_folder(tmp_path: Path) -> None:
    base, tuned = folders(tmp_path, "qwen3", torch.float32)
    ours, theirs = loaded(base), loaded(tuned)
    g = graft_between(ours, theirs, Region.full(Scope.select("all", tensors_of(ours).shapes)))
    apply(base, *named(g), out=tmp_path / "on")
    assert same_weights(tmp_path / "on", tuned)


def test_a_single_expert_is_the_whole_parameter_in_another_shape(tmp_path: Path) -> None:
    model = built(num_local_experts=1, num_experts_per_tok=1)
    model.save_pretrained(tmp_path / "base")
    assert tensors_of(model).shapes == Checkpoint.open(tmp_path / "base").shapes
    slot = slots(model)["layers.0.block_sparse_moe.experts.0.w2.weight"]
    assert slot.stored_shape == (8, 16)
    assert tuple(slot.tensor.shape) == (1, 8, 16)
    assert not slot.is_whole


def test_layers_that_look_alike_are_cut_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parameter's positions take as much memory as the parameter: one at a time, and one layer for all."""
    from skillgraft.live import slots as module

    sizes: list[int] = []

    def counted(model: Any, tensors: Mapping[str, Any]) -> Any:
        sizes.extend(tensor.numel() for tensor in tensors.values() if tensor.device.type != "meta")
        return original(model, tensors)

    original = module.stored_form
    monkeypatch.setattr(module, "stored_form", counted)
    model = built()
    for _ in range(2):  # and the second time it is known
        assert len(slots(model)) == len(tensors_of(model).shapes)
    assert sizes == [math.prod((4, 32, 8)), math.prod((4, 8, 16))]


def test_slots_are_compared_by_identity() -> None:
    table = {"weight": torch.zeros(2)}
    slot = Slot(table, "weight")
    assert slot == slot
    assert slot != Slot(table, "weight")
    assert slot.identity == Slot(table, "weight").identity
    assert len({slot, Slot(table, "weight")}) == 2
