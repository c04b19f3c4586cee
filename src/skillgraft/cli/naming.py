"""Names that are given on the command line: `NAME=PATH` for a model or graft, `--scale NAME=0.5` for one of them.

    named("films=runs/a.safetensors")    # Given("films", "runs/a.safetensors")
    scales(["0.5", "films=2"])           # ("0.5", {"films": 2.0})

What exists is a path, whatever its name holds; so is what has a `/` before its `=`. Refused: an empty name or path, names of
other characters than letters, digits, `_`, `.` and `-` (a sum is written with `+`), but for a seed at the end (`full@0`);
one name for two.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from skillgraft.errors import InputError, listed


class Given(NamedTuple):
    """A path or hub name, and what to call it; the name is empty where none was given."""

    name: str
    path: str

    @property
    def shown(self) -> str:
        """The name, or what the path ends with."""
        return self.name or last_part(self.path)


def named(text: str) -> Given:
    """One argument, taken apart."""
    name, sign, path = text.partition("=")
    if not sign or "/" in name or os.path.exists(text):
        return Given("", text)
    if not name or not path:
        missing = "no name before" if not name else "nothing behind"
        raise InputError(f"expected NAME=PATH or a path, found {text!r}, which has {missing} the '='")
    _check_name(name, text)
    return Given(name, path)


def by_name(texts: Sequence[str], default: Callable[[str], str]) -> dict[str, str]:
    """Name → path; those without a name are called what `default` makes of their path. One name for two is refused."""
    given = [named(text) for text in texts]
    names = [each.name or default(each.path) for each in given]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        paths = [each.path for each, name in zip(given, names, strict=True) if name == twice]
        example = f"first={paths[0]}"
        raise InputError(
            f"two of {listed(paths)} have one name ({twice!r}), and results are shown by name: give NAME=PATH, as {example}"
        )
    return {name: each.path for name, each in zip(names, given, strict=True)}


def shortest(texts: Sequence[str]) -> Callable[[str], str]:
    """What paths are called by default in a table: their files' stems; where two have one stem, what was typed."""
    stems = [Path(each.path).stem for each in map(named, texts) if not each.name]
    return (lambda path: Path(path).stem) if len(set(stems)) == len(stems) else str


def last_part(path: str) -> str:
    """What a path is called by default."""
    return Path(path).name


def scales(texts: Sequence[str]) -> tuple[str | None, dict[str, float]]:
    """The plain one that is for all, as it was typed (None where there is none), and those that are for one graft."""
    plain: str | None = None
    own: dict[str, float] = {}
    for text in texts:
        name, sign, value = text.rpartition("=")
        if not sign:
            if plain is not None:
                raise InputError(
                    f"--scale has one plain number for all, found {plain} and {text}; for one graft give NAME={text}"
                )
            plain = text
            continue
        if not name or name in own:
            raise InputError(
                f"--scale {text}: {'two scales for one name' if name else 'expected NAME=NUMBER, found no name'}"
            )
        own[name] = number(value)
    return plain, own


def each_scaled(given: Sequence[Given], texts: Sequence[str]) -> float | dict[str, float]:
    """The number that all get, or where single grafts have one too, both together: name → scale."""
    from skillgraft.values.naming import scales_of

    plain, own = scales(texts)
    factor = 1.0 if plain is None else number(plain)
    names = [each.shown for each in given]
    if not own:
        return factor
    return {name: factor * each for name, each in zip(names, scales_of(names, own), strict=True)}


def number(text: str, *, also: str = "") -> float:
    """A scale as a number."""
    try:
        return float(text)
    except ValueError:
        raise InputError(f"--scale is a number{also}, or NAME=NUMBER for one graft; found {text!r}") from None


def _check_name(name: str, text: str) -> None:
    from skillgraft.serve.names import is_name

    skill, sign, seed = name.partition("@")
    if not is_name(skill) or (sign and not seed.isdecimal()):
        rule = "a name has letters, digits, '_', '.' and '-', at most 100, and may end with a seed, as full@0"
        raise InputError(f"{text!r}: {rule}; found {name!r}; a path with '=' must exist")
