"""Texts written by encoder-decoders: prompts are encoded once, and rows that began together are written together.

    decoding = EncodedDecoding(model)
    first, batch = decoding.prefill([prompt_ids, other_ids])
    decoding.absorb(batch)                              # only while nothing is being written
    logits = decoding.step([token, other_token])
    decoding.keep([1])

Some decoders count positions by the cache alone (BART), so a row cannot join rows that are further on: new prompts wait until the
batch is written. Law: the argmax of these logits is what transformers' greedy `generate` writes, without beams and penalties.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from skillgraft.errors import InputError
from skillgraft.opening.compat import encoder_decoder_cache


class EncodedDecoding:
    """The rows that are being written: what their prompts were encoded to, and the decoder's cache."""

    joins = False  # whether rows may come while others are being written

    def __init__(self, model: nn.Module, *, pad_id: int = 0) -> None:
        self.model, self._pad_id = model, pad_id
        self._cache: Any = None
        self._encoded = torch.zeros(0, 0, 0)
        self._mask = torch.zeros(0, 0, dtype=torch.long)

    def __len__(self) -> int:
        return len(self._mask)

    @torch.no_grad()
    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, EncodedDecoding]:
        """The logits of each text's first token, and a batch of these rows alone."""
        batch, model = EncodedDecoding(self.model, pad_id=self._pad_id), self.model
        width, device = max(map(len, prompts)), next(model.parameters()).device
        ids = [list(prompt) + [self._pad_id] * (width - len(prompt)) for prompt in prompts]
        used = [[1] * len(prompt) + [0] * (width - len(prompt)) for prompt in prompts]
        batch._mask = torch.tensor(used, device=device)
        encoder: Any = model.get_encoder()  # type: ignore[operator]
        batch._encoded = encoder(torch.tensor(ids, device=device), attention_mask=batch._mask).last_hidden_state
        batch._cache = encoder_decoder_cache(model.config)
        logits = batch.step([first_token(model)] * len(prompts))
        forced = getattr(model.generation_config, "forced_bos_token_id", None)
        if forced is not None:  # as generate does: BART's texts begin with it
            logits = torch.full_like(logits, -torch.inf).index_fill_(1, torch.tensor(forced, device=device), 0.0)
        return logits, batch

    def absorb(self, other: EncodedDecoding) -> None:
        """The other batch's rows, where there are none."""
        assert not len(self)
        self._cache, self._encoded, self._mask = other._cache, other._encoded, other._mask

    @torch.no_grad()
    def step(self, tokens: Sequence[int]) -> Tensor:
        """One more token in every row; the logits after it."""
        column = torch.tensor(tokens, device=self._mask.device).unsqueeze(1)
        output = self.model(
            encoder_outputs=(self._encoded,), attention_mask=self._mask, decoder_input_ids=column,
            past_key_values=self._cache, use_cache=True,
        )  # fmt: skip
        logits: Tensor = output.logits[:, -1]
        return logits

    def keep(self, rows: Sequence[int]) -> None:
        """Those rows alone, in that order."""
        index = torch.tensor(rows, dtype=torch.long, device=self._mask.device)
        self._encoded, self._mask = self._encoded[index], self._mask[index]
        self._cache.batch_select_indices(index)


def encodes(model: nn.Module) -> bool:
    """Whether a model is an encoder-decoder."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def first_token(model: nn.Module) -> int:
    """What a decoder's text begins with, before the first token that is written."""
    stated: Any = model.generation_config
    for name in ("decoder_start_token_id", "bos_token_id"):
        for place in (stated, model.config):
            if isinstance(found := getattr(place, name, None), int):
                return found
    raise InputError("the model's config has no decoder_start_token_id, so nothing says what its texts begin with")
