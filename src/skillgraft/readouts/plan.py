"""What a readout needs of a model, settled before any weights are loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from skillgraft.errors import InputError
from skillgraft.readouts.readout import Readout

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
