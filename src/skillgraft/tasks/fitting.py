"""Making a filled template fit: the fields give way, the template never does.

P1's causal code cuts the end of the filled prompt, so that long texts lose the question itself; a masked prompt cut that way
loses its mask. Here only field texts are cut.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from skillgraft.errors import InputError


class Tokenizer(Protocol):
    """Any fast tokenizer of transformers: a call gives `input_ids` and, on request, `offset_mapping`."""

    def __call__(self, text: str, /, **options: Any) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class Piece:
    """A field's text on its way into a template. Choices give way last: an answer that is not shown cannot be chosen."""

    text: str
    is_list: bool = False


def cut_to(text: str, tokenizer: Tokenizer, tokens: int) -> str:
    """`text` itself if it has at most so many tokens, else its beginning."""
    return _cut(text, _starts(text, tokenizer), tokens)


def fit_pieces(
    pieces: Sequence[Piece], joined: Callable[[Sequence[str]], str], tokenizer: Tokenizer, *, max_length: int
) -> str:
    """`joined` of the texts, cut until it has at most `max_length` tokens.

    Tokens can merge across borders, so the count is taken again after each cut; every round shortens some text, so it ends.
    """
    whole = joined([piece.text for piece in pieces])
    while (length := len(tokenizer(whole, verbose=False)["input_ids"])) > max_length:
        if not any(piece.text for piece in pieces):
            raise InputError(
                f"the template alone takes {length} tokens, but max_length is {max_length}: "
                f"shorten the template or raise max_length: {whole!r}"
            )
        pieces = _shortened(pieces, tokenizer, length - max_length)
        whole = joined([piece.text for piece in pieces])
    return whole


def _shortened(pieces: Sequence[Piece], tokenizer: Tokenizer, excess: int) -> list[Piece]:
    starts = [_starts(piece.text, tokenizer) for piece in pieces]
    # A text may have no token of its own and still cost one inside the whole: any text counts as at least one.
    lengths = [max(1, len(found)) if piece.text else 0 for piece, found in zip(pieces, starts, strict=True)]
    keep = _kept(lengths, [piece.is_list for piece in pieces], excess)
    return [
        Piece(_cut(piece.text, found, kept) if kept < length else piece.text, piece.is_list)
        for piece, found, kept, length in zip(pieces, starts, keep, lengths, strict=True)
    ]


def _kept(lengths: Sequence[int], is_list: Sequence[bool], excess: int) -> list[int]:
    """Tokens left to each piece when `excess` go from the longest: one that is no longer the longest shares the loss."""
    texts = [0 if listed else length for length, listed in zip(lengths, is_list, strict=True)]
    lists = [length if listed else 0 for length, listed in zip(lengths, is_list, strict=True)]
    shorter_texts = _levelled(texts, excess)
    shorter_lists = _levelled(lists, excess - (sum(texts) - sum(shorter_texts)))
    return [text + listed for text, listed in zip(shorter_texts, shorter_lists, strict=True)]


def _levelled(lengths: Sequence[int], excess: int) -> list[int]:
    """`lengths` capped at the highest common level that takes at least `excess` away, or everything."""
    levels = range(max(lengths, default=0) + 1)
    level = bisect_right(levels, max(0, sum(lengths) - excess), key=lambda cap: sum(min(n, cap) for n in lengths)) - 1
    return [min(n, level) for n in lengths]


def _starts(text: str, tokenizer: Tokenizer) -> list[int]:
    """Where each token of `text` begins."""
    if not getattr(tokenizer, "is_fast", True):
        raise InputError("a text is too long and this tokenizer cannot say where its tokens are: use a fast tokenizer")
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    return [start for start, _ in encoded["offset_mapping"]]


def _cut(text: str, starts: Sequence[int], tokens: int) -> str:
    """The text before token number `tokens`; shorter than `text` whenever something is to go.

    Several tokens can share one character (byte-level pieces of an emoji): the whole character goes.
    """
    if tokens == 0:
        return ""
    if len(starts) <= tokens:
        return text
    return text[: min(starts[tokens], len(text) - 1)].rstrip()
