"""Many texts written at once: rows join the batch when they come and leave it when they are done.

    decoding = Decoding(model)
    first = decoding.join([prompt_ids, other_ids])      # (2, vocabulary) logits after each prompt
    logits = decoding.step([token, other_token])        # (2, vocabulary) after one more token each
    decoding.keep([1])                                  # row 0 leaves

Keys and values stand right-aligned: padding is on the left, masked out, and every row counts its own positions, so what a row
is answered does not depend on its neighbours but for rounding. Law: the argmax of these logits is what transformers' `generate`
writes, token for token, where the two likeliest are further apart than rounding.

All layers keep all positions; a model with a sliding window gets its window from the mask, as it does without a cache.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from skillgraft.opening.compat import key_value_cache

_ROOM = 64  # positions made ready at a time: every token would otherwise copy the whole cache


class CacheLayer:
    """Keys and values of one attention layer: (rows, heads, room, width) buffers, of which [first, end) is in use."""

    def __init__(self) -> None:
        self.keys = self.values = torch.empty(0)
        self.first = self.end = 0

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values with these at the end."""
        new = keys.shape[-2]
        if self.keys.ndim == 1:
            self.keys, self.values = (_roomy(one, one.shape[-2] + _ROOM) for one in (keys, values))
        elif self.end + new > self.keys.shape[-2]:
            self._move(self.end - self.first + new + _ROOM)
        low, self.end = self.end, self.end + new
        for buffer, added in ((self.keys, keys), (self.values, values)):
            buffer[..., low : self.end, :] = added
        return self.held(self.keys), self.held(self.values)

    def held(self, buffer: Tensor) -> Tensor:
        return buffer[..., self.first : self.end, :]

    def keep(self, rows: Tensor, first: int) -> None:
        """Those rows alone, without the positions before `first` that none of them uses."""
        self.keys, self.values = (self.held(one)[rows, :, first:] for one in (self.keys, self.values))
        self.first, self.end = 0, self.keys.shape[-2]

    def join(self, other: CacheLayer) -> None:
        """The other's rows below these, all of them ending at one position."""
        if self.keys.ndim == 1:
            self.keys, self.values, self.first, self.end = other.keys, other.values, other.first, other.end
            return
        most = max(self.length, other.length)
        joined = [
            torch.cat([_right_aligned(self.held(ours), most), _right_aligned(other.held(theirs), most)])
            for ours, theirs in ((self.keys, other.keys), (self.values, other.values))
        ]
        self.keys, self.values = joined
        self.first, self.end = 0, most

    @property
    def length(self) -> int:
        return self.end - self.first

    def _move(self, room: int) -> None:
        self.keys, self.values = (_roomy(self.held(one), room) for one in (self.keys, self.values))
        self.first, self.end = 0, self.length


class Decoding:
    """The rows that are being written: their cache, and which of its positions each of them uses."""

    joins = True  # whether rows may come while others are being written

    def __init__(self, model: nn.Module, *, pad_id: int = 0) -> None:
        self.model, self._pad_id = model, pad_id
        self._layers: list[CacheLayer] = []
        self._cache = key_value_cache(self._layers, CacheLayer)
        known = inspect.signature(model.forward).parameters
        self._options = {name: value for name, value in (("logits_to_keep", 1),) if name in known}
        self._positions = "position_ids" in known  # others count by the mask themselves
        self._mask = torch.zeros(0, 0, dtype=torch.long, device=next(model.parameters()).device)

    def __len__(self) -> int:
        return len(self._mask)

    @torch.no_grad()
    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Decoding]:
        """The logits after each prompt, and a batch of these rows alone."""
        batch = Decoding(self.model, pad_id=self._pad_id)
        width = max(map(len, prompts))
        padded = [[self._pad_id] * (width - len(ids)) + list(ids) for ids in prompts]
        used = [[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts]
        device = self._mask.device
        batch._mask = torch.tensor(used, dtype=torch.long, device=device)
        return batch._run(torch.tensor(padded, dtype=torch.long, device=device)), batch

    def join(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """New rows below those that are there; the logits after their prompts."""
        logits, batch = self.prefill(prompts)
        self.absorb(batch)
        return logits

    def absorb(self, other: Decoding) -> None:
        """The other batch's rows below these."""
        if not self._layers:
            self._layers[:], self._mask = other._layers, other._mask
            return
        most = max(self._mask.shape[1], other._mask.shape[1])
        for ours, theirs in zip(self._layers, other._layers, strict=True):
            ours.join(theirs)
        self._mask = torch.cat([nn.functional.pad(one, (most - one.shape[1], 0)) for one in (self._mask, other._mask)])

    @torch.no_grad()
    def step(self, tokens: Sequence[int]) -> Tensor:
        """One more token in every row; the logits after it."""
        self._mask = nn.functional.pad(self._mask, (0, 1), value=1)
        return self._run(torch.tensor(tokens, dtype=torch.long, device=self._mask.device).unsqueeze(1))

    def keep(self, rows: Sequence[int]) -> None:
        """Those rows alone, in that order."""
        if not rows:
            self._layers.clear()
            self._mask = self._mask[:0, :0]
            return
        index = torch.tensor(rows, device=self._mask.device)
        mask = self._mask[index]
        first = int(mask.any(0).long().argmax())  # positions that only rows that left had used
        for layer in self._layers:
            layer.keep(index, first)
        self._mask = mask[:, first:]

    def _run(self, tokens: Tensor) -> Tensor:
        positions = (self._mask.cumsum(-1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
        numbered = {"position_ids": positions} if self._positions else {}
        output = self.model(
            input_ids=tokens, attention_mask=self._mask, past_key_values=self._cache, use_cache=True,
            **numbered, **self._options,
        )  # fmt: skip
        logits: Tensor = output.logits[:, -1]
        return logits


def _roomy(numbers: Tensor, room: int) -> Tensor:
    """The same at the beginning of a longer buffer."""
    buffer = numbers.new_zeros(*numbers.shape[:-2], room, numbers.shape[-1])
    buffer[..., : numbers.shape[-2], :] = numbers
    return buffer


def _right_aligned(numbers: Tensor, length: int) -> Tensor:
    return nn.functional.pad(numbers, (0, 0, length - numbers.shape[-2], 0))
