"""Sections about what grafts and regions are made of: where their entries live, and how much they share."""

from __future__ import annotations

from collections.abc import Iterator

from skillgraft.report.artefacts import Artefact, Found
from skillgraft.report.from_values import cosine_sheet, coverage_sheet, region_sheet
from skillgraft.report.markup import Markup, join, tag
from skillgraft.report.overview import base_of, region_of
from skillgraft.report.parts import sheet_drawing, short_names, side_by_side
from skillgraft.values.graft import Graft
from skillgraft.values.region import Region


def where_entries_live(found: Found) -> Markup:
    """A heat map of layers and kinds for each graft and region."""
    sheets = [
        region_sheet(region, title=f"{name}: {len(region):,} entries")
        for name, region in _regions(found.of("graft", "region"))
    ]
    if not sheets:
        return Markup()
    said = "Entries by layer and kind. Colours are logarithmic; a grey field has no parameters in the scope."
    drawings = [sheet_drawing(f"where-{place}", sheet) for place, sheet in enumerate(sheets)]
    return join(tag("p", said), side_by_side(drawings, wide=True))


def shared_entries(found: Found) -> Markup:
    """Coverage of regions and cosine of grafts, for each base that two or more of them belong to."""
    parts = []
    for number, members in enumerate(_families(found)):
        grafts = [each for each in members if isinstance(each.value, Graft)]
        sheets = [coverage_sheet(dict(_regions(members)), title="Coverage of regions")]
        if len(grafts) > 1:
            values = (each.value for each in grafts)
            sheets.append(cosine_sheet(dict(zip(short_names(grafts), values, strict=True)), title="Cosine of grafts"))
        drawings = [sheet_drawing(f"shared-{number}-{place}", sheet) for place, sheet in enumerate(sheets)]
        name = next((each.value.info["base"] for each in grafts if "base" in each.value.info), "one base")
        parts.append(join(tag("h3", f"On {name}"), side_by_side(drawings, wide=True)))
    said = "Coverage: how much of the column's region the row's contains. Cosine: whether two grafts change their base alike."
    return join(tag("p", said), *parts) if parts else Markup()


def _regions(artefacts: list[Artefact]) -> Iterator[tuple[str, Region]]:
    for name, artefact in zip(short_names(artefacts), artefacts, strict=True):
        region = region_of(artefact)
        if region is not None:
            yield name, region


def _families(found: Found) -> list[list[Artefact]]:
    """Grafts and regions by the base that they belong to, where there are two or more."""
    families: dict[str, list[Artefact]] = {}
    for artefact in found.of("graft", "region"):
        families.setdefault(base_of(artefact), []).append(artefact)
    return [members for base, members in families.items() if base and len(members) > 1]
