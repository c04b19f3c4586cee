"""LoRA through peft: low-rank layers put into a model, and merged into its weights at the end."""

from __future__ import annotations

from torch import nn

from skillgraft.errors import InputError
from skillgraft.names import kind_of


def add_lora(model: nn.Module, *, rank: int) -> None:
    """Put LoRA of this rank on every query and value matrix, in place; the scaling is 1 (alpha = rank).

    As in the LoRA paper. P1 (tables 6 and 7) does not name its matrices, but its 0.05 % at rank 1 fits query and value: 36,864
    numbers, 0.043 % of RoBERTa-base's layers.
    """
    from peft import LoraConfig, inject_adapter_in_model

    targets = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and kind_of(f"{name}.weight") in ("query", "value")
    ]
    if not targets:  # fused attention, as in GPT-2: every attention matrix that peft knows for the architecture
        targets = _known_targets(model)
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=rank, lora_dropout=0.0, target_modules=targets), model)


def merge_lora(model: nn.Module) -> None:
    """Add the low-rank changes to the weights and take the extra layers out again."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, module in list(model.named_modules()):
        if isinstance(module, BaseTunerLayer):
            module.merge(safe_merge=True)
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, module.get_base_layer())


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
