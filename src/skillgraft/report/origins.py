"""The last sections: how each artefact was made, and which files are not shown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from skillgraft.report.artefacts import Artefact, Aside, Found
from skillgraft.report.markup import Field, Markup, join, table, tag


def provenance(found: Found) -> Markup:
    """Command, versions and settings of each graft, region, model and result; predictions in one table."""
    made = [(each, _made(each)) for each in found.of("model", "graft", "region", "result")]
    entries = [_entry(each.name, facts) for each, facts in made if facts]
    return join(*entries, _predictions(found.of("predictions")))


def _made(artefact: Artefact) -> dict[str, Any]:
    value = artefact.value
    return dict(value.info if hasattr(value, "info") else value.made)


def _entry(name: str, facts: Mapping[str, Any]) -> Markup:
    rest = {key: value for key, value in facts.items() if key not in ("command", "scores")}
    command = tag("p", tag("code", str(facts["command"]))) if facts.get("command") else ""
    told = json.dumps(rest, indent=2, ensure_ascii=False, sort_keys=True, default=str)
    return tag(
        "div",
        tag("h3", name),
        command,
        tag("details", tag("summary", "Settings and versions"), tag("pre", told)) if rest else "",
        class_="made",
    )


def _predictions(artefacts: Sequence[Artefact]) -> Markup:
    if not artefacts:
        return Markup()
    keys = sorted({key for each in artefacts for key in each.value.made_by})
    rows = [
        [Field(each.name), Field(each.value.task), *(Field(each.value.made_by.get(key, "")) for key in keys)]
        for each in artefacts
    ]
    return join(tag("h3", "Predictions"), table("What made the predictions", ["file", "task", *keys], rows))


def aside(found: Found) -> Markup:
    """Files that could not be read, and files that a report does not use."""
    tables = [_asides("Could not be read", found.unread), _asides("Not used", found.unused)]
    return join(*tables)


def _asides(title: str, files: Sequence[Aside]) -> Markup:
    if not files:
        return Markup()
    return table(f"{title}: {len(files):,}", ["file", "why"], [[Field(file.name), Field(file.why)] for file in files])
