"""The library's values as sheets, so that each has a table and a figure: regions, matrices, curves, maps, sizes.

figure(region_sheet(graft.region, title="sst2"))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from skillgraft.errors import InputError
from skillgraft.measure.calibration import Reliability, confidence_histogram
from skillgraft.measure.intervals import Estimate
from skillgraft.measure.matrices import Matrix, coverage_matrix
from skillgraft.predictions.predictions import Predictions
from skillgraft.report.sheet import Cell, Sheet
from skillgraft.values.graft import Graft
from skillgraft.values.printing import Unit
from skillgraft.values.region import Region

NOT_MEASURED = "not measured"
DISENTANGLEMENT = "disentanglement error ξ"


def cell_of(found: Estimate | Mapping[str, Any] | None) -> Cell:
    """An estimate, as a value or as the JSON that `Estimate.as_json` gives, as a cell."""
    facts: Mapping[str, Any] | None = found.as_json() if isinstance(found, Estimate) else found
    if facts is None:
        return Cell(reason=NOT_MEASURED)
    value, low, high, reason = (facts.get(key) for key in ("value", "low", "high", "reason"))
    why = str(reason or ("" if value is not None else "undefined"))
    return Cell(value, low, high, reason=why, seeds=tuple(map(float, facts.get("seeds") or ())))


def region_sheet(region: Region, *, title: str) -> Sheet:
    """Where entries live: how many there are in each layer and kind (P1 fig. 5, P2 fig. 4). The note has the share of all."""
    room, taken = region.scope.by_layer_and_kind(), region.by_layer_and_kind()
    layers, kinds = list(region.by_layer()), list(region.by_kind())
    stem, names = _without_stem(layers)
    cells = {
        (names[layer], kind): _entries(taken.get((layer, kind), 0), room.get((layer, kind), 0))
        for layer in layers
        for kind in kinds
    }
    return Sheet(
        title, tuple(names.values()), tuple(kinds), cells, rows_are=stem or "layer", columns_are="kind",
        values_are="entries", unit="number", look="heatmap", log_values=True,
    )  # fmt: skip


def _entries(taken: int, room: int) -> Cell:
    if not room:
        return Cell(reason="the scope has no such parameters here")
    return Cell(float(taken), note=f"{100 * taken / room:.3g} % of {room:,}")


def _without_stem(layers: Sequence[str]) -> tuple[str, dict[str, str]]:
    """What all layers begin with, and each layer's rest: `encoder.layer` and `0`, `1`, …; outside the layers has its own name."""
    stems = {layer.rpartition(".")[0] for layer in layers if layer}
    stem = stems.pop() if len(stems) == 1 else ""
    return stem, {layer: layer.removeprefix(f"{stem}.") if layer else "outside the layers" for layer in layers}


def share_sheet(regions: Mapping[str, Region], *, title: str) -> Sheet:
    """Where several skills live, on one map: the share of each one's entries in every layer, and below in every kind."""
    cells: dict[tuple[str, str], Cell] = {}
    for name, region in regions.items():
        _, layers = _without_stem([*region.by_layer()])
        counts = {f"layer {layers[layer]}" if layer else layers[layer]: n for layer, n in region.by_layer().items()}
        for part, count in {**counts, **region.by_kind()}.items():
            cells[part, name] = Cell(count / max(len(region), 1), note=f"{count:,} entries")
    parts = tuple(dict.fromkeys(part for part, _ in cells))
    missing = Cell(reason="the scope has no such parameters here")
    cells = {(part, name): cells.get((part, name), missing) for part in parts for name in regions}
    return Sheet(title, parts, tuple(regions), cells, columns_are="", values_are="share of entries", look="heatmap")


def matrix_sheet(matrix: Matrix, *, title: str, **fields: Any) -> Sheet:
    """Any table of estimates as a heatmap; percentages unless `unit` says otherwise."""
    cells = {(row, column): cell_of(matrix[row, column]) for row in matrix.rows for column in matrix.columns}
    return Sheet(title, matrix.rows, matrix.columns, cells, **{"look": "heatmap", **fields})


def coverage_sheet(regions: Mapping[str, Region], *, title: str = "Coverage") -> Sheet:
    """Row a, column b: how much of b's region a's contains (P1 fig. 8a)."""
    words = {"rows_are": "the region of", "columns_are": "contains of", "values_are": "coverage"}
    return matrix_sheet(coverage_matrix(regions), title=title, **words)


def gain_sheet(matrix: Matrix, *, title: str = "Relative gain") -> Sheet:
    """Relative gains of grafts on tasks (P1 fig. 8b to d), from `measure.matrices.gain_matrix`; two colours meet at 0."""
    words = {"rows_are": "graft", "columns_are": "task", "values_are": "relative gain"}
    return matrix_sheet(matrix, title=title, centre=0.0, **words)


def cosine_sheet(grafts: Mapping[str, Graft], *, title: str = "Cosine") -> Sheet:
    """How far two grafts change their base in one direction, from −1 to 1."""
    names = list(grafts)
    matrix = Matrix.of(names, names, lambda a, b: Estimate(grafts[a].cosine(grafts[b])))
    return matrix_sheet(matrix, title=title, unit="number", centre=0.0, values_are="cosine")


