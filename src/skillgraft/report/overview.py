"""The first section: what was found, how large it is, and how small a graft is beside its base."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from skillgraft.report.artefacts import Artefact, Found, ModelFolder, NamedRegion
from skillgraft.report.from_values import sizes_sheet
from skillgraft.report.markup import Field, Markup, join, table, tag
from skillgraft.report.numbers import human_bytes
from skillgraft.report.parts import sheet_drawing, short_names
from skillgraft.values.graft import Graft
from skillgraft.values.region import Region

_WORDS: Mapping[str, tuple[str, str]] = {
    "graft": ("graft", "grafts"), "region": ("region", "regions"), "model": ("model folder", "model folders"),
    "predictions": ("file of predictions", "files of predictions"), "result": ("result", "results"),
    "evaluation": ("evaluation", "evaluations"), "localization": ("search for a region", "searches for regions"),
    "scales": ("search for a scale", "searches for scales"), "map": ("disentanglement map", "disentanglement maps"),
}  # fmt: skip
_HEADER = ("file", "what", "task", "entries", "density (%)", "size", "of its base (%)")


def overview(found: Found) -> Markup:
    """Counts in a sentence, grafts, regions and models in a table, their sizes in a figure."""
    weighty = found.of("model", "graft", "region")
    bases = base_bytes(found)
    parts = [tag("p", f"Found {in_words(found)}.", class_="lead")]
    if found.unread:
        count = "1 file" if len(found.unread) == 1 else f"{len(found.unread)} files"
        parts.append(
            tag("p", f"{count} could not be read: ", tag("a", "see why", href="#aside"), ".", class_="warning")
        )
    if weighty:
        parts.append(table("Models, grafts and regions", _HEADER, [_row(each, bases, found) for each in weighty]))
    if len(weighty) > 1:
        sizes = dict(zip(short_names(weighty), (each.bytes for each in weighty), strict=True))
        parts.append(sheet_drawing("overview-sizes", sizes_sheet(sizes)))
    return join(*parts)


def in_words(found: Found) -> str:
    """`2 grafts, 1 region and 3 results`."""
    counts = Counter(each.kind for each in found.artefacts)
    parts = [f"{counts[kind]} {words[counts[kind] > 1]}" for kind, words in _WORDS.items() if counts[kind]]
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1]))) if parts else "nothing to show"


def base_bytes(found: Found) -> dict[str, int]:
    """Fingerprint → size of the model folders that were found."""
    return {each.value.fingerprint: each.bytes for each in found.of("model")}


def base_of(artefact: Artefact) -> str:
    """The fingerprint of the base that a graft, region or tuned model belongs to; "" where none is known."""
    return str(getattr(artefact.value, "base_fingerprint", ""))


def region_of(artefact: Artefact) -> Region | None:
    value = artefact.value
    return value.region if isinstance(value, Graft | NamedRegion) else None


def _row(artefact: Artefact, bases: Mapping[str, int], found: Found) -> list[Field]:
    region, base = region_of(artefact), bases.get(base_of(artefact))
    missing = Field("–")
    return [
        Field(artefact.name),
        Field(_what(artefact, found)),
        Field(_task(artefact.value)),
        Field(f"{len(region):,}", sort=float(len(region))) if region is not None else missing,
        Field(f"{100 * region.density:.3g}", sort=region.density) if region is not None else missing,
        Field(human_bytes(artefact.bytes), sort=float(artefact.bytes)),
        Field(_share(artefact.bytes / base), sort=artefact.bytes / base) if base else missing,
    ]


def _share(share: float) -> str:
    """Two digits of a small share, whole percents of a large one."""
    return f"{100 * share:.2g}" if share < 0.1 else f"{100 * share:.0f}"


def _what(artefact: Artefact, found: Found) -> str:
    if not isinstance(artefact.value, ModelFolder):
        return artefact.kind
    if "applied" in artefact.value.made:
        return "grafted model"
    if artefact.value.made.get("by") == "finetune":
        return "tuned model"
    others = {base_of(each) for each in found.of("model", "graft", "region")}
    return "base model" if artefact.value.fingerprint in others else "model"


def _task(value: Any) -> str:
    if isinstance(value, ModelFolder):
        return ", ".join(map(str, value.made.get("tasks", ())))
    return str(value.info.get("task", ""))
