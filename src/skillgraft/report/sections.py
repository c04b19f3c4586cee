"""What stands below the first screen, folded until asked for: scores, calibration, curves, where entries live, provenance.

Each section is a function from what was found to blocks; one without data is left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from skillgraft.measure.calibration import reliability
from skillgraft.measure.metrics import METRICS
from skillgraft.predictions.predictions import Predictions
from skillgraft.report.artefacts import Artefact, Aside, Found, ModelFolder, short_names
from skillgraft.report.blocks import (
    Block,
    Drawing,
    Field,
    Grid,
    Heading,
    Made,
    TableBlock,
    Text,
    shown_sheet,
    table_of,
)
from skillgraft.report.figures import reliability_diagram
from skillgraft.report.json_artefacts import ScaleCurves, Scores
from skillgraft.report.overview import charts, share_in_words
from skillgraft.report.score_sheets import people_names, score_sheet
from skillgraft.report.sheet import Sheet
from skillgraft.report.value_sheets import (
    DISENTANGLEMENT,
    confidence_sheet,
    cosine_sheet,
    coverage_sheet,
    curves_sheet,
    density_sheet,
    region_sheet,
    reliability_sheet,
    sizes_sheet,
)
from skillgraft.values.graft import Graft
from skillgraft.values.printing import human_bytes


def scores(found: Found) -> list[Block]:
    """A table for each task: test rows first, and apart from them the rows that choices were made on."""
    known = found.scores()
    if not known:
        return []
    about = (
        "Brackets are 95 % bootstrap intervals. Agreement, share kept and relative gain compare with the tuned model; "
    )
    blocks: list[Block] = [Text(about + "the majority class is the score of one constant answer.")]
    for split in dict.fromkeys(each.split for each in known):
        members = [each for each in known if each.split == split]
        chosen_on = ": thresholds and scales were chosen on these" if split == "validation" else ""
        blocks += [Heading(f"{split.capitalize()} rows{chosen_on}"), *map(_score_table, members)]
        if split != known[0].split:  # the first split's chart stands on the first screen
            drawn = [Drawing.of(f"scores-{split}-{at}", sheet) for at, sheet in enumerate(charts(members))]
            blocks += [Grid(drawn)]
    return [*blocks, *(_answers(each) for each in known if each.answers)]


def _answers(scores: Scores) -> TableBlock:
    """A few rows' prompts and completions, and what the models wrote: a column for each row."""
    names = list(dict.fromkeys(name for row in scores.answers for name in row))
    header = ["", *(f"row {number}" for number in range(1, len(scores.answers) + 1))]
    rows = [[Field(name), *(Field(row.get(name, "–")) for row in scores.answers)] for name in names]
    return TableBlock(f"Answers side by side: {scores.title}", header, rows)


def _score_table(scores: Scores) -> TableBlock:
    sheet = score_sheet(scores)
    table = table_of(sheet)
    return replace(table, notes=[*table.notes, *sheet.notes])


def calibration(found: Found) -> list[Block]:
    """Reliability diagrams of all models of a task on one pair of axes, and how often they are how sure."""
    blocks: list[Block] = []
    of_classes = {
        key: {name: each for name, each in models.items() if isinstance(each, Predictions)}
        for key, models in found.predictions().items()
    }
    some = [(key, models) for key, models in of_classes.items() if models]
    for number, ((_, task, split), models) in enumerate(some):
        people, diagrams = people_names(models), []
        for at, (name, each) in enumerate(models.items()):
            bins, ece = reliability(each), f"ECE {100 * METRICS['ece'](each):.1f} %"
            sheet = reliability_sheet(bins, title=f"{people[name]}: {ece}")
            drawn = reliability_diagram(bins, title=sheet.title, small=True)
            diagrams.append(Drawing.of(f"reliability-{number}-{at}", sheet, drawn=drawn))
        named = {people[name]: each for name, each in models.items()}
        histogram = confidence_sheet(named, title=f"How sure the models are on {task}")
        blocks += [Heading(f"{task}, {split} rows"), Grid(diagrams, "small")]
        blocks += [Grid([Drawing.of(f"confidence-{number}", histogram)])]
    about = "Accuracy (upwards) by confidence (to the right), 0 to 100 %. The hatched part is the gap to the mean confidence: "
    about += "below the diagonal a model is more sure than right. ECE, the mean gap over 15 bins, is biased upwards on few rows."
    return [Text(about), *blocks] if blocks else []


