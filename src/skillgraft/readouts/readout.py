"""What a readout is: how class scores are read off a model's output.

A readout turns examples into encoded rows once, rows into a padded batch, and a batch into scores (logits, one column per
class or choice) that gradients flow through. Everything above (training, localizing, measuring) sees only this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from skillgraft.tasks import Examples, Task

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Encoded:
    """One example, tokenised: the model's inputs as plain lists or arrays, its label, and its length for batching."""

    inputs: Mapping[str, Any]
    label: int
    length: int


class Inputs(Protocol):
    """How a task's rows become a model's inputs, where the scores do not depend on it: texts or images."""

    @property
    def settings(self) -> Mapping[str, Any]: ...

    def encode(self, examples: Examples) -> list[Encoded]: ...

    def batch(self, rows: Sequence[Encoded]) -> Batch: ...


class Readout(Protocol):
    """How one task's scores are read off one model."""

    @property
    def task(self) -> Task: ...

    @property
    def settings(self) -> Mapping[str, Any]:
        """What a graft or folder stores about it, ready for JSON: its kind, template, words, scale …"""
        ...

    def encode(self, examples: Examples) -> list[Encoded]:
        """Tokenise once."""
        ...

    def collate(self, rows: Sequence[Encoded]) -> Batch:
        """Pad rows into one batch of tensors, with `labels` among them."""
        ...

    def scores(self, model: nn.Module, batch: Batch) -> Tensor:
        """(rows, classes) logits; rows with fewer choices than others are filled up with -inf."""
        ...


def loss_of(scores: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy; -inf columns of absent choices take no part."""
    return nn.functional.cross_entropy(scores.float(), labels)


def predicted(scores: Tensor) -> Tensor:
    return torch.argmax(scores, dim=-1)
