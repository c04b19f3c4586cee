"""Every answer that is a refusal: an HTTP status, a code that programs read, and one sentence for people.

    raise Refused(404, "model_not_found", "no skill 'sts2' is held; did you mean 'sst2'?", param="model")

The shape is OpenAI's: `{"error": {"message", "type", "param", "code"}}`. A refusal never holds a path or a traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from skillgraft.errors import listed

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    411: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    422: "graft_error",
    431: "invalid_request_error",
    429: "rate_limit_error",
}


@dataclass(eq=False)
class Refused(Exception):
    """A request that is not answered, and why."""

    status: int
    code: str
    message: str
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message

    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def wrong(param: str, expected: str, found: object) -> Refused:
    """A field of a body is not what it should be."""
    return Refused(400, "invalid_value", f"{param!r} must be {expected}; found {shown(found)}", param)


def unknown_skill(name: str, held: Iterable[str], base: str) -> Refused:
    """404, never the base in silence: with the nearest names."""
    names = [base, *held]
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    known = f"Held: {listed(names[1:], most=8) or 'no skill'}; the base is {base!r}"
    return Refused(404, "model_not_found", f"no skill {shown(name)} is held; {hint}{known}", "model")


def shown(value: object, *, most: int = 60) -> str:
    """A value from outside as one short piece of a message."""
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"
