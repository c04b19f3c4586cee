"""JSON in one spelling: what is written has one text, what is read has one meaning.

Refused when reading: repeated keys, NaN and Infinity, half characters (lone surrogates), nesting without end. Python's own reader
lets all of these through, and the last value of a repeated key would win silently.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from skillgraft.errors import listed

# Objects, lists and values at most, whatever they are: about 500 MB of Python's memory.
_MOST = {"{": 1_000_000, "[": 1_000_000, ",": 4_000_000}


def canonical(value: Any) -> str:
    """The text of a value: keys sorted, no spaces, non-ASCII characters as they are, numbers as Python writes them."""
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    text.encode()  # raises a ValueError on half characters
    return text


def refuse_bombs(text: str) -> None:
    """Raise a ValueError where a text of a few megabytes would become gigabytes of small values."""
    for mark, most in _MOST.items():
        if text.count(mark) > most:
            raise ValueError(f"{text.count(mark):,} times {mark!r} in it, the most that is read is {most:,}")


def parse(text: str) -> Any:
    """The value of a text, or a ValueError that says what is wrong with it."""
    refuse_bombs(text)
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise ValueError(f"repeated keys: {listed(sorted(name for name in counts if counts[name] > 1))}")
    for name, value in pairs:
        (name + value if isinstance(value, str) else name).encode()
    return result


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")
