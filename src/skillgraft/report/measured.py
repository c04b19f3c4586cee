"""Sections about what was measured: scores, calibration, curves over density and scale, results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from skillgraft.measure.calibration import reliability
from skillgraft.measure.metrics import METRICS
from skillgraft.predictions.predictions import AnyPredictions, Predictions
from skillgraft.report.artefacts import Artefact, Found
from skillgraft.report.calibration import reliability_diagram, reliability_sheet
from skillgraft.report.from_values import DISENTANGLEMENT, confidence_sheet, curves_sheet, density_sheet
from skillgraft.report.markup import Field, Markup, join, paragraphs, table, tag
from skillgraft.report.numbers import Unit
from skillgraft.report.parts import cell_field, sheet_drawing, short_names, side_by_side
from skillgraft.report.printed import ScaleSearch, Scores, predicted
from skillgraft.report.sheet import Cell, Sheet

# Measure → how its column is called, and its unit; the score's column has the metric's own name.
_COLUMNS: Mapping[str, tuple[str, Unit]] = {
    "score": ("", "percent"), "ece": ("ECE", "percent"), "nll": ("NLL", "number"),
    "perplexity": ("perplexity", "number"), "token_accuracy": ("token accuracy", "percent"),
    "exact_match": ("exact match", "percent"), "contains": ("contains", "percent"),
    "agreement": ("agreement", "percent"), "share_kept": ("share kept", "percent"),
    "relative_gain": ("relative gain", "percent"), "exact_match_kept": ("exact match kept", "percent"),
}  # fmt: skip


def scores(found: Found) -> Markup:
    """A table and a figure for each task and split, with all that is known of the same rows in one."""
    told: list[Scores] = []
    for one in _all_scores(found):
        joined = next(((place, both) for place, other in enumerate(told) if (both := other.joined(one))), None)
        if joined:
            told[joined[0]] = joined[1]
        else:
            told.append(one)
    if not told:
        return Markup()
    said = "Brackets and whiskers are 95 % bootstrap intervals. Agreement, share kept and relative gain "
    said += "compare with the tuned model; the majority class is the score of one constant answer."
    drawings = [sheet_drawing(f"scores-{place}", _score_sheet(one)) for place, one in enumerate(told)]
    answers = [_answers(one) for one in told if one.answers]
    return join(tag("p", said), *map(_score_table, told), side_by_side(drawings, wide=True), *answers)


def _answers(scores: Scores) -> Markup:
    """A few rows' prompts and completions, and what the models wrote: a column for each row."""
    names = list(dict.fromkeys(name for row in scores.answers for name in row))
    header = ["", *(f"row {number}" for number in range(1, len(scores.answers) + 1))]
    rows = [[Field(name), *(Field(row.get(name, "–")) for row in scores.answers)] for name in names]
    return table(f"Answers side by side: {_title(scores)}", header, rows)


def _all_scores(found: Found) -> list[Scores]:
    order = ("evaluation", "localization", "graft")
    given = [scores for kind in order for artefact in found.of(kind) for scores in artefact.scores]
    computed = [predicted(said, split=split) for (_, _, split), said in _said(found).items()]
    return [*given, *computed]


def _score_table(scores: Scores) -> Markup:
    # A score that is one of the other columns stands there.
    wanted = [measure for measure in _COLUMNS if measure != "score" or scores.metric not in _COLUMNS]
    kept = [measure for measure in wanted if any(measure in cells for cells in scores.models.values())]
    units = [scores.unit if measure == "score" else _COLUMNS[measure][1] for measure in kept]
    names = [(_COLUMNS[measure][0] or scores.metric) for measure in kept]
    header = ["model", *(f"{name} (%)" if unit == "percent" else name for name, unit in zip(names, units, strict=True))]
    rows = [
        [Field(model), *(_measure(cells.get(measure), unit) for measure, unit in zip(kept, units, strict=True))]
        for model, cells in scores.models.items()
    ]
    majority = [] if scores.majority is None else [f"Majority class: {100 * scores.majority:.1f} %."]
    return table(_title(scores), header, rows, notes=majority)


def _measure(cell: Cell | None, unit: Unit) -> Field:
    return cell_field(cell, unit) if cell else Field("–", hint="not compared")


def _score_sheet(scores: Scores) -> Sheet:
    cells = {(model, "score"): of["score"] for model, of in scores.models.items()}
    if scores.majority is not None:
        cells["majority class", "score"] = Cell(scores.majority)
    rows = tuple(row for row, _ in cells)
    words: dict[str, Any] = {"look": "bars", "values_are": scores.metric, "unit": scores.unit}
    return Sheet(f"{_title(scores)}: {scores.metric}", rows, ("score",), cells, **words)


def _title(scores: Scores) -> str:
    return f"{scores.task}, {scores.rows:,} {scores.split} rows"


def calibration(found: Found) -> Markup:
    """Reliability diagrams of all models of a task, and how often they are how sure."""
    parts = []
    of_classes = {key: said for key, every in _said(found).items() if (said := _classes(every))}
    for number, ((_, task, split), said) in enumerate(of_classes.items()):
        bins = {name: reliability(each) for name, each in said.items()}
        drawings = []
        for place, (name, found_bins) in enumerate(bins.items()):
            sheet = reliability_sheet(found_bins, title=f"{name}: ECE {100 * METRICS['ece'](said[name]):.1f} %")
            diagram = reliability_diagram(found_bins, title=sheet.title).update_layout(showlegend=False)
            drawings.append(sheet_drawing(f"reliability-{number}-{place}", sheet, drawn=diagram))
        histogram = confidence_sheet(said, title=f"How sure the models are on {task}")
        parts.append(
            join(
                tag("h3", f"{task}, {split} rows"),
                side_by_side(drawings),
                sheet_drawing(f"confidence-{number}", histogram),
            )
        )
    why = "Bars are accuracy; the hatched part is the gap to the mean confidence. Below the diagonal a model is more sure than "
    why += "right. ECE, the mean gap over 15 bins, is biased upwards on few rows."
    return join(tag("p", why), *parts) if parts else Markup()


