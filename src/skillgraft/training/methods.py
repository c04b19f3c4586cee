"""What each method trains, and how its scores are read: full, biases only, LoRA, adapters, linearised; in or out of a region."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from skillgraft.bottleneck import Adapters
from skillgraft.errors import InputError
from skillgraft.names import is_head
from skillgraft.readouts.readout import Batch, Readout
from skillgraft.region import Region
from skillgraft.training.adapters import add_lora, is_lora
from skillgraft.training.linearised import frozen_copy, linear_scores
from skillgraft.training.loop import Scorer, own_scores
from skillgraft.training.plan import Plan
from skillgraft.training.trainables import Trainables, choose_trainables


class Prepared(NamedTuple):
    """What trains under a plan, how the model's scores are read, and the adapters that were attached for it."""

    trainables: Trainables
    scores: Scorer = own_scores
    adapters: Adapters | None = None


def prepare(
    model: nn.Module,
    plan: Plan,
    *,
    only: Region | None = None,
    outside: Region | None = None,
    read_heads: bool = True,
) -> Prepared:
    """Make the model ready for a plan: LoRA layers are put in and adapters attached here, the rest is frozen.

    `read_heads`: whether the readout reads heads that hold the task's classes; they train, too.
    """
    if plan.adds_parameters:
        if only is not None or outside is not None:
            raise InputError(f"method {plan.method} trains parameters that it adds: a region cannot restrict it")
        return _with_added(model, plan, read_heads=read_heads)
    trainables = choose_trainables(
        model,
        only=only,
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


def _with_added(model: nn.Module, plan: Plan, *, read_heads: bool) -> Prepared:
    """The added parameters and the heads that are read train; nothing else does."""
    model.requires_grad_(False)
    adapters = None
    if plan.method == "lora":
        add_lora(model, rank=plan.lora_rank)
        added = {name: parameter for name, parameter in model.named_parameters() if is_lora(name)}
    else:
        adapters = Adapters.fresh(model, plan.method, bottleneck=plan.bottleneck, seed=plan.seed)
        adapters.attach(model)
        added = adapters.tensors
    heads = {name: parameter for name, parameter in model.named_parameters() if read_heads and is_head(name)}
    for parameter in heads.values():
        parameter.requires_grad_(True)
    return Prepared(Trainables({**added, **heads}, {}), adapters=adapters)
