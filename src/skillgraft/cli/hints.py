"""What to type next where a graft keeps less than nine tenths of the gain: a scale first, then more entries, then a pull.

The command that was given comes back with one option changed and another output, ready to be pasted.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skillgraft.regions.localize import Localization

ENOUGH = 0.9  # of tuned's gain over base
_LARGEST = 0.1  # of the scope: a graft of more is no small one, and a pull is the better advice
_PULL = 0.5


def hints(located: Localization, *, command: Sequence[str], out: Path) -> Iterator[dict[str, str]]:
    """Why, and the command; none where the graft keeps enough, or where tuned gained nothing that could be kept."""
    kept = kept_share(located)
    if kept is None or kept >= ENOUGH or not command:
        return
    graft, recipe = located.graft, located.graft.info["recipe"]
    why = f"the graft keeps {100 * kept:.0f} % of TUNED's gain"
    if not located.trials and graft.scale == 1.0 and recipe.get("reference", "base") == "base":
        words = _with(command, {"--scale": "auto"}, out, "scaled")
        yield {
            "why": f"{why}. Next: a multiple of TUNED's change, with a search at each (5 or more such searches, a file as large)",
            "command": words,
        }
    elif 10 * graft.region.density <= _LARGEST and not _keeps(recipe):
        entries = {"--entries": str(10 * len(graft))} if recipe.get("entries") else {}
        entries = entries or {"--density": f"{10 * graft.region.density:.3g}"}
        words = _with(command, entries, out, "larger")
        yield {
            "why": f"{why}. Next: ten times the entries (a search as long, a file ten times as large)",
            "command": words,
        }
    else:
        words = shlex.join(["skillgraft", "finetune", *_tuning(command), "--pull", f"{_PULL:g}", "-o", "PULLED"])
        yield {
            "why": f"{why}. Next: tune with a pull, so that the change itself is small (as long as the first tuning)",
            "command": words,
        }


def kept_share(located: Localization) -> float | None:
    """Of tuned's gain over base, by the task's score; of the way to tuned's answers, where there are no labels."""
    if located.match:
        share: float | None = located.match["share"]
        return share
    found: float | None = located.scores["graft"]["relative_gain"]["value"]
    return found


def _keeps(recipe: Mapping[str, Any]) -> bool:
    return recipe.get("keep") is not None or recipe.get("keep_gain") is not None


def _with(command: Sequence[str], changes: Mapping[str, str], out: Path, ending: str) -> str:
    """The command with these options instead of its own, and another output."""
    budget = (
        {"--density", "--entries", "--keep", "--keep-gain"} if changes.keys() & {"--density", "--entries"} else set()
    )
    words = _without(command, {*changes, *budget, "-o", "--out"})
    more = [word for option, value in changes.items() for word in (option, value)]
    return shlex.join(["skillgraft", *words, *more, "-o", str(out.with_name(f"{out.stem}-{ending}{out.suffix}"))])


def _without(command: Sequence[str], options: set[str]) -> list[str]:
    """The words of a command without these options and their values."""
    kept: list[str] = []
    skip = False
    for word in command:
        if skip:
            skip = False
        elif word in options:
            skip = True
        elif word.partition("=")[0] not in options:
            kept.append(word)
    return kept


def _tuning(command: Sequence[str]) -> list[str]:
    """What of a search's command a fine-tune takes as well: the base, the task and the rows."""
    shared = {"--task", "--shots", "--train-rows", "--validation-rows", "--seed", "--readout", "--max-length"}
    base = command[1:2] if command[1:2] and not command[1].startswith("-") else ["BASE"]
    rest = [
        word
        for here, value in zip(command, [*command[1:], ""], strict=True)
        if here in shared
        for word in (here, value)
    ]
    return [*base, *rest]
