"""The next token of each row: the likeliest, or one that is drawn; with the likeliest others on request.

Law: at temperature 0 it is the argmax of the logits; a seed draws the same tokens again, whatever else is in the batch.
Log-probabilities are those of the model itself, before temperature and nucleus.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """How a row's tokens are chosen. `top_logprobs` None asks for no log-probabilities."""

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    top_logprobs: int | None = None


@dataclass(frozen=True)
class ChosenToken:
    """A token, its log-probability (0 where nobody asked), and the likeliest tokens with theirs."""

    token: int
    logprob: float = 0.0
    top: tuple[tuple[int, float], ...] = ()


@dataclass(eq=False)
class Sampler:
    """One row's source of tokens: its settings and its own random numbers."""

    sampling: Sampling
    _random: torch.Generator = field(default_factory=torch.Generator)

    def __post_init__(self) -> None:
        if self.sampling.seed is None:
            self._random.seed()
        else:
            self._random.manual_seed(self.sampling.seed)

    def draw(self, logits: Tensor) -> int:
        """One token from one row's logits, in float64 so that a tiny temperature overflows nothing."""
        scaled = logits.double() / self.sampling.temperature
        shares = torch.softmax(scaled - scaled.max(), -1)
        if self.sampling.top_p < 1.0:
            ordered, order = shares.sort(descending=True)
            # A token stays while those before it hold less than top_p; the likeliest always stays.
            kept = (ordered.cumsum(0) - ordered) < self.sampling.top_p
            kept[0] = True
            return int(order[torch.multinomial(ordered * kept, 1, generator=self._random)])
        return int(torch.multinomial(shares, 1, generator=self._random))


def choose(logits: Tensor, samplers: Sequence[Sampler]) -> list[ChosenToken]:
    """(rows, vocabulary) logits → one choice a row. Rows of temperature 0 cost one argmax together."""
    host = logits.float().cpu()
    tokens = host.argmax(-1).tolist()
    choices = []
    for row, sampler in enumerate(samplers):
        if sampler.sampling.temperature > 0:
            tokens[row] = sampler.draw(host[row])
        most = sampler.sampling.top_logprobs
        choices.append(ChosenToken(tokens[row]) if most is None else _with_logprobs(host[row], tokens[row], most))
    return choices


def _with_logprobs(logits: Tensor, token: int, most: int) -> ChosenToken:
    every = torch.log_softmax(logits, -1)
    values, ids = every.topk(min(most, len(every)))
    return ChosenToken(token, float(every[token]), tuple(zip(ids.tolist(), values.tolist(), strict=True)))
