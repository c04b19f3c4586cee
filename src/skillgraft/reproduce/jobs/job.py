"""What a kind of work is: how it runs, and about how long it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

# Seconds per token and million entries of a model's layers, forward and backward, on two cores; a forward pass is a third.
SECONDS = 7.5e-5


@dataclass(frozen=True)
class Job:
    """How a kind of step runs, and how many tokens it takes forward and backward (for an estimate of its time).

    `run(out, needs, **settings)` fills the folder `out` from its settings and from the folders of the steps it needs. It may be
    killed at any time: it is called again with what it left. `version` is raised when the same settings come to mean other
    numbers: what older versions made is made anew.
    """

    run: Callable[..., None]
    tokens: Callable[[Mapping[str, Any]], float]
    version: int = 1


def tune_tokens(settings: Mapping[str, Any]) -> float:
    plan = settings["plan"]
    return float(plan["steps"] * plan["batch_size"] * _length(settings))


def search_tokens(settings: Mapping[str, Any]) -> float:
    data = settings["data"]
    rows = min(data.get("batch_size") or 1024, data.get("rows") or 2 * (data.get("shots") or 512))
    return float(settings.get("steps", 1) * rows * _length(data) * 1.25)


def say_tokens(settings: Mapping[str, Any]) -> float:
    return float(settings.get("rows") or 1000) * _length(settings) / 3


def no_tokens(_settings: Mapping[str, Any]) -> float:
    return 0.0


def _length(settings: Mapping[str, Any]) -> float:
    return 0.5 * (settings.get("max_length") or 128)  # rows are about half as long as they may be
