"""What grafts are called where several are given at once, and which scale each gets.

    scales_of(["films.safetensors", "news"], {"films": 0.5})    # [0.5, 1.0]

A graft's name is the one that it was given, or its file's; the file's without `.safetensors` means the same. Refused: a scale for
a name that none has, or that two have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from skillgraft.errors import InputError, did_you_mean, listed
from skillgraft.values.graft import Graft, GraftLike

SUFFIX = ".safetensors"
Scales = float | Mapping[str, float]  # one for all, or by name


def called(graft: GraftLike) -> str:
    """What a graft without a name of its own is called: after its file, its task or its tuned model."""
    if not isinstance(graft, Graft):
        return Path(graft).name
    return graft.info.text("task") or graft.info.text("tuned") or "the graft"


def short(name: str) -> str:
    """A name without what the names of all graft files end with."""
    return name.removesuffix(SUFFIX) or name


def scales_of(names: Sequence[str], scale: Scales) -> list[float]:
    """The scale of each of these grafts: one number for all; by name, then a graft that is not named keeps 1."""
    if not isinstance(scale, Mapping):
        return [scale] * len(names)
    known = [short(name) for name in names]
    for wanted in scale:
        count = known.count(short(wanted))
        if not count:
            raise InputError(
                f"a scale is given for {wanted!r}, which no graft is called; {did_you_mean(wanted, known)}"
            )
        if count > 1:
            found = f"{count} of {listed(names)} are called {wanted!r}, and a scale is for one"
            raise InputError(f"{found}: give them names of their own, NAME=PATH on the command line")
    by_name = {short(name): factor for name, factor in scale.items()}
    return [by_name.get(name, 1.0) for name in known]
