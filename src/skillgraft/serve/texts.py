"""A text that grows token by token: characters that span tokens, and stop strings that do.

    growing = GrowingText(tokenizer, stop=["\\n\\n"])
    growing.add(token)          # what may be shown now; "" while a character or a stop string is open
    growing.finish()            # what was held back

Law: the pieces joined are the decoded tokens, cut before the stop string that is complete after the fewest of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_OPEN = "\ufffd"  # what a decoder writes for bytes that are not a character yet
_MOST_OPEN = 16  # tokens after which broken characters are shown as they are: the model writes no text any more


@dataclass(eq=False)
class GrowingText:
    """`ids` are the tokens so far, behind the last ones of the prompt; `stopped` says that a stop string was found.

    Some tokenizers drop the space before the first word that they decode, so the prompt's end is decoded along.
    """

    tokenizer: Any
    stop: Sequence[str] = ()
    ids: list[int] = field(default_factory=list)
    text: str = ""
    stopped: bool = False
    _shown: int = 0  # characters of `text` that were given away
    _start: int = 0  # from here on tokens are decoded together, so that spaces between words come out right
    _read: int = 0  # tokens whose characters stand in `text`

    def __post_init__(self) -> None:
        self._read = len(self.ids)

    def add(self, token: int) -> str:
        """The characters that are certain after one more token."""
        self.ids.append(token)
        self._decode()
        return self._release(self._certain())

    def finish(self) -> str:
        """Everything that was held back, an unfinished character included."""
        self._decode(final=True)
        return self._release(len(self.text))

    def _decode(self, *, final: bool = False) -> None:
        if self.stopped:
            return
        before = self._string(self._start, self._read)
        now = self._string(self._start, len(self.ids))
        if now.endswith(_OPEN) and not final and len(self.ids) - self._read < _MOST_OPEN:
            return
        added = now[len(before) :]
        if not added and not final:  # a special token, or a word that is not finished
            return
        self._start, self._read = self._read, len(self.ids)
        searched = max(0, len(self.text) - max(map(len, self.stop), default=0))
        self.text += added
        ends = [at for at in (self.text.find(stop, searched) for stop in self.stop) if at >= 0]
        if ends:
            self.text, self.stopped = self.text[: min(ends)], True

    def _string(self, start: int, end: int) -> str:
        text: str = self.tokenizer.decode(
            self.ids[start:end], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def _certain(self) -> int:
        """How much of the text cannot become a part of a stop string any more."""
        if self.stopped:
            return len(self.text)
        for stop in range(max(0, len(self.text) - max(map(len, self.stop), default=1) + 1), len(self.text)):
            if any(one.startswith(self.text[stop:]) for one in self.stop):
                return stop
        return len(self.text)

    def _release(self, end: int) -> str:
        piece, self._shown = self.text[self._shown : end], max(self._shown, end)
        return piece
