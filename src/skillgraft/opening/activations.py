"""Activations computed again in the backward pass instead of being kept: about a third more time, a fraction of the memory.

    with recomputed(model):
        loss(model, batch).backward()        # the same gradients

transformers does so in training mode alone; a search runs in eval mode, where its dropout is off. Refused: a model whose
architecture has no layers of transformers' own kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from skillgraft.errors import InputError

# A cache that a layer writes to would hold every token twice after the second run; a search has no use for one.
_CACHES = ("past_key_values", "past_key_value", "layer_past")


@contextmanager
def recomputed(model: nn.Module) -> Iterator[None]:
    """While gradients are taken, each of the model's layers keeps its input alone."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise InputError(
            f"{type(model).__name__} has no layers whose activations can be computed again; leave out "
            "checkpoint_activations, or use smaller batches"
        )
    own = [layer.__dict__.get("forward") for layer in layers]
    for layer in layers:
        layer.forward = _again(layer.forward)
    try:
        yield
    finally:
        for layer, forward in zip(layers, own, strict=True):
            if forward is None:
                del layer.__dict__["forward"]
            else:
                layer.forward = forward


def _again(forward: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        kwargs = {name: None if name in _CACHES else value for name, value in kwargs.items()}
        kwargs |= {"use_cache": False} if "use_cache" in kwargs else {}
        # Nothing is drawn in eval mode: no random state has to come back.
        return checkpoint(partial(forward, **kwargs), *args, use_reentrant=False, preserve_rng_state=False)

    return run
