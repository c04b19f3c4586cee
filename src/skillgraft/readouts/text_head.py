"""Frozen text head: scale × cosine with the base's own embeddings of the label descriptions (P2's vision tasks).

The head is computed once with the model as it was loaded, and never trained: to read a tuned model, keep the base's
readouts. Sentence encoders read texts, CLIP and SigLIP read images (or texts). A row of multiple choice has its own head, the
embeddings of its choices, computed when it is encoded, by a copy of the base that training cannot touch.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from skillgraft.errors import InputError, listed
from skillgraft.opening.source import Source
from skillgraft.readouts.embedding import Embed, clip_images, clip_scale, clip_texts, pooling_of, sentences
from skillgraft.readouts.readout import Batch, Encoded, Inputs, Options, Plan, Readout
from skillgraft.readouts.rows import ImageRows, TextRows, choice_mask, encoded
from skillgraft.tasks import Describe, Examples, Prompt, Task

DEFAULT_SCALE = 20.0
CLIP = "clip"  # how embeddings of models with two towers are called
TWO_TOWERS = ("clip", "siglip")  # model types
_AT_ONCE = 128  # texts embedded together


@dataclass(frozen=True)
class DescribedTexts:
    """A row as the one text of its task's [describe] table."""

    prompt: Prompt
    text: TextRows

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"input": self.prompt.template.text, "max_length": self.text.max_length}

    def encode(self, examples: Examples) -> list[Encoded]:
        return encoded(self.text.prompts(list(examples.rows()), self.prompt), examples)

    def batch(self, rows: Sequence[Encoded]) -> Batch:
        return self.text.batch(rows)


@dataclass(frozen=True)
class Describer:
    """Embeds descriptions with the model that it is given."""

    text: TextRows
    embed: Embed

    def embeddings(self, model: nn.Module, texts: Sequence[str]) -> Tensor:
        """(texts, width), in the order given; texts of like length are run together."""
        rows = [Encoded(tokens, 0, len(tokens["input_ids"])) for tokens in self.text.truncated(texts)]
        order = sorted(range(len(rows)), key=lambda index: rows[index].length)
        parts = [self.embed(model, self._batch([rows[index] for index in some], model)) for some in _runs(order)]
        return torch.cat(parts).float().cpu()[torch.argsort(torch.tensor(order))]

    def head(self, model: nn.Module, describe: Describe, labels: Sequence[str]) -> Tensor:
        """(labels, width): for each label the mean direction of its texts."""
        means = [self.embeddings(model, describe.label_texts(label)).mean(0) for label in labels]
        return nn.functional.normalize(torch.stack(means), dim=-1)

    def _batch(self, rows: Sequence[Encoded], model: nn.Module) -> Batch:
        device = next(model.parameters()).device
        return {name: tensor.to(device) for name, tensor in self.text.batch(rows).items()}


