"""Numbers as a reader sees them, one spelling for Markdown, figures, the HTML page and the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

Unit = Literal["percent", "number", "bytes"]


def shown(value: float, unit: Unit) -> str:
    """`84.7` for 0.847 as a percentage (`0.01` for 0.0001), `8,500` or `0.3217` as a number, `336.2 kB` as bytes."""
    return _SHOWN[unit](value)


def human_bytes(count: float) -> str:
    """A size in the largest decimal unit that leaves a number above 1."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def _percent(value: float) -> str:
    """One place; below that one digit, down to a millionth: the density of a graft is no 0.0."""
    percents = 100 * value
    return f"{percents:.1g}" if 5e-5 <= abs(percents) < 0.05 else f"{percents:z.1f}"


def _number(value: float) -> str:
    """Counts in full; anything else to four digits."""
    return f"{value:z,.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.4g}"


_SHOWN: Mapping[Unit, Callable[[float], str]] = MappingProxyType(
    {"percent": _percent, "number": _number, "bytes": human_bytes}
)
