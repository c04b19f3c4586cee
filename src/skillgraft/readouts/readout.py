"""What a readout is: how class scores are read off a model's output.

A readout turns examples into encoded rows once, rows into a padded batch, and a batch into scores (logits, one column per
class or choice) that gradients flow through. Everything above (training, localizing, measuring) sees only this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from skillgraft.errors import InputError
from skillgraft.tasks import Examples, Task

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Encoded:
    """One example, tokenised: the model's inputs as plain lists or arrays, its label, and its length for batching.

    `units` are its lines in the scores: one, or one for each token of a completion.
    """

    inputs: Mapping[str, Any]
    label: int
    length: int
    units: int = 1


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
        """(rows, classes) logits; rows with fewer choices than others are filled up with -inf.

        Of completions (tokens, vocabulary): a row has as many lines as its completion has tokens, and `labels` are those.
        """
        ...


def loss_of(scores: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy over rows, or over the tokens of completions; -inf columns of absent choices take no part."""
    return nn.functional.cross_entropy(scores.float(), labels)


def units_of(rows: Iterable[Encoded]) -> int:
    """How many lines the scores of these rows have: what a mean loss is divided by."""
    return sum(row.units for row in rows)


def predicted(scores: Tensor) -> Tensor:
    return torch.argmax(scores, dim=-1)


# Whether the readout's head must lie in the files, is made where it is missing, or is not looked at.
Head = Literal["stored", "made", "unread"]


@dataclass(frozen=True)
class Options:
    """What a caller may change: the token limit, the padding, how a choice's tokens are summed."""

    max_length: int | None = None
    pad_multiple: int = 1
    length_normalised: bool = False

    def __post_init__(self) -> None:
        for name, value in (("max_length", self.max_length), ("pad_multiple", self.pad_multiple)):
            if value is not None and value < 1:
                raise InputError(f"{name} must be a whole number above 0; found {value}")


@dataclass(frozen=True)
class Plan:
    """The Auto class that loads the model, changes to its config, and the readouts over it once it is there."""

    loader: str
    bind: Callable[[nn.Module], tuple[Readout, ...]]
    head: Head
    config: Mapping[str, Any] = field(default_factory=dict)