def density_curves(found: Found) -> list[Block]:
    """Scores at growing densities, a figure for each task; base and tuned beside them."""
    by_task: dict[str, list[Artefact]] = {}
    for search in found.of("localization"):
        if search.value.curve:
            by_task.setdefault(search.value.scores.task, []).append(search)
    drawings = []
    for number, (task, members) in enumerate(sorted(by_task.items())):
        labels = [
            f"{name} ({each.value.method}, {each.value.curve_kind})"
            for name, each in zip(short_names(members), members, strict=True)
        ]
        curves = dict(zip(labels, (each.value.curve for each in members), strict=True))
        first: Scores = members[0].value.scores
        # Levels without their bands: four bands over each other would hide the curves.
        flat = {name: first.models[name]["score"] for name in ("tuned", "base") if name in first.models}
        level = {name: {"value": cell.value, "reason": cell.reason} for name, cell in flat.items()}
        sheet = density_sheet(
            curves, title=f"{task}, validation rows", level=level, values_are=first.metric, unit=first.unit
        )
        drawings.append(Drawing.of(f"density-{number}", sheet))
    return [Grid(drawings)] if drawings else []


def where_entries_live(found: Found) -> list[Block]:
    """A heat map of layers and kinds for each graft and region."""
    sheets = [
        region_sheet(region, title=f"{name}: {len(region):,} entries")
        for name, region in found.regions("graft", "region").items()
    ]
    about = "Entries by layer and kind. Colours are logarithmic; a grey field has no parameters in the scope."
    drawings = [Drawing.of(f"where-{number}", sheet) for number, sheet in enumerate(sheets)]
    return [Text(about), Grid(drawings)] if drawings else []


def shared_entries(found: Found) -> list[Block]:
    """Coverage of regions and cosine of grafts, for each base that two or more of them belong to."""
    blocks: list[Block] = []
    for number, members in enumerate(_families(found)):
        named = dict(zip(short_names(members), members, strict=True))
        grafts = {name: each.value for name, each in named.items() if isinstance(each.value, Graft)}
        covered = {name: each.region for name, each in named.items() if each.region is not None}
        sheets = [coverage_sheet(covered, title="Coverage of regions")]
        sheets += [cosine_sheet(grafts, title="Cosine of grafts")] if len(grafts) > 1 else []
        drawings = [Drawing.of(f"shared-{number}-{at}", sheet) for at, sheet in enumerate(sheets)]
        base = next((graft.info["base"] for graft in grafts.values() if "base" in graft.info), "one base")
        blocks += [Heading(f"On {base}"), Grid(drawings)]
    about = "Coverage: how much of the column's region the row's contains. Cosine: whether two grafts change their base alike."
    return [Text(about), *blocks] if blocks else []


def _families(found: Found) -> list[list[Artefact]]:
    """Grafts and regions by the base that they belong to, where there are two or more."""
    families: dict[str, list[Artefact]] = {}
    for artefact in found.of("graft", "region"):
        families.setdefault(artefact.base, []).append(artefact)
    return [members for base, members in families.items() if base and len(members) > 1]


def results(found: Found) -> list[Block]:
    """The papers' tables and figures as they were measured, the papers' own numbers beside them."""
    return list(_results(found, "results", lambda sheet: sheet.values_are != DISENTANGLEMENT))


def disentanglement(found: Found) -> list[Block]:
    """Maps of the disentanglement error over two scales (P2 fig. 2), from results and by themselves."""
    maps = [Drawing.of(f"map-{number}", each.value) for number, each in enumerate(found.of("map"))]
    of_results = _results(found, "maps", lambda sheet: sheet.values_are == DISENTANGLEMENT)
    return [*([Grid(maps)] if maps else []), *of_results]


def _results(found: Found, prefix: str, wanted: Callable[[Sheet], bool]) -> Iterator[Block]:
    for number, artefact in enumerate(found.of("result")):
        result = artefact.value
        sheets = [(f"{prefix}-{number}-{at}", sheet) for at, sheet in enumerate(filter(wanted, result.sheets))]
        if sheets:
            yield Heading(f"{result.name}: {result.title}")
            for name, sheet in sheets:
                if sheet.look == "table":
                    yield from shown_sheet(name, sheet)
            yield Grid([Drawing.of(name, sheet) for name, sheet in sheets if sheet.look != "table"])
            yield from (Text(note, "note") for note in result.notes)


def scale_searches(found: Found) -> list[Block]:
    """Scores at growing scales, as `combine --scale auto` and `forget` looked at them."""
    searches = found.of("scales")
    sheets = [_scale_sheet(each.value, name) for name, each in zip(short_names(searches), searches, strict=True)]
    named = [(f"scales-{number}", sheet) for number, sheet in enumerate(sheets)]
    tables = [block for name, sheet in named if sheet.look == "table" for block in shown_sheet(name, sheet)]
    drawings = [Drawing.of(name, sheet) for name, sheet in named if sheet.look != "table"]
    return [*tables, *([Grid(drawings)] if drawings else [])]