def _classes(said: Mapping[str, AnyPredictions]) -> dict[str, Predictions]:
    """Those of tasks that have classes."""
    return {name: each for name, each in said.items() if isinstance(each, Predictions)}


def _said(found: Found) -> dict[tuple[str, str, str], dict[str, AnyPredictions]]:
    """Saved predictions by folder, task and split, and in there by model; base comes first."""
    groups: dict[tuple[str, str, str], list[Artefact]] = {}
    for artefact in sorted(found.of("predictions"), key=lambda each: (_model(each) != "base", each.name)):
        said: AnyPredictions = artefact.value
        key = (_folder(artefact), said.task, said.made_by.get("split", "some"))
        groups.setdefault(key, []).append(artefact)
    return {key: _by_model(members) for key, members in sorted(groups.items())}


def _by_model(members: Sequence[Artefact]) -> dict[str, AnyPredictions]:
    """Models by what they are, those that are the same ("graft" twice) by their files."""
    models = [*map(_model, members)]
    files = short_names(members)
    names = [model if models.count(model) == 1 else file for model, file in zip(models, files, strict=True)]
    if len(set(names)) < len(names):
        names = [each.name for each in members]
    return {name: each.value for name, each in zip(names, members, strict=True)}


def _model(artefact: Artefact) -> str:
    """What a predictions file says that it comes from."""
    said: AnyPredictions = artefact.value
    return said.made_by.get("model", artefact.stem)


def _folder(artefact: Artefact) -> str:
    return str(PurePosixPath(artefact.name).parent)


def density_curves(found: Found) -> Markup:
    """Scores at growing densities, a figure for each task; base and tuned beside them."""
    searches = [each for each in found.of("localization") if each.value.curve]
    by_task: dict[str, list[Artefact]] = {}
    for search in searches:
        by_task.setdefault(search.value.scores.task, []).append(search)
    drawings = []
    for number, (task, members) in enumerate(sorted(by_task.items())):
        labels = [
            f"{name} ({each.value.method}, {each.value.curve_kind})"
            for name, each in zip(short_names(members), members, strict=True)
        ]
        curves = dict(zip(labels, (each.value.curve for each in members), strict=True))
        first: Scores = members[0].value.scores
        level = {name: _as_json(first.models[name]["score"]) for name in ("tuned", "base") if name in first.models}
        sheet = density_sheet(
            curves, title=f"{task}, validation rows", level=level, values_are=first.metric, unit=first.unit
        )
        drawings.append(sheet_drawing(f"density-{number}", sheet))
    return side_by_side(drawings, wide=True) if drawings else Markup()


def _as_json(cell: Cell) -> dict[str, Any]:
    """A level without its band: four bands over each other would hide the curves."""
    return {"value": cell.value, "reason": cell.reason}


def scale_searches(found: Found) -> Markup:
    """Scores at growing scales, as `combine --scale auto` and `forget` looked at them."""
    searches = found.of("scales")
    sheets = [_scale_sheet(each.value, name) for name, each in zip(short_names(searches), searches, strict=True)]
    drawings = [sheet_drawing(f"scales-{place}", sheet) for place, sheet in enumerate(sheets)]
    return side_by_side(drawings, wide=True) if drawings else Markup()


def _scale_sheet(search: ScaleSearch, title: str) -> Sheet:
    """Lines over one scale; a table where each graft had a scale of its own."""
    rows = list(dict.fromkeys(scale for curve in search.curves.values() for scale in curve))
    several = any("," in row for row in rows)
    words: dict[str, Any] = {"rows_are": "scales" if several else "scale", "look": "table" if several else "lines"}
    notes = (f"Chosen: {search.chosen}.",)
    return curves_sheet(search.curves, title=title, rows=rows, values_are="score", notes=notes, **words)


def results(found: Found) -> Markup:
    """The papers' tables and figures as they were measured, the papers' own numbers beside them."""
    return _results(found, "results", lambda sheet: sheet.values_are != DISENTANGLEMENT)


def disentanglement(found: Found) -> Markup:
    """Maps of the disentanglement error over two scales (P2 fig. 2), from results and by themselves."""
    maps = [sheet_drawing(f"map-{place}", each.value) for place, each in enumerate(found.of("map"))]
    of_results = _results(found, "maps", lambda sheet: sheet.values_are == DISENTANGLEMENT)
    return join(side_by_side(maps, wide=True) if maps else "", of_results)


def _results(found: Found, prefix: str, wanted: Callable[[Sheet], bool]) -> Markup:
    parts = []
    for number, artefact in enumerate(found.of("result")):
        sheets = [sheet for sheet in artefact.value.sheets if wanted(sheet)]
        drawn = {place: sheet_drawing(f"{prefix}-{number}-{place}", sheet) for place, sheet in enumerate(sheets)}
        tables = [drawn[place] for place, sheet in enumerate(sheets) if sheet.look == "table"]
        figures = [drawn[place] for place, sheet in enumerate(sheets) if sheet.look != "table"]
        if drawn:
            title = tag("h3", f"{artefact.value.name}: {artefact.value.title}")
            parts += [title, *tables, side_by_side(figures, wide=True), paragraphs(artefact.value.notes)]
    return join(*parts)
