"""What each method trains, and how its scores are read: full, biases only, LoRA, adapters, linearised; in or out of a region."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from skillgraft.errors import InputError, RunError
from skillgraft.live.bottleneck import Adapters
from skillgraft.readouts.readout import Batch, Readout
from skillgraft.training.linearised import frozen_copy, linear_scores
from skillgraft.training.loop import Prepared, borrowed_random
from skillgraft.training.plan import TrainingPlan
from skillgraft.training.trainables import Trainables, choose_trainables
from skillgraft.values.names import is_head, kind_of
from skillgraft.values.region import Region

_ADAPTER = "default"  # peft's name of the one adapter that is put in


def add_lora(model: nn.Module, *, rank: int, seed: int = 0) -> None:
    """Put LoRA of this rank on every query and value matrix, in place; the scaling is 1 (alpha = rank).

    As in the LoRA paper. P1 (tables 6 and 7) does not name its matrices, but its 0.05 % at rank 1 fits query and value: 36,864
    numbers, 0.043 % of RoBERTa-base's layers. The same seed gives the same start. On a narrow model the added layers are
    float32 and compute in float32: they are what is trained and what is merged, without a rounding in between.
    """
    from peft import LoraConfig, inject_adapter_in_model

    targets = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and kind_of(f"{name}.weight") in ("query", "value")
    ]
    if not targets:  # fused attention, as in GPT-2: every attention matrix that peft knows for the architecture
        targets = _known_targets(model)
    config = LoraConfig(r=rank, lora_alpha=rank, lora_dropout=0.0, target_modules=targets)
    with borrowed_random(model):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, model, adapter_name=_ADAPTER)
    for name, parameter in model.named_parameters():
        if is_lora(name):  # peft gives them the format of the matrix that they stand beside
            parameter.data = parameter.data.to(torch.promote_types(parameter.dtype, torch.float32))


@torch.no_grad()
def merge_lora(model: nn.Module) -> None:
    """Add the low-rank changes to the weights and take the extra layers out again.

    A weight becomes round(W + scaling · B·A), computed in float32 and rounded once. peft's own merge rounds the change first.
    """
    from peft.tuners.lora import LoraLayer

    for name, module in list(model.named_modules()):
        if isinstance(module, LoraLayer):
            layer = module.get_base_layer()
            merged = (layer.weight + module.get_delta_weight(_ADAPTER)).to(layer.weight.dtype)
            if not torch.isfinite(merged).all():
                raise RunError(f"{name}: merged with its LoRA layers it is not finite; use a smaller learning rate")
            layer.weight.copy_(merged)
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, layer)


def is_lora(name: str) -> bool:
    return ".lora_" in name


def _known_targets(model: nn.Module) -> list[str]:
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as KNOWN

    kind = getattr(getattr(model, "config", None), "model_type", "")
    if kind not in KNOWN:
        raise InputError(
            f"LoRA needs query and value matrices; found none in {type(model).__name__} ({kind or 'no type'})"
        )
    return list(KNOWN[kind])


def prepare(
    model: nn.Module,
    plan: TrainingPlan,
    *,
    inside: Region | None = None,
    outside: Region | None = None,
    read_heads: bool = True,
) -> Prepared:
    """Make the model ready for a plan: LoRA layers are put in and adapters attached here, the rest is frozen.

    `read_heads`: whether the readout reads heads that hold the task's classes; they train, too.
    """
    if plan.adds_parameters:
        if inside is not None or outside is not None:
            raise InputError(f"method {plan.method} trains parameters that it adds: a region cannot restrict it")
        return _with_added(model, plan, read_heads=read_heads)
    trainables = choose_trainables(
        model,
        inside=inside,
        outside=outside,
        biases=plan.method == "bias",
        embeddings=plan.train_embeddings,
        lm_head=plan.train_lm_head,
        read_heads=read_heads,
    )
    if plan.method != "linear":
        return Prepared(trainables)
    start = frozen_copy(model)

    def scores(current: nn.Module, readout: Readout, batch: Batch) -> Tensor:
        return linear_scores(current, readout, batch, base=start)

    return Prepared(trainables, scores)


def _with_added(model: nn.Module, plan: TrainingPlan, *, read_heads: bool) -> Prepared:
    """The added parameters and the heads that are read train; nothing else does."""
    model.requires_grad_(False)
    adapters = None
    if plan.method == "lora":
        add_lora(model, rank=plan.lora_rank, seed=plan.seed)
        added = {name: parameter for name, parameter in model.named_parameters() if is_lora(name)}
    else:
        adapters = Adapters.fresh(model, plan.method, bottleneck=plan.bottleneck, seed=plan.seed)
        adapters.attach(model)
        added = adapters.tensors
    heads = {name: parameter for name, parameter in model.named_parameters() if read_heads and is_head(name)}
    for parameter in heads.values():
        parameter.requires_grad_(True)
    return Prepared(Trainables({**added, **heads}), adapters=adapters)
