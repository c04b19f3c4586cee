"""One HTML page about any set of artefacts: self-contained, readable without JavaScript, the same bytes for the same inputs.

    report(["runs"], "page.html")

The first screen says what came out; the rest is folded until asked for, and open where there is no script. Sections without data
are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from skillgraft.errors import InputError
from skillgraft.files import atomic
from skillgraft.report import look, sections
from skillgraft.report.artefacts import Found, find
from skillgraft.report.blocks import Block, environment, render
from skillgraft.report.overview import overview

# Name (the anchor) → title, and what makes the section of what was found.
SECTIONS: Mapping[str, tuple[str, Callable[[Found], list[Block]]]] = MappingProxyType(
    {
        "overview": ("What did I get?", overview),
        "scores": ("Scores", sections.scores),
        "calibration": ("Calibration", sections.calibration),
        "density": ("Score against density", sections.density_curves),
        "where": ("Where the entries live", sections.where_entries_live),
        "shared": ("What grafts share", sections.shared_entries),
        "results": ("Results", sections.results),
        "scales": ("Score against scale", sections.scale_searches),
        "disentanglement": ("Disentanglement", sections.disentanglement),
        "files": ("Files and sizes", sections.files),
        "made": ("How each was made", sections.provenance),
        "aside": ("Files not shown", sections.asides),
    }
)


@dataclass(frozen=True)
class Page:
    """A page that was written: where, what it was made of, and its sections."""

    path: Path
    found: Found
    sections: tuple[str, ...]


@dataclass(frozen=True)
class PageSection:
    """One section as the template takes it; `first` stays open where the first screen has nothing to show."""

    name: str
    title: str
    blocks: list[Block]
    folded: bool
    first: bool


def report(inputs: Iterable[str | Path], out: str | Path, *, title: str = "skillgraft report") -> Page:
    """Write one page about everything below the inputs; refused where there is nothing to show."""
    look.graph_objects()
    environment()
    target, given = Path(out), list(inputs)
    atomic.check_target(target)
    found = find(given)
    if not found.artefacts and not found.unread:
        names = ", ".join(map(str, given))
        raise InputError(
            f"{names}: expected grafts, regions, predictions, results, model folders or what verbs print with --json, "
            f"found {len(found.unused)} files of other kinds"
        )
    made = {name: make(found) for name, (_, make) in SECTIONS.items()}
    shown = {name: blocks for name, blocks in made.items() if blocks}
    tells = any(block.kind == "grid" for block in shown.get("overview", ()))
    listed = [
        PageSection(name, SECTIONS[name][0], blocks, folded=name != "overview", first=at == 1 and not tells)
        for at, (name, blocks) in enumerate(shown.items())
    ]
    with atomic.new_file(target) as file:
        file.write_text(render("page.html", title=title, sections=listed), encoding="utf-8")
    return Page(target, found, tuple(shown))
