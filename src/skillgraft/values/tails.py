"""Rows that a tuned model appended to a tensor: those of new tokens, in the embeddings and in the LM head.

They travel whole, as heads do, under a name that no tensor can have: the tensor's own and the row that they begin at.

    >>> tail_name("embed_tokens.weight", 49152)
    'embed_tokens.weight[49152:]'
    >>> tail_of("embed_tokens.weight[49152:]")
    Tail(tensor='embed_tokens.weight', first=49152)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from skillgraft.values.numbers import Array

_TAIL = re.compile(r"(.+)\[([1-9][0-9]{0,8}):\]", re.ASCII)


class Tail(NamedTuple):
    """The tensor that grows, and its first new row: how many rows the base has."""

    tensor: str
    first: int


def tail_name(tensor: str, first: int) -> str:
    """What rows from `first` on are called among a graft's heads."""
    return f"{tensor}[{first}:]"


def tail_of(name: str) -> Tail | None:
    """The tail that a head's name means; None where it names a tensor."""
    found = _TAIL.fullmatch(name)
    return Tail(found[1], int(found[2])) if found else None


def tails_of(heads: Mapping[str, Array]) -> dict[Tail, Array]:
    """The tails among a graft's heads."""
    return {tail: head for name, head in heads.items() if (tail := tail_of(name)) is not None}


def vocabulary_size(heads: Mapping[str, Array]) -> int | None:
    """How many rows the model has once the tails are on; None without tails. Where they disagree, the most."""
    return max((tail.first + len(rows) if rows.ndim else 0 for tail, rows in tails_of(heads).items()), default=None)
