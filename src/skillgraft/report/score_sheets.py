"""What `evaluate`, `compare` and `diff` found, as sheets: models × measures of a task, pairs of grafts, kinds and layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from skillgraft.folders.diff import Change, Diff
from skillgraft.report.json_artefacts import MEASURES, ROLES, Scores, read
from skillgraft.report.sheet import Cell, Sheet
from skillgraft.values.printing import Unit

# Measure → how its column is called, and its unit; the score's column has the metric's own name.
_COLUMNS: Mapping[str, tuple[str, Unit]] = {
    "score": ("", "percent"), "ece": ("ECE", "percent"), "nll": ("NLL", "number"),
    "perplexity": ("perplexity", "number"), "token_accuracy": ("token accuracy", "percent"),
    "exact_match": ("exact match", "percent"), "contains": ("contains", "percent"),
    "agreement": ("agreement", "percent"), "share_kept": ("share kept", "percent"),
    "relative_gain": ("relative gain", "percent"), "exact_match_kept": ("exact match kept", "percent"),
}  # fmt: skip
_NOT_COMPARED = Cell(reason="not compared")


def score_sheet(scores: Scores) -> Sheet:
    """Models × measures, base first; measures that no model has are left out, and a score that is one of them stands once."""
    kept = [
        measure
        for measure in MEASURES
        if (measure != "score" or scores.metric not in _COLUMNS)
        and any(measure in cells and cells[measure].value is not None for cells in scores.models.values())
    ]
    names = {measure: _COLUMNS[measure][0] or scores.metric for measure in kept}
    units = {names[measure]: scores.unit if measure == "score" else _COLUMNS[measure][1] for measure in kept}
    people, models = (
        people_names(scores.models),
        sorted(scores.models, key=lambda each: in_order(scores.roles[each].role)),
    )
    cells = {
        (people[model], names[measure]): scores.models[model].get(measure, _NOT_COMPARED)
        for model in models
        for measure in kept
    }
    rows, majority = tuple(people[model] for model in models), scores.majority
    notes = () if majority is None else (f"Majority class: {100 * majority:.1f} %.",)
    return Sheet(scores.title, rows, tuple(names.values()), cells, rows_are="model", units=units, notes=notes)


def evaluation_sheets(facts: Mapping[str, Any]) -> list[Sheet]:
    """A sheet for each task of what `evaluate --json` prints."""
    found = read(facts)
    return [score_sheet(scores) for scores in (found[1] if found else ())]


def in_order(label: str) -> int:
    """Base first, then tuned, then grafts; what is none of these at the end."""
    return ROLES.index(label) if label in ROLES else len(ROLES)


def people_names(names: Iterable[str]) -> dict[str, str]:
    """Models as people name them: without the file's ending, where that tells them apart."""
    given = list(names)
    short = [name.removesuffix(".safetensors") for name in given]
    return {name: cut if short.count(cut) == 1 else name for name, cut in zip(given, short, strict=True)}


def pair_sheets(facts: Mapping[str, Any]) -> list[Sheet]:
    """Coverage, jaccard and cosine of every pair, as `compare` finds them."""
    return [_matrix(measure, facts["grafts"], facts[measure]) for measure in ("coverage", "jaccard", "cosine")]


def _matrix(measure: str, names: Sequence[str], table: Sequence[Sequence[float]]) -> Sheet:
    cells = {(a, b): Cell(table[row][at]) for row, a in enumerate(names) for at, b in enumerate(names)}
    return Sheet(measure, tuple(names), tuple(names), cells, unit="number", values_are=measure)


_CHANGES: Mapping[str, Unit] = {
    "entries": "number",
    "changed": "number",
    "share": "percent",
    "norm": "number",
    "relative": "number",
}


def diff_sheets(found: Diff) -> list[Sheet]:
    """What changed by kind, by layer and outside the scope; and what `extract` would take."""
    layers = {layer or "outside the layers": change for layer, change in found.by_layer().items()}
    tables = {"by kind": found.by_kind(), "by layer": layers, "outside the scope": found.outside}
    sheets = [_changed(f"What {found.tuned} changed, {title}", rows) for title, rows in tables.items() if rows]
    units: dict[str, Unit] = {"entries": "number", "size, about": "bytes", "share of ‖delta‖²": "percent"}
    rows = {f"{top.density:g}": (top.entries, top.bytes, top.share) for top in found.top}
    cells = {(name, c): Cell(float(value)) for name, row in rows.items() for c, value in zip(units, row, strict=True)}
    title = "What extract would take"
    return (
        [*sheets, Sheet(title, tuple(rows), tuple(units), cells, rows_are="density", units=units)] if rows else sheets
    )


def _changed(title: str, rows: Mapping[str, Change]) -> Sheet:
    cells: dict[tuple[str, str], Cell] = {}
    for name, change in rows.items():
        share = change.changed / change.entries if change.entries else 0.0
        relative = Cell(reason="the base is zero") if change.relative is None else Cell(change.relative)
        numbers = map(Cell, (float(change.entries), float(change.changed), share, change.norm))
        cells |= {(name, column): cell for column, cell in zip(_CHANGES, [*numbers, relative], strict=True)}
    return Sheet(title, tuple(rows), tuple(_CHANGES), cells, units=_CHANGES)
