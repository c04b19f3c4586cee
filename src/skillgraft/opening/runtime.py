"""Where and how a call runs: `Runtime`. Apart from `dtype` nothing in it changes what is computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from skillgraft.errors import InputError, did_you_mean

# Steps done, steps in all, and what there is to show about the last one (its loss …).
Progress = Callable[[int, int, Mapping[str, Any]], None]
# Matrix products in bfloat16, or in the model's own format.
MixedPrecision = Literal["no", "bf16"]
FORMATS = ("float32", "bfloat16", "float16", "float64")


def silent(_done: int, _total: int, _facts: Mapping[str, Any]) -> None:
    """A progress callback that shows nothing."""


@dataclass(frozen=True)
class Runtime:
    """`device` (default: the one that accelerate finds) and `dtype` (default: the folder's own) are those of the model.

    `command` is recorded in what is written. Long work is saved every `snapshot_seconds`, so that a killed run goes on. `shard`
    splits the model over the processes: for `finetune`, `localize` and `choose_region`.
    """

    device: str | None = None
    dtype: str | None = None
    progress: Progress = silent
    command: str = ""
    snapshot_seconds: float = 60.0
    shard: bool = False

    def __post_init__(self) -> None:
        if self.dtype is not None and self.dtype not in FORMATS:
            raise InputError(f"unknown dtype {self.dtype!r}; {did_you_mean(self.dtype, FORMATS)}")

    def check_whole(self, verb: str) -> None:
        """Refuse to split a model for what needs it whole."""
        if self.shard:
            raise InputError(
                f"{verb} needs the whole model in each process: shard is for finetune, localize and choose_region alone"
            )
