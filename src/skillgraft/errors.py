"""Every error that skillgraft raises on purpose.

Two branches: `InputError` (what was given is wrong; exit code 2, where a graft does not fit its base 3) and `RunError` (the
work itself failed; exit code 1).
A message says what was expected, what was found, and what to do. Deep code raises the fact; the public edge may add
the context once, with `error.within("reading skill.safetensors")`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Self


class SkillgraftError(Exception):
    """The root: catch this to catch everything that skillgraft raises on purpose."""

    exit_code = 1

    def within(self, context: str) -> Self:
        """The same error with its context in front: `g.safetensors: 3 indices are negative`."""
        return type(self)(f"{context}: {self}")


class InputError(SkillgraftError):
    """What was given is wrong: a file, a name, a number, a combination."""

    exit_code = 2


class FormatError(InputError):
    """A file is not what it claims to be: truncated, corrupt, or of an unknown version."""


class WrongBase(InputError):
    """The model's numbers at the graft's sites are not the ones the graft was made for."""

    exit_code = 3


class AlreadyApplied(InputError):
    """The model holds this graft's numbers already."""


class NotApplied(InputError):
    """The graft to take off is not on the model."""


class Overlap(InputError):
    """Two grafts want the same entries; as a sum or all together they can have them."""


class HeadConflict(InputError):
    """Two grafts bring different heads under one name, and nobody chose."""


class DataError(InputError):
    """A dataset is not what its task says: names file, row and column."""


class RunError(SkillgraftError):
    """The work was right but could not be done: disk full, not writable, interrupted, killed."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean 'movement'? Known: learned, movement, random`: the tail of an unknown-name error."""
    options = list(known)
    close = difflib.get_close_matches(name, options, n=1, cutoff=0.6)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}Known: {', '.join(options)}"


def listed(names: Iterable[str], *, most: int = 5) -> str:
    """`a, b, c and 7 more`: names for a message, never hundreds of them."""
    every = list(names)
    more = len(every) - most
    return ", ".join(every[:most]) + (f" and {more} more" if more > 0 else "")


# Package → the extra that brings it. Everything is imported where it is used, so a missing one shows late: then this says which.
EXTRA_OF = {
    **dict.fromkeys(("torch", "transformers", "accelerate", "peft", "scipy", "PIL"), "train"),
    **dict.fromkeys(("datasets", "pyarrow"), "data"),
    **dict.fromkeys(("plotly", "kaleido", "jinja2"), "report"),
    "gguf": "gguf",
}


def missing_package(name: str | None) -> str | None:
    """What to install for a package that is not there; None for one that no extra brings."""
    package = (name or "").partition(".")[0]
    if package not in EXTRA_OF:
        return None
    return f"this needs the package {package!r}, which is not installed: pip install 'skillgraft[{EXTRA_OF[package]}]'"
