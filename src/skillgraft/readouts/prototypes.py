"""Frozen prototypes: scale × cosine with the mean embedding, in the base, of some of each label's training images.

What the frozen text head is to CLIP, for image encoders without a text tower (P2's vision tasks). The head is computed once
with the model as it was loaded, and never trained: to read a tuned model, keep the base's readouts.

The images are the first of seed 0's order of each label, the same number for every label: a run of seed 0 that trains on at
least as many holds them among its training rows. They are never test rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from skillgraft.errors import InputError, listed
from skillgraft.opening.source import Source
from skillgraft.readouts.embedding import Embed, clip_images, clip_scale, first_token
from skillgraft.readouts.readout import Batch, Encoded, Options, Plan, Readout
from skillgraft.readouts.rows import ImageRows
from skillgraft.readouts.text_head import DEFAULT_SCALE, TWO_TOWERS
from skillgraft.tasks import Examples, Task, training_split
from skillgraft.tasks.data import training_pool

SHOTS = 16  # images per label at most
_AT_ONCE = 128  # images embedded together


@dataclass(frozen=True, eq=False)
class Prototypes:
    """`shown` are the images that stand for the labels, `head` the labels' mean directions once a base is there."""

    task: Task
    inputs: ImageRows
    embed: Embed
    shown: Examples
    scale: float = DEFAULT_SCALE
    head: Tensor | None = None

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"readout": "prototypes", "scale": self.scale, "rows": len(self.shown), **self.inputs.settings}

    def bound(self, model: nn.Module) -> Prototypes:
        """With the head of that model, which must be the base, and CLIP's own scale."""
        labels = torch.from_numpy(self.shown.labels)
        with torch.no_grad():
            embedded = torch.cat([self.embed(model, batch).cpu() for batch in self._batches(model)])
        means = torch.stack([embedded[labels == label].mean(0) for label in range(len(self.task.labels))])
        scale = clip_scale(model) if self.embed is clip_images else DEFAULT_SCALE
        return replace(self, head=nn.functional.normalize(means, dim=-1), scale=scale)

    def encode(self, examples: Examples) -> list[Encoded]:
        return self.inputs.encode(examples)

    def collate(self, rows: Sequence[Encoded]) -> Batch:
        return self.inputs.batch(rows)

    def scores(self, model: nn.Module, batch: Batch) -> Tensor:
        """(rows, labels): scale × cosine."""
        if self.head is None:
            raise InputError(f"task {self.task.name!r}: prototypes are read with the base that they were made with")
        embedded = self.embed(model, batch)
        return self.scale * embedded @ self.head.to(embedded).T

    def _batches(self, model: nn.Module) -> Iterator[Batch]:
        rows, parameter = self.encode(self.shown), next(model.parameters())
        for low in range(0, len(rows), _AT_ONCE):
            batch = self.collate(rows[low : low + _AT_ONCE])
            yield {"pixel_values": batch["pixel_values"].to(parameter.device)}


def plan_prototypes(source: Source, tasks: Sequence[Task], _options: Options) -> Plan:
    """For image encoders: CLIP's projected vision tower, or the first token of any other."""
    texts = [task.name for task in tasks if task.kind != "image"]
    if texts:
        raise InputError(f"{listed(texts)}: the prototypes readout reads images; use text-head or linear for texts")
    others = [task.name for task in tasks if task.asked_as]
    if others:
        raise InputError(
            f"{listed(others)}: prototypes are made of a task's own training images, so that they cannot ask another task's "
            "question; use text-head or linear"
        )
    embed = clip_images if source.config.model_type in TWO_TOWERS else first_token
    readouts = [Prototypes(task, ImageRows.of(source, task), embed, _shown(task)) for task in tasks]

    def bind(model: nn.Module) -> tuple[Readout, ...]:
        return tuple(readout.bound(model) for readout in readouts)

    return Plan("AutoModel", bind, head="unread")


def _shown(task: Task) -> Examples:
    """As many training images of every label as the rarest has, 16 at most."""
    counts = training_pool(task).class_counts
    absent = [label for label, count in counts.items() if not count]
    if absent:
        raise InputError(f"task {task.name!r}: no training image shows the label {listed(absent)}")
    return training_split(task, shots=min(SHOTS, *counts.values())).train
