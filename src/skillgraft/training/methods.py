"""What each method trains, and how its scores are read: full, biases only, LoRA, linearised; inside or outside a region."""

from __future__ import annotations

from torch import Tensor, nn

from skillgraft.errors import InputError
from skillgraft.names import is_head
from skillgraft.readouts.readout import Batch, Readout
from skillgraft.region import Region
from skillgraft.training.adapters import add_lora, is_lora
from skillgraft.training.linearised import frozen_copy, linear_scores
from skillgraft.training.loop import Scorer, own_scores
from skillgraft.training.plan import Plan
from skillgraft.training.trainables import Trainables, choose_trainables


def prepare(
    model: nn.Module, plan: Plan, *, only: Region | None = None, outside: Region | None = None
) -> tuple[Trainables, Scorer]:
    """What trains under this plan, and how its scores are read. LoRA layers are put in here."""
    if plan.method == "lora":
        if only is not None or outside is not None:
            raise InputError("LoRA trains its own matrices: a region cannot restrict it")
        add_lora(model, rank=plan.lora_rank)
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        names = {name: p for name, p in model.named_parameters() if is_lora(name) or is_head(name)}
        for parameter in names.values():
            parameter.requires_grad_(True)
        return Trainables(names, {}), own_scores
    trainables = choose_trainables(
        model,
        only=only,
        outside=outside,
        biases=plan.method == "bias",
        embeddings=plan.train_embeddings,
        lm_head=plan.train_lm_head,
    )
    if plan.method != "linear":
        return trainables, own_scores
    start = frozen_copy(model)

    def scores(current: nn.Module, readout: Readout, batch: Batch) -> Tensor:
        return linear_scores(current, readout, batch, base=start)

    return trainables, scores
