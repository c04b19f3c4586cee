"""What `model` names: the base, a skill, or a sum in words that a person would write.

    parse("bash+0.5*french")        # (("bash", 1.0), ("french", 0.5))

Names are letters, digits, `_`, `.` and `-`. Only `+` separates terms, so a scale has no `+` in it: `bash+-0.5*french` takes away.
Refused: other characters, a name twice, a scale that is not a finite number, more terms than `MOST_TERMS`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from skillgraft.serve.refusals import Refused, shown, wrong

Terms = tuple[tuple[str, float], ...]  # name and scale
MOST_TERMS = 16
MOST_SCALE = 1000.0
LONGEST_NAME = 100
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?(e-?[0-9]+)?", re.IGNORECASE)
_NAME_RULE = f"1 to {LONGEST_NAME} letters, digits, '_', '.' and '-'"


def is_name(text: str) -> bool:
    """Whether a skill may be called so. Dots alone are what folders are called."""
    return len(text) <= LONGEST_NAME and _NAME.fullmatch(text) is not None and bool(text.strip("."))


def checked_name(text: str) -> str:
    if not is_name(text):
        raise Refused(400, "invalid_name", f"a skill's name is {_NAME_RULE}; found {shown(text)}", "name")
    return text


def parse(text: str) -> Terms:
    """The terms of a sum, in its order."""
    pieces = text.split("+", MOST_TERMS)
    return _checked([_term(piece.strip(" ")) for piece in pieces], "model")


def from_mapping(skills: Mapping[str, object]) -> Terms:
    """The same from the body's field `skills`: name → scale."""
    found = []
    for name, scale in skills.items():
        # Compared before it is a float: a whole number in a body may be larger than any.
        if isinstance(scale, bool) or not isinstance(scale, int | float) or not abs(scale) <= MOST_SCALE:
            raise wrong(f"skills.{name}"[:80], f"a number from {-MOST_SCALE:g} to {MOST_SCALE:g}", scale)
        found.append((_name(name, "skills"), float(scale)))
    return _checked(found, "skills")


def written(terms: Terms) -> str:
    """The sum as a person would write it."""
    return "+".join(name if scale == 1.0 else f"{scale:g}*{name}" for name, scale in terms)


def _term(piece: str) -> tuple[str, float]:
    scale, star, name = piece.rpartition("*")
    if not star:
        return _name(piece, "model"), 1.0
    if not _NUMBER.fullmatch(scale.strip(" ")):
        raise Refused(400, "invalid_sum", f"a term is NAME or NUMBER*NAME; found {shown(piece)}", "model")
    return _name(name.strip(" "), "model"), float(scale)


def _name(text: str, param: str) -> str:
    if not is_name(text):
        raise Refused(400, "invalid_sum", f"a skill's name is {_NAME_RULE}; found {shown(text)}", param)
    return text


def _checked(terms: list[tuple[str, float]], param: str) -> Terms:
    if len(terms) > MOST_TERMS:
        raise Refused(400, "invalid_sum", f"a sum has at most {MOST_TERMS} skills; found {len(terms)} or more", param)
    for name, scale in terms:
        if not math.isfinite(scale) or abs(scale) > MOST_SCALE:
            raise Refused(400, "invalid_sum", f"{name}: a scale is between ±{MOST_SCALE:g}; found {scale:g}", param)
    names = [name for name, _ in terms]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise Refused(400, "invalid_sum", f"{twice!r} stands twice in the sum; give it one scale", param)
    return tuple(terms)
