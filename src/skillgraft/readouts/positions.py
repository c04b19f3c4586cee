"""Logits at chosen positions only: the LM head of a large vocabulary is never computed over the whole sequence.

The body's last hidden state is narrowed to the wanted positions on its way into the head, by a hook that lives for one
forward pass. It works the same under autograd, `torch.func.functional_call` and `jvp`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


def pretrained(model: nn.Module) -> Any:
    """The transformers model inside wrappers (peft, distributed, compiled)."""
    from transformers import PreTrainedModel

    return next((module for module in model.modules() if isinstance(module, PreTrainedModel)), model)


def logits_at(model: nn.Module, inputs: Mapping[str, Tensor], positions: Tensor) -> Tensor:
    """(rows, k, vocabulary) logits of a language model at `positions` (rows, k)."""
    with _narrowing(pretrained(model), positions) as narrowed:
        logits: Tensor = model(**inputs).logits
    # Some models call a part of their body and not the body itself (OPT): then the logits are of every position.
    return logits if narrowed else _narrowed(logits, positions)


@contextmanager
def _narrowing(inner: Any, positions: Tensor) -> Iterator[list[nn.Module]]:
    """The hook; the list it gives holds the body once its output has been narrowed."""
    narrowed: list[nn.Module] = []

    def narrow(body: nn.Module, _inputs: Any, output: Any) -> Any:
        narrowed.append(body)
        if isinstance(output, tuple):
            return (_narrowed(output[0], positions), *output[1:])
        output.last_hidden_state = _narrowed(output.last_hidden_state, positions)
        return output

    if inner.base_model is inner:
        yield narrowed
        return
    handle = inner.base_model.register_forward_hook(narrow)
    try:
        yield narrowed
    finally:
        handle.remove()


def _narrowed(states: Tensor, positions: Tensor) -> Tensor:
    """(rows, length, width) → (rows, k, width)."""
    return states.gather(1, positions.unsqueeze(-1).expand(-1, -1, states.shape[-1]))
