"""LoRA layers: the plan's seed decides where they start, and they are merged into narrow weights with one rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from skillgraft.errors import RunError
from skillgraft.live.grafted import parameter_names
from skillgraft.tasks.data import BatchOrder
from skillgraft.training.finetune import finetune
from skillgraft.training.methods import add_lora, is_lora, merge_lora, prepare
from tests.training.test_finetune import QUICK, place  # noqa: F401
from tests.training.test_masters import ADAMW, ROWS, SGD, assert_same_bits, narrow_bert, numbers, run
from tests.training.toys import ToyReadout, tiny_bert

LORA = ADAMW.with_changes(method="lora", lora_rank=2)


def lora_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters() if is_lora(name)}


def filled(model: nn.Module, *, seed: int = 5) -> nn.Module:
    """The model with LoRA layers that change something."""
    add_lora(model, rank=2)
    generator = torch.Generator().manual_seed(seed)
    for tensor in lora_of(model).values():
        tensor.normal_(std=0.1, generator=generator)
    return model


def test_the_start_follows_the_plans_seed() -> None:
    first, again, other = tiny_bert(), tiny_bert(), tiny_bert()
    for model, seed in ((first, 3), (again, 3), (other, 4)):
        torch.manual_seed(100 + seed if model is again else seed)  # the caller's own seed has no part in it
        prepare(model, LORA.with_changes(seed=seed))
    assert_same_bits(lora_of(again), lora_of(first))
    starts = [name for name in lora_of(first) if "lora_A" in name]
    assert starts
    assert not any(torch.equal(lora_of(other)[name], lora_of(first)[name]) for name in starts)
    values = torch.cat([lora_of(first)[name].view(-1) for name in starts])
    assert len(values.unique()) > 0.9 * len(values), "every matrix has a start of its own"


@pytest.mark.parametrize("steps", [1, 3])
def test_the_callers_random_state_stays_as_it_was(steps: int) -> None:
    model = tiny_bert(dropout=0.1)
    torch.manual_seed(11)
    before = torch.get_rng_state()
    run(model, LORA.with_changes(steps=steps, dropout=True))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_same_plan_writes_the_same_bytes(place: Path, tmp_path: Path) -> None:  # noqa: F811
    """Whatever was drawn in the process before."""
    written = {}
    for name, seed in (("first", 0), ("again", 0), ("other", 1)):
        torch.rand(7 + len(written))
        plan = QUICK.with_changes(method="lora", steps=3, seed=seed)
        finetune(place / "encoder", [place / "films.toml"], out=tmp_path / name, plan=plan)
        written[name] = (tmp_path / name / "model.safetensors").read_bytes()
    assert written["first"] == written["again"] != written["other"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_merging_rounds_once(dtype: torch.dtype) -> None:
    model = filled(tiny_bert().to(dtype))
    lora, before = lora_of(model), {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    wide = torch.promote_types(dtype, torch.float32)
    assert {tensor.dtype for tensor in lora.values()} == {wide}
    merge_lora(model)
    merged = dict(model.named_parameters())
    assert not any(is_lora(name) for name in merged)
    changed = 0
    for name, parameter in merged.items():
        module = name.removesuffix(".weight")
        assert parameter.dtype == dtype
        if f"{module}.lora_A.default.weight" in lora:
            a, b = (lora[f"{module}.lora_{part}.default.weight"] for part in "AB")
            base = before[f"{module}.base_layer.weight"]
            assert torch.equal(parameter, (base.to(wide) + b @ a).to(dtype)), name
            changed += int((parameter != base).sum())
        else:
            assert torch.equal(parameter, before.get(name, before.get(name.replace(".bias", ".base_layer.bias"))))
    assert changed > 1000


def test_rounding_the_change_first_would_give_other_bits() -> None:
    """What peft's own merge does: the test above would not see the difference if there were none."""
    model = filled(narrow_bert())
    layer = model.encoder.layer[0].attention.self.query
    base, change = layer.get_base_layer().weight, layer.get_delta_weight("default")
    assert not torch.equal(base + change.to(torch.bfloat16), (base.float() + change).to(torch.bfloat16))


@pytest.mark.parametrize("plan", [SGD, ADAMW], ids=["sgd", "adamw"])
def test_lora_layers_of_a_narrow_model_are_their_own_masters(plan: Any) -> None:
    """Trained as they are, in float32, by the gradients of the bf16 model: the bits of a plain loop."""
    plan = plan.with_changes(method="lora", lora_rank=2, seed=3)
    model, plain = narrow_bert(), narrow_bert()
    _, trainables = run(model, plan)
    assert trainables.masters == {}
    plain.requires_grad_(False)
    add_lora(plain, rank=2, seed=3)
    own = [parameter for name, parameter in plain.named_parameters() if is_lora(name)]
    settings = {"lr": plan.lr, "weight_decay": plan.weight_decay}
    adamw = plan.optimizer == "adamw"
    optimizer = torch.optim.AdamW(own, **settings) if adamw else torch.optim.SGD(own, momentum=0.9, **settings)
    order = BatchOrder([len(ROWS)], batch_size=8, steps=plan.steps, seed=3)
    for step in range(plan.steps):
        optimizer.zero_grad()
        batch = ToyReadout().collate([ROWS[row] for row in order.step(step)[1]])
        scores = ToyReadout().scores(plain, batch).float()
        (nn.functional.cross_entropy(scores, batch["labels"], reduction="sum") / 8).backward()
        optimizer.step()
    assert_same_bits(lora_of(model), lora_of(plain))
    merge_lora(model)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    start, end = numbers(narrow_bert()), numbers(model)
    changed = {name for name in end if not torch.equal(end[name], start[name])}
    assert changed
    assert all(name.endswith(("query.weight", "value.weight")) for name in changed)


def test_what_is_not_finite_is_not_merged() -> None:
    model = filled(tiny_bert())
    next(tensor for name, tensor in lora_of(model).items() if "lora_B" in name).fill_(torch.inf)
    before = {name: tensor.clone() for name, tensor in parameter_names(model).items() if not is_lora(name)}
    with pytest.raises(
        RunError, match=r"layer\.0\.attention\.self\.query: merged .* is not finite; use a smaller learn"
    ):
        merge_lora(model)
    assert_same_bits({name: tensor for name, tensor in parameter_names(model).items() if not is_lora(name)}, before)
