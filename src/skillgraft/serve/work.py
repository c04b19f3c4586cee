"""What the model is given to do: a request's rows, what comes back about them, and the request's hold on both.

A `Ticket` is one request as the model's thread sees it. The request's own thread may set `gone` at any time: rows that wait are
then skipped, rows that are written leave the batch before its next token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from skillgraft.serve.sampling import ChosenToken, Sampler
from skillgraft.serve.texts import GrowingText

# What a row of a batch is answered with: skills by the bank's keys with their scales; None is the base.
Spec = Mapping[str, float] | None


@dataclass(frozen=True)
class ReadOut:
    """What the model gave for row `row` of a request: scores or an embedding."""

    row: int
    values: tuple[float, ...]
    tokens: int


@dataclass(frozen=True)
class TextPiece:
    """Some text of row `row`, with the tokens that it came from; `finish` says why the row ended, "" while it goes on.

    `tokens` counts the one that ended the text too, which is not among the `choices`.
    """

    row: int
    text: str
    choices: tuple[ChosenToken, ...]
    tokens: int
    prompt_tokens: int
    finish: str = ""


@dataclass(frozen=True)
class Failed:
    """The request could not be answered."""

    error: Exception


Event = ReadOut | TextPiece | Failed


@dataclass(eq=False)
class Ticket:
    """One request. `prepare` makes its rows on the model's thread, where alone the tokenizer is used."""

    rows: int
    prepare: Callable[[Ticket], Sequence[ReadRow | WriteRow]]
    deliver: Callable[[Event], None]
    gone: bool = False


@dataclass(eq=False)
class ReadRow:
    """A row for one forward pass. `reader` and `readout` say which; rows of one reader share it."""

    ticket: Ticket
    row: int
    spec: Spec
    reader: str
    readout: Any
    encoded: Any
    values: Callable[[Any], tuple[float, ...]]


@dataclass(eq=False)
class WriteRow:
    """A text that is being written."""

    ticket: Ticket
    row: int
    spec: Spec
    prompt: Sequence[int]
    text: GrowingText
    sampler: Sampler
    most: int
    streamed: bool
    written: list[int] = field(default_factory=list)
    _held: list[ChosenToken] = field(default_factory=list)
    _parts: list[str] = field(default_factory=list)
    _counted: int = 0

    def take(self, choice: ChosenToken, ends: frozenset[int]) -> TextPiece | None:
        """One more token: a piece to deliver now, or None while there is none."""
        self.written.append(choice.token)
        ended = choice.token in ends
        if not ended:
            self._held.append(choice)
            self._parts.append(self.text.add(choice.token))
        finish = "stop" if ended or self.text.stopped else "length" if len(self.written) >= self.most else ""
        if finish:
            self._parts.append(self.text.finish())
            finish = "stop" if self.text.stopped else finish
        if not finish and not (self.streamed and any(self._parts)):
            return None
        new, self._counted = len(self.written) - self._counted, len(self.written)
        piece = TextPiece(self.row, "".join(self._parts), tuple(self._held), new, len(self.prompt), finish)
        self._held, self._parts = [], []
        return piece