def _scale_sheet(search: ScaleCurves, title: str) -> Sheet:
    """Lines over one scale; a table where each graft had a scale of its own."""
    rows = list(dict.fromkeys(scale for curve in search.curves.values() for scale in curve))
    several = any("," in row for row in rows)
    words: dict[str, Any] = {"rows_are": "scales" if several else "scale", "look": "table" if several else "lines"}
    notes = (f"Chosen: {search.chosen}.",)
    return curves_sheet(search.curves, title=title, rows=rows, values_are="score", notes=notes, **words)


def files(found: Found) -> list[Block]:
    """Grafts, regions and models with what is known of each, and their sizes side by side."""
    weighty = found.of("model", "graft", "region")
    if not weighty:
        return []
    bases, others = found.base_bytes(), {each.base for each in weighty}
    facts = [_facts(each, bases, others) for each in weighty]
    kept = [name for name in _FACTS if any(name in row for row in facts)]
    rows = [
        [Field(each.name), *(row.get(name, Field("–")) for name in kept)]
        for each, row in zip(weighty, facts, strict=True)
    ]
    blocks: list[Block] = [
        Text(f"Found {found.in_words()}."),
        TableBlock("Models, grafts and regions", ["file", *kept], rows),
    ]
    if len(weighty) > 1:
        sizes = dict(zip(short_names(weighty), (each.bytes for each in weighty), strict=True))
        blocks.append(Drawing.of("files-sizes", sizes_sheet(sizes)))
    return blocks


_FACTS = ("what", "task", "entries", "density (%)", "size", "of its base (%)")


def _facts(artefact: Artefact, bases: Mapping[str, int], others: set[str]) -> dict[str, Field]:
    """The columns that say something about this file."""
    region, base, value = artefact.region, bases.get(artefact.base), artefact.value
    tasks = value.made.get("tasks", ()) if isinstance(value, ModelFolder) else [value.info.text("task")]
    facts = {
        "what": Field(_what(artefact, others)),
        "size": Field(human_bytes(artefact.bytes), sort=float(artefact.bytes)),
    }
    facts |= {"task": Field(", ".join(map(str, tasks)))} if any(tasks) else {"task": Field("")}
    if region is not None:
        facts |= {"entries": Field(f"{len(region):,}", sort=float(len(region)))}
        facts |= {"density (%)": Field(f"{100 * region.density:.3g}", sort=region.density)}
    if base:
        facts |= {"of its base (%)": Field(share_in_words(artefact.bytes / base), sort=artefact.bytes / base)}
    return facts


def _what(artefact: Artefact, others: set[str]) -> str:
    if not isinstance(artefact.value, ModelFolder):
        return artefact.kind
    if "applied" in artefact.value.made:
        return "grafted model"
    if artefact.value.made.get("by") == "finetune":
        return "tuned model"
    return "base model" if artefact.value.fingerprint in others else "model"


def provenance(found: Found) -> list[Block]:
    """Command, versions and settings of each graft, region, model and result; predictions in one table."""
    artefacts = found.of("model", "graft", "region", "result")
    made = [
        (each.name, dict(each.value.info if hasattr(each.value, "info") else each.value.made)) for each in artefacts
    ]
    entries: list[Block] = [_made(name, facts) for name, facts in made if facts]
    return [*entries, *_predictions(found.of("predictions"))]


def _made(name: str, facts: Mapping[str, Any]) -> Made:
    rest = {key: value for key, value in facts.items() if key not in ("command", "scores")}
    settings = json.dumps(rest, indent=2, ensure_ascii=False, sort_keys=True, default=str) if rest else ""
    return Made(name, str(facts.get("command") or ""), settings)


def _predictions(artefacts: Sequence[Artefact]) -> list[Block]:
    keys = sorted({key for each in artefacts for key, text in each.value.made_by.items() if text})
    rows = [
        [Field(each.name), Field(each.value.task), *(Field(each.value.made_by.get(key, "")) for key in keys)]
        for each in artefacts
    ]
    caption = "What made the predictions"
    return [Heading("Predictions"), TableBlock(caption, ["file", "task", *keys], rows)] if rows else []


def asides(found: Found) -> list[Block]:
    """Files that could not be read, and files that a report does not use."""
    return [*_asides("Could not be read", found.unread), *_asides("Not used", found.unused)]


def _asides(title: str, files: Sequence[Aside]) -> list[Block]:
    rows = [[Field(file.name), Field(file.why)] for file in files]
    return [TableBlock(f"{title}: {len(files):,}", ["file", "why"], rows)] if rows else []
