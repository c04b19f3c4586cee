"""One HTML page about any set of artefacts: self-contained, readable without JavaScript, the same bytes for the same inputs.

    report(["runs"], "page.html")

Sections without data are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from skillgraft.errors import InputError
from skillgraft.files import atomic
from skillgraft.report import inside, look, measured, origins
from skillgraft.report.artefacts import Found, find
from skillgraft.report.markup import Markup, document, join, tag
from skillgraft.report.overview import overview

# Name (the anchor) → title, and what makes the section of what was found.
SECTIONS: Mapping[str, tuple[str, Callable[[Found], Markup]]] = MappingProxyType(
    {
        "overview": ("Overview", overview),
        "scores": ("Scores", measured.scores),
        "calibration": ("Calibration", measured.calibration),
        "density": ("Score against density", measured.density_curves),
        "where": ("Where the entries live", inside.where_entries_live),
        "shared": ("What grafts share", inside.shared_entries),
        "results": ("Results", measured.results),
        "scales": ("Score against scale", measured.scale_searches),
        "disentanglement": ("Disentanglement", measured.disentanglement),
        "made": ("How each was made", origins.provenance),
        "aside": ("Files not shown", origins.aside),
    }
)


@dataclass(frozen=True)
class Page:
    """A page that was written: where, what it was made of, and its sections."""

    path: Path
    found: Found
    sections: tuple[str, ...]


def report(inputs: Iterable[str | Path], out: str | Path, *, title: str = "skillgraft report") -> Page:
    """Write one page about everything below the inputs; refused where there is nothing to show."""
    look.graph_objects()
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
    shown = {name: content for name, content in made.items() if content}
    with atomic.new_file(target) as file:
        file.write_text(_document(title, shown), encoding="utf-8")
    return Page(target, found, tuple(shown))


def _document(title: str, sections: Mapping[str, Markup]) -> str:
    links = [tag("li", tag("a", SECTIONS[name][0], href=f"#{name}")) for name in sections]
    body = [
        tag(
            "section",
            tag("h2", SECTIONS[name][0], id=f"{name}-title"),
            content,
            id=name,
            aria_labelledby=f"{name}-title",
        )
        for name, content in sections.items()
    ]
    return document(
        title,
        tag("header", tag("h1", title), tag("nav", tag("ul", *links), aria_label="Sections")),
        join(tag("main", *body)),
    )