def density_sheet(
    curves: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    title: str,
    level: Mapping[str, Mapping[str, Any]] | None = None,
    values_are: str = "score",
    unit: Unit = "percent",
) -> Sheet:
    """Score against density: `curves` are the points of `localize --curve`, `level` scores that do not depend on density."""
    points = {name: {f"{point['density']:g}": point["score"] for point in curve} for name, curve in curves.items()}
    rows = sorted({density for curve in points.values() for density in curve}, key=float)
    constant = {name: dict.fromkeys(rows, score) for name, score in (level or {}).items()}
    return curves_sheet(
        {**points, **constant}, title=title, rows=rows, rows_are="density", values_are=values_are, log_x=True, unit=unit
    )


def scale_sheet(curves: Mapping[str, Mapping[float, float | Mapping[str, Any]]], *, title: str, **fields: Any) -> Sheet:
    """Scores against the scale of a delta (P1 fig. 7, P2's addition and negation): name → scale → score."""
    points = {name: {f"{scale:g}": score for scale, score in curve.items()} for name, curve in curves.items()}
    rows = sorted({scale for curve in points.values() for scale in curve}, key=float)
    return curves_sheet(points, title=title, rows=rows, **{"rows_are": "scale", "values_are": "score", **fields})


def curves_sheet(
    curves: Mapping[str, Mapping[str, float | Mapping[str, Any]]], *, title: str, rows: Iterable[str], **fields: Any
) -> Sheet:
    """Curves by name, each from x (as text) to a number or an estimate's JSON; x that a curve lacks is not measured."""
    names = tuple(rows)
    cells = {
        (row, name): Cell(float(found)) if isinstance(found := curve.get(row), float | int) else cell_of(found)
        for name, curve in curves.items()
        for row in names
    }
    return Sheet(title, names, tuple(curves), cells, **{"look": "lines", **fields})


def disentanglement_sheet(
    scales: Sequence[float], errors: Sequence[Sequence[float | Estimate]], *, tasks: tuple[str, str], title: str = ""
) -> Sheet:
    """ξ over a grid of two scales (P2 fig. 2): `errors[i][j]` is that of the first task's scale i and the second's j."""
    if len(errors) != len(scales) or any(len(row) != len(scales) for row in errors):
        found = f"{len(errors)} × {sorted({len(row) for row in errors})}"
        raise InputError(f"a map over {len(scales)} scales has {len(scales)} × {len(scales)} errors, found {found}")
    names = tuple(f"{scale:g}" for scale in scales)
    cells = {
        (names[i], names[j]): cell_of(error) if isinstance(error, Estimate) else Cell(float(error))
        for i, row in enumerate(errors)
        for j, error in enumerate(row)
    }
    words: dict[str, Any] = {"rows_are": f"scale of {tasks[0]}", "columns_are": f"scale of {tasks[1]}"}
    shown = title or f"Disentanglement error of {tasks[0]} and {tasks[1]}"
    return Sheet(shown, names, names, cells, look="heatmap", values_are=DISENTANGLEMENT, unit="number", **words)


def sizes_sheet(sizes: Mapping[str, int], *, title: str = "Sizes on disk") -> Sheet:
    """Bytes of files and folders, the largest first, on a logarithmic axis."""
    order = sorted(sizes, key=lambda name: (-sizes[name], name))
    cells = {(name, "size"): Cell(float(sizes[name])) for name in order}
    words: dict[str, Any] = {"values_are": "size on disk (bytes)", "unit": "bytes", "look": "bars"}
    return Sheet(title, tuple(order), ("size",), cells, log_values=True, **words)


def confidence_sheet(predictions: Mapping[str, Predictions], *, title: str = "Confidence", bins: int = 15) -> Sheet:
    """How often each confidence occurs, for several models side by side (P1 fig. 6): the share of rows in each bin."""
    histograms = {name: confidence_histogram(each, bins=bins) for name, each in predictions.items()}
    edges = next(iter(histograms.values())).edges
    rows = tuple(bin_names(edges))
    cells = {
        (row, name): Cell(count / len(predictions[name]), note=f"{count} rows")
        for name, histogram in histograms.items()
        for row, count in zip(rows, histogram.counts, strict=True)
    }
    words: dict[str, Any] = {"rows_are": "confidence", "columns_are": "model", "values_are": "share of rows"}
    # No model is less sure than one in so many classes: the bins below are empty for all.
    first = min(at for each in histograms.values() for at, count in enumerate(each.counts) if count)
    return Sheet(title, rows[first:], tuple(predictions), cells, look="bars", **words)


def bin_names(edges: Sequence[float]) -> list[str]:
    """`0.40–0.47` for each pair of neighbouring edges."""
    return [f"{low:.2f}–{high:.2f}" for low, high in pairwise(edges)]


def reliability_sheet(found: Reliability, *, title: str) -> Sheet:
    """The diagram's numbers; bins without rows are left out."""
    kept = [
        (name, count, sure, right)
        for name, count, sure, right in zip(
            bin_names(found.edges), found.counts, found.confidence, found.accuracy, strict=True
        )
        if count and sure is not None and right is not None
    ]
    total = sum(found.counts)
    columns = ("share of rows", "mean confidence", "accuracy")
    cells = {
        (name, column): Cell(value)
        for name, count, *shares in kept
        for column, value in zip(columns, (count / total, *shares), strict=True)
    }
    return Sheet(title, tuple(name for name, *_ in kept), columns, cells, rows_are="confidence")