@dataclass(frozen=True, eq=False)
class TextHead:
    """`head` holds the labels' embeddings. Rows of multiple choice bring their own, which `frozen` embeds."""

    task: Task
    describe: Describe
    inputs: Inputs
    embed: Embed
    describer: Describer
    pooling: str
    scale: float = DEFAULT_SCALE
    head: Tensor | None = None
    frozen: nn.Module | None = None

    @property
    def settings(self) -> Mapping[str, Any]:
        described = {label: list(self.describe.label_texts(label)) for label in self.task.labels}
        choice = self.describe.choice
        return {
            "readout": "text-head",
            "scale": self.scale,
            "pooling": self.pooling,
            **({"choice": choice.text} if choice else {"descriptions": described}),
            **self.inputs.settings,
        }

    def bound(self, model: nn.Module) -> TextHead:
        """With the head and the scale of that model, which must be the base and stay as it is."""
        scale = clip_scale(model) if self.pooling == CLIP else DEFAULT_SCALE
        if self.task.kind == "choice":
            return replace(self, scale=scale, frozen=model)
        with torch.no_grad():
            return replace(self, scale=scale, head=self.describer.head(model, self.describe, self.task.labels))

    def encode(self, examples: Examples) -> list[Encoded]:
        rows = self.inputs.encode(examples)
        if self.frozen is None or not rows:
            return rows
        choices = self._choices(examples, self.frozen)
        return [replace(row, inputs={**row.inputs, "head": head}) for row, head in zip(rows, choices, strict=True)]

    def collate(self, rows: Sequence[Encoded]) -> Batch:
        batch = self.inputs.batch(rows)
        if self.frozen is None:
            return batch
        heads = [torch.from_numpy(row.inputs["head"]) for row in rows]
        padded = nn.utils.rnn.pad_sequence(heads, batch_first=True)
        return {**batch, "heads": padded, "choice_mask": choice_mask([len(head) for head in heads])}

    def scores(self, model: nn.Module, batch: Batch) -> Tensor:
        """(rows, labels): scale × cosine."""
        embedded = self.embed(model, batch)
        if self.head is not None:
            return self.scale * embedded @ self.head.to(embedded).T
        cosines = (batch["heads"].to(embedded) @ embedded.unsqueeze(-1)).squeeze(-1)
        return (self.scale * cosines).masked_fill(~batch["choice_mask"], float("-inf"))

    def _choices(self, examples: Examples, model: nn.Module) -> Iterator[np.ndarray[Any, np.dtype[np.float32]]]:
        """Each row's (choices, width); a text that occurs in several rows is embedded once."""
        texts = [self.describe.choice_texts(row) for row in examples.rows()]
        places = {text: place for place, text in enumerate(dict.fromkeys(text for row in texts for text in row))}
        with torch.no_grad():
            embedded = self.describer.embeddings(model, list(places)).numpy()
        return (embedded[[places[text] for text in row]] for row in texts)


def plan_text_head(source: Source, tasks: Sequence[Task], options: Options) -> Plan:
    """For sentence encoders, CLIP and SigLIP."""
    readouts = [_readout(source, task, options) for task in tasks]
    has_choices = any(task.kind == "choice" for task in tasks)

    def bind(model: nn.Module) -> tuple[Readout, ...]:
        base = copy.deepcopy(model).requires_grad_(False) if has_choices else model
        return tuple(readout.bound(base) for readout in readouts)

    return Plan("AutoModel", bind, head="unread")


def _readout(source: Source, task: Task, options: Options) -> TextHead:
    describe = _described(task)
    if source.config.is_encoder_decoder:
        raise InputError(f"{source.name}: the text-head readout needs an encoder; this is an encoder-decoder model")
    is_clip = source.config.model_type in TWO_TOWERS
    if task.kind == "image" and not is_clip:
        raise InputError(f"{source.name}: the text-head readout reads images with CLIP and SigLIP only; use linear")
    pooling = CLIP if is_clip else pooling_of(source)
    embed_text = clip_texts if is_clip else partial(sentences, pooling=pooling)
    text = TextRows.of(source, options, max_length=_longest(source, task))
    # Descriptions are never cut to a limit that is meant for inputs.
    describer = Describer(replace(text, max_length=text.room), embed_text)
    if describe.input is None:
        return TextHead(task, describe, ImageRows.of(source, task), clip_images, describer, pooling)
    inputs = DescribedTexts(Prompt(describe.input, text.max_length), text)
    text.check_fits(inputs.prompt)
    return TextHead(task, describe, inputs, embed_text, describer, pooling)


def _described(task: Task) -> Describe:
    """The task's [describe] table, if it says all that the head needs."""
    describe = task.describe
    if describe is None:
        raise InputError(
            f"task {task.name!r}: the text-head readout needs a [describe] table with a text for each label"
        )
    bare = [label for label in task.labels if not describe.label_texts(label)]
    if bare:
        raise InputError(f"task {task.name!r}: [describe] has no text for the label {listed(bare)}")
    if task.kind == "choice" and describe.choice is None:
        raise InputError(f"task {task.name!r}: [describe] has no 'choice', the text that stands for a choice")
    if task.kind != "image" and describe.input is None:
        raise InputError(f"task {task.name!r}: [describe] has no 'input', the text that stands for a row")
    return describe


def _longest(source: Source, task: Task) -> int:
    """The task's limit, or the one that the sentence encoder was trained with."""
    trained = source.json("sentence_bert_config.json", default={}).get("max_seq_length")
    return min(task.max_length, trained) if trained else task.max_length


def _runs(order: Sequence[int]) -> Iterator[Sequence[int]]:
    return (order[low : low + _AT_ONCE] for low in range(0, len(order), _AT_ONCE))
