"""Greedy generation with a key-value cache, in batches of prompts of like length.

    generate(model, readout, rows)      # one text for each row, in the rows' order

The likeliest next token is taken until every row of the batch has stopped. Law: the answers are those of a model that reads
every text whole for every token, whatever the batch. Prompts of one batch are padded on the left.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from skillgraft.readouts.completion import Completion
from skillgraft.readouts.readout import Encoded
from skillgraft.readouts.words import pretrained

MOST_TOKENS = 256  # generated for a row, where the task does not say
BATCH = 32


def answer_tokens(readout: Completion, rows: Sequence[Encoded]) -> int:
    """How many tokens are generated at most: as the task says, or as many as the longest true completion has."""
    return readout.style.answer_tokens or min(MOST_TOKENS, max(row.inputs["scored"] for row in rows))


@torch.inference_mode()
def generate(
    model: nn.Module, readout: Completion, rows: Sequence[Encoded], *, most: int | None = None, batch_size: int = BATCH
) -> list[str]:
    """The greedy answer to every row's prompt. The model must be in eval mode."""
    limit = most or answer_tokens(readout, rows)
    prompts = [readout.asked(row) for row in rows]
    found = [""] * len(rows)
    for some in _alike(prompts, batch_size):
        for row, tokens in zip(some, _continued(model, readout, [prompts[row] for row in some], limit), strict=True):
            found[row] = readout.answer(tokens)
    return found


def _alike(prompts: Sequence[Sequence[int]], batch_size: int) -> Iterator[list[int]]:
    """Row numbers in batches of prompts of like length, the longest first."""
    order = sorted(range(len(prompts)), key=lambda row: -len(prompts[row]))
    return (order[low : low + batch_size] for low in range(0, len(order), batch_size))


def _continued(model: nn.Module, readout: Completion, prompts: Sequence[Sequence[int]], most: int) -> list[list[int]]:
    device = next(model.parameters()).device
    batch = readout.text.padded(prompts, left=True)
    ids, mask = (batch[name].to(device) for name in ("input_ids", "attention_mask"))
    room = readout.text.room - ids.shape[1]
    stops = torch.tensor(readout.stops, device=device)
    done = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    taken: list[Tensor] = []
    options = _Options(model)
    cache: Any = None
    for _ in range(min(most, room)):
        output = model(
            input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True, **options.of(mask, ids)
        )
        ids, cache = output.logits[:, -1].argmax(-1, keepdim=True), output.past_key_values
        taken.append(ids)
        done |= torch.isin(ids[:, 0], stops)
        if bool(done.all()):
            break
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
    return torch.cat(taken, dim=1).tolist() if taken else [[] for _ in prompts]


class _Options:
    """What a model's forward takes besides: positions that do not count padding, and the logits of the last token alone."""

    def __init__(self, model: nn.Module) -> None:
        self.taken = inspect.signature(type(pretrained(model)).forward).parameters

    def of(self, mask: Tensor, ids: Tensor) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if "position_ids" in self.taken:
            found["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        if "logits_to_keep" in self.taken:
            found["logits_to_keep"] = 1
        return found
