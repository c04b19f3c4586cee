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
from numpy.typing import NDArray
from torch import Tensor, nn

from skillgraft.errors import InputError
from skillgraft.opening.source import Source
from skillgraft.readouts.readout import Batch, Encoded, Options
from skillgraft.tasks import Examples, Task
from skillgraft.tasks.prompt import CHOICES, Prompt, Row, Template, TemplateSlot

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

    def batch(self, rows: Sequence[Encoded], *, left: bool = False) -> Batch:
        """Token ids, attention mask, token types and labels, padded on the right, or on the left."""
        ids = [row.inputs["input_ids"] for row in rows]
        batch = self.padded(ids, left=left)
        if self.token_types:
            types = [row.inputs.get("token_type_ids", [0]) for row in rows]
            batch["token_type_ids"] = padded(types, width=batch["input_ids"].shape[1], left=left)
        return {**batch, "labels": labels_of(rows)}

    def padded(self, ids: Sequence[Sequence[int]], *, left: bool = False) -> Batch:
        """Token ids and attention mask."""
        longest = max(map(len, ids))
        rounded = -(-longest // self.pad_multiple) * self.pad_multiple
        width = max(longest, min(rounded, self.max_length))
        ones = [[1] * len(row) for row in ids]
        tokens = padded(ids, self.pad_id, width=width, left=left)
        return {"input_ids": tokens, "attention_mask": padded(ones, width=width, left=left)}

    def _loose_up_to(self, template: Template) -> int:
        """Up to this many tokens in all, neither `max_length` nor a field's own `limit` can bind."""
        limits = (part.limit for part in template.parts if isinstance(part, TemplateSlot) and part.limit)
        return min((self.max_length, *limits))


def padded(rows: Sequence[Sequence[int]], fill: int = 0, *, width: int | None = None, left: bool = False) -> Tensor:
    """(rows, width) whole numbers; by default as wide as the longest row."""
    table = np.full((len(rows), width or max(map(len, rows))), fill, np.int64)
    for line, row in zip(table, rows, strict=True):
        first = len(line) - len(row) if left else 0
        line[first : first + len(row)] = row
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


def pixel_values(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Images in the number format that the model is held in: its first convolution takes no other."""
    return batch["pixel_values"].to(next(model.parameters()).dtype)


def choice_mask(counts: Sequence[int]) -> Tensor:
    """(rows, most choices): which columns a row really has."""
    return torch.arange(max(counts)) < torch.tensor(counts).unsqueeze(1)


def token_room(source: Source) -> int:
    """How many tokens the model can read: the smaller of what tokenizer and configuration say."""
    config = getattr(source.config, "text_config", None) or source.config
    positions = getattr(config, "max_position_embeddings", None) or 0
    if positions <= 0:  # XLNet says −1: no limit of its own
        return int(source.tokenizer.model_max_length)
    if config.model_type in _POSITIONS_AFTER_PAD:
        positions -= (config.pad_token_id or 0) + 1
    return int(min(positions, source.tokenizer.model_max_length))


_AT_ONCE = 256  # images handed to the processor together: bounds its memory


@dataclass(frozen=True)
class ImageRows:
    """The column that holds the images, the processor, and the number of channels that its model wants."""

    field: str
    processor: Any
    channels: int

    @classmethod
    def of(cls, source: Source, task: Task) -> ImageRows:
        config = getattr(source.config, "vision_config", None) or source.config
        return cls(task.inputs[0], source.image_processor, getattr(config, "num_channels", 3))

    @property
    def settings(self) -> Mapping[str, Any]:
        return {}

    @property
    def keeps_bytes(self) -> bool:
        """Whether the processor ends with the usual rescaling and normalising, which can wait for the batch."""
        usual = getattr(self.processor, "do_rescale", False) and getattr(self.processor, "do_normalize", False)
        return bool(usual) and len(self._per_channel("image_mean")) == self.channels

    def encode(self, examples: Examples) -> list[Encoded]:
        column = examples.columns[self.field]
        later = {"do_rescale": False, "do_normalize": False} if self.keeps_bytes else {}
        rows: list[Encoded] = []
        for low in range(0, len(examples), _AT_ONCE):
            images = [self._with_channels(image, row) for row, image in enumerate(column[low : low + _AT_ONCE], low)]
            pixels = self.processor(images, return_tensors="np", input_data_format="channels_last", **later)[
                "pixel_values"
            ]
            labels = examples.labels[low : low + _AT_ONCE].tolist()
            rows += [Encoded({"pixel_values": one}, label, 1) for one, label in zip(pixels, labels, strict=True)]
        return rows

    def batch(self, rows: Sequence[Encoded]) -> Batch:
        pixels = torch.from_numpy(np.stack([row.inputs["pixel_values"] for row in rows])).float()
        if self.keeps_bytes:
            mean, std = (torch.tensor(self._per_channel(name)).view(-1, 1, 1) for name in ("image_mean", "image_std"))
            pixels = (pixels * self.processor.rescale_factor - mean) / std
        return {"pixel_values": pixels, "labels": labels_of(rows)}

    def _per_channel(self, name: str) -> list[float]:
        value = getattr(self.processor, name)
        return [value] * self.channels if isinstance(value, float) else list(value)

    def _with_channels(self, image: NDArray[np.uint8], row: int) -> NDArray[np.uint8]:
        """(height, width, channels); grey is repeated where the model wants colours."""
        deep = image[..., None] if image.ndim == 2 else image
        if deep.shape[-1] == 1:
            deep = np.repeat(deep, self.channels, -1)
        if deep.shape[-1] != self.channels:
            raise InputError(f"image {row}: expected grey or {self.channels} channels; found {deep.shape[-1]}")
        return deep
