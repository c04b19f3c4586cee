"""Texts to token rows, and token rows to padded batches.

Tokenising is done once and for all rows together; only rows that are too long are looked at one by one, where
`Prompt.fit` cuts their fields and never the template.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skillgraft.errors import InputError
from skillgraft.readouts.plan import Options
from skillgraft.readouts.readout import Batch, Encoded
from skillgraft.readouts.source import Source
from skillgraft.tasks import Examples
from skillgraft.tasks.prompt import CHOICES, Prompt, Row, Slot, Template

Tokens = dict[str, list[int]]
MODEL_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "pixel_values")
# Models that number positions from the padding token's id onwards, so that so many of their positions are never used.
_POSITIONS_AFTER_PAD = ("roberta", "xlm-roberta", "camembert", "roberta-prelayernorm", "mpnet", "longformer", "esm")


@dataclass(frozen=True)
class TextRows:
    """A tokenizer with the limit that holds for one task. `token_types`: whether the model tells two texts apart."""

    tokenizer: Any
    max_length: int
    room: int
    token_types: bool = False
    pad_multiple: int = 1

    @classmethod
    def of(cls, source: Source, options: Options, *, max_length: int) -> TextRows:
        """For that model; `max_length` is the task's, which gives way to the caller's and to the model's own limit."""
        room = token_room(source)
        if options.max_length is not None and options.max_length > room:
            raise InputError(f"max_length is {options.max_length}, but {source.name} reads at most {room} tokens")
        limit = options.max_length or min(max_length, room)
        types = getattr(source.config, "type_vocab_size", 0) > 1
        return cls(source.tokenizer, limit, room, types, options.pad_multiple)

    @property
    def pad_id(self) -> int:
        return pad_id(self.tokenizer)

    def texts(self, texts: Sequence[str], seconds: Sequence[str] | None = None, **options: Any) -> list[Tokens]:
        """One row per text or pair of texts, special tokens included."""
        if not texts:
            return []
        asked = {"return_attention_mask": False, "return_token_type_ids": self.token_types, "verbose": False, **options}
        columns = self.tokenizer(list(texts), list(seconds) if seconds else None, **asked)
        names = ("input_ids", "token_type_ids") if self.token_types else ("input_ids",)
        rows = [dict(zip(names, row, strict=True)) for row in zip(*(columns[name] for name in names), strict=True)]
        # A model cannot run on nothing: an empty text becomes one padding token where there are no special ones.
        return [row if row["input_ids"] else {"input_ids": [self.pad_id]} for row in rows]

    def truncated(self, texts: Sequence[str], seconds: Sequence[str] | None = None) -> list[Tokens]:
        """The same, cut at the end to `max_length` tokens; of a pair, the longer text is cut first."""
        return self.texts(texts, seconds, truncation="longest_first", max_length=self.max_length)

    def prompts(self, rows: Sequence[Row], prompt: Prompt, *, mask: str = "") -> list[Tokens]:
        """Every row's filled prompt in at most `max_length` tokens."""
        found = self.texts([prompt.render(row, mask=mask) for row in rows])
        for index, row in enumerate(rows):
            if len(found[index]["input_ids"]) > self._loose_up_to(prompt.template_for(row)):
                fitted = prompt.fit(row, self.tokenizer, self.max_length, mask=mask)
                found[index] = self.texts([fitted])[0]
        return found

    def check_fits(self, prompt: Prompt, *, mask: str = "") -> None:
        """Refuses a template that is too long by itself, before any row or weight is read."""
        for template in filter(None, (prompt.template, prompt.template_blank)):
            empty = {field: () if field == CHOICES else "" for field in template.fields}
            template.fit(empty, self.tokenizer, self.max_length, mask=mask)

    def batch(self, rows: Sequence[Encoded]) -> Batch:
        """Token ids, attention mask, token types and labels, padded on the right."""
        ids = [row.inputs["input_ids"] for row in rows]
        batch = self.padded(ids)
        if self.token_types:
            types = [row.inputs.get("token_type_ids", [0]) for row in rows]
            batch["token_type_ids"] = padded(types, width=batch["input_ids"].shape[1])
        return {**batch, "labels": labels_of(rows)}

    def padded(self, ids: Sequence[Sequence[int]]) -> Batch:
        """Token ids and attention mask."""
        longest = max(map(len, ids))
        rounded = -(-longest // self.pad_multiple) * self.pad_multiple
        width = max(longest, min(rounded, self.max_length))
        ones = [[1] * len(row) for row in ids]
        return {"input_ids": padded(ids, self.pad_id, width=width), "attention_mask": padded(ones, width=width)}

    def _loose_up_to(self, template: Template) -> int:
        """Up to this many tokens in all, neither `max_length` nor a field's own `limit` can bind."""
        limits = (part.limit for part in template.parts if isinstance(part, Slot) and part.limit)
        return min((self.max_length, *limits))


def padded(rows: Sequence[Sequence[int]], fill: int = 0, *, width: int | None = None) -> Tensor:
    """(rows, width) whole numbers; by default as wide as the longest row."""
    table = np.full((len(rows), width or max(map(len, rows))), fill, np.int64)
    for line, row in zip(table, rows, strict=True):
        line[: len(row)] = row
    return torch.from_numpy(table)


def encoded(found: Sequence[Tokens], examples: Examples) -> list[Encoded]:
    """Token rows with the examples' labels."""
    labels = examples.labels.tolist()
    return [Encoded(row, label, len(row["input_ids"])) for row, label in zip(found, labels, strict=True)]


def pad_id(tokenizer: Any) -> int:
    """The padding token, or any other where there is none: padded positions are masked out."""
    ids = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    return next(token for token in ids if token is not None)


def labels_of(rows: Sequence[Encoded]) -> Tensor:
    return torch.tensor([row.label for row in rows], dtype=torch.long)


def model_inputs(batch: Mapping[str, Tensor]) -> Batch:
    """What goes into the model itself; the rest of a batch is for the readout."""
    return {name: batch[name] for name in MODEL_INPUTS if name in batch}


def choice_mask(counts: Sequence[int]) -> Tensor:
    """(rows, most choices): which columns a row really has."""
    return torch.arange(max(counts)) < torch.tensor(counts).unsqueeze(1)


def token_room(source: Source) -> int:
    """How many tokens the model can read: the smaller of what tokenizer and configuration say."""
    config = getattr(source.config, "text_config", None) or source.config
    positions = getattr(config, "max_position_embeddings", None) or source.tokenizer.model_max_length
    if config.model_type in _POSITIONS_AFTER_PAD:
        positions -= (config.pad_token_id or 0) + 1
    return int(min(positions, source.tokenizer.model_max_length))
