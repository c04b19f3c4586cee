"""The library's values as sheets: hand-counted cells, notes and reasons."""

from __future__ import annotations

import pytest

from skillgraft import Region, Scope
from skillgraft.errors import InputError
from skillgraft.measure import Estimate
from skillgraft.measure.calibration import Reliability
from skillgraft.measure.matrices import Matrix
from skillgraft.report.figures import reliability_diagram
from skillgraft.report.sheet import Cell
from skillgraft.report.value_sheets import (
    cell_of,
    confidence_sheet,
    cosine_sheet,
    coverage_sheet,
    density_sheet,
    disentanglement_sheet,
    gain_sheet,
    region_sheet,
    reliability_sheet,
    scale_sheet,
    sizes_sheet,
)
from skillgraft.values.graft import Graft

from ..measure.making import with_probabilities

QUERY, BIAS = "encoder.layer.{}.attention.self.query.weight", "encoder.layer.{}.attention.self.query.bias"
SCOPE = Scope.of(
    "all", {QUERY.format(2): (4, 4), QUERY.format(10): (4, 4), BIAS.format(10): (4,), "embeddings.weight": (8,)}
)


def test_an_estimate_is_a_cell() -> None:
    assert cell_of(Estimate(0.5, 0.4, 0.6)) == cell_of({"value": 0.5, "low": 0.4, "high": 0.6}) == Cell(0.5, 0.4, 0.6)
    assert cell_of(Estimate(None, reason="why")) == Cell(reason="why")
    assert cell_of(None) == Cell(reason="not measured")
    assert cell_of({"value": None}) == Cell(reason="undefined")


def test_where_entries_live() -> None:
    region = Region(SCOPE, {QUERY.format(2): [0, 5], QUERY.format(10): [1], "embeddings.weight": [3]})
    sheet = region_sheet(region, title="skill")
    assert sheet.rows == ("outside the layers", "2", "10")
    assert (sheet.columns, sheet.rows_are) == (("bias", "query", "other"), "encoder.layer")
    assert sheet.cells["2", "query"] == Cell(2.0, note="12.5 % of 16")
    assert sheet.cells["10", "bias"] == Cell(0.0, note="0 % of 4")
    assert sheet.cells["outside the layers", "other"] == Cell(1.0, note="12.5 % of 8")
    assert sheet.cells["2", "bias"] == Cell(reason="the scope has no such parameters here")
    assert sum(cell.value or 0 for cell in sheet.cells.values()) == len(region)


def test_layers_of_two_stacks_keep_their_names() -> None:
    scope = Scope.of("all", {f"{part}.block.0.layer.0.q.weight": (2,) for part in ("encoder", "decoder")})
    assert region_sheet(Region.full(scope), title="t").rows == ("decoder.block.0", "encoder.block.0")


def test_coverage_and_cosine() -> None:
    scope = Scope.of("all", {"w": (8,)})
    a, b = Region(scope, {"w": [0, 1]}), Region(scope, {"w": [1, 2, 3, 4]})
    sheet = coverage_sheet({"a": a, "b": b, "none": Region(scope, {})})
    assert (sheet.cells["a", "b"].value, sheet.cells["b", "a"].value) == (0.25, 0.5)
    assert sheet.cells["a", "none"].reason == "the region of none is empty"
    grafts = {
        name: Graft(a, {"w": [0.0, 0.0]}, {"w": values}) for name, values in (("x", [3.0, 4.0]), ("y", [-4.0, 3.0]))
    }
    cosines = cosine_sheet(grafts)
    assert (cosines.cells["x", "x"].value, cosines.cells["x", "y"].value) == (pytest.approx(1), pytest.approx(0))
    assert (cosines.unit, cosines.centre) == ("number", 0.0)


def test_relative_gains_keep_their_reasons() -> None:
    matrix = Matrix(("g",), ("sst2", "cr"), ((Estimate(0.9, 0.8, 1.0), Estimate(None, reason="no skill to localise")),))
    sheet = gain_sheet(matrix)
    assert sheet.row("g") == [Cell(0.9, 0.8, 1.0), Cell(reason="no skill to localise")]


def test_density_curves_share_an_axis() -> None:
    points = [
        {"density": 1e-2, "score": {"value": 0.8}},
        {"density": 1e-4, "score": {"value": 0.6, "low": 0.5, "high": 0.7}},
    ]
    other = [{"density": 1e-3, "score": {"value": 0.7}}]
    sheet = density_sheet({"learned": points, "movement": other}, title="t", level={"tuned": {"value": 0.9}})
    assert (sheet.rows, sheet.log_x) == (("0.0001", "0.001", "0.01"), True)
    assert sheet.column("learned") == [Cell(0.6, 0.5, 0.7), Cell(reason="not measured"), Cell(0.8)]
    assert sheet.column("tuned") == [Cell(0.9)] * 3


def test_scale_curves() -> None:
    sheet = scale_sheet({"sst2": {0.5: 0.7, 0.0: 0.6}, "cr": {0.5: {"value": 0.8, "low": 0.7, "high": 0.9}}}, title="t")
    assert sheet.rows == ("0", "0.5")
    assert sheet.column("cr") == [Cell(reason="not measured"), Cell(0.8, 0.7, 0.9)]


def test_disentanglement_map() -> None:
    sheet = disentanglement_sheet([0, 0.5], [[0.0, Estimate(0.1, 0.0, 0.2)], [0.2, 0.3]], tasks=("a", "b"))
    assert sheet.cells["0", "0.5"] == Cell(0.1, 0.0, 0.2)
    assert (sheet.rows_are, sheet.columns_are) == ("scale of a", "scale of b")
    with pytest.raises(InputError, match=r"over 2 scales has 2 × 2 errors, found 1 × \[2\]"):
        disentanglement_sheet([0, 1], [[0.0, 0.1]], tasks=("a", "b"))


def test_sizes_are_in_order() -> None:
    assert sizes_sheet({"b": 5, "a": 5, "c": 9}).rows == ("c", "a", "b")


def test_confidence_leaves_out_what_no_model_reaches() -> None:
    sure = with_probabilities([[0.95, 0.05], [0.55, 0.45]], [0, 0])
    unsure = with_probabilities([[0.55, 0.45], [0.45, 0.55]], [0, 0])
    sheet = confidence_sheet({"sure": sure, "unsure": unsure}, bins=10)
    assert sheet.rows[0] == "0.50–0.60"
    assert sheet.cells["0.90–1.00", "sure"] == Cell(0.5, note="1 rows")
    assert sheet.cells["0.50–0.60", "unsure"] == Cell(1.0, note="2 rows")


BINS = Reliability((0.0, 0.5, 1.0), (0, 4), (None, 0.9), (None, 0.75))


def test_reliability_numbers() -> None:
    sheet = reliability_sheet(BINS, title="t")
    assert sheet.rows == ("0.50–1.00",)
    assert [cell.value for cell in sheet.row("0.50–1.00")] == [1.0, 0.9, 0.75]


def test_reliability_diagram() -> None:
    accuracy, gap, diagonal = reliability_diagram(BINS, title="t").data
    assert (accuracy.x, accuracy.y, accuracy.width) == ((25, 75), (None, 75), 50)
    assert (gap.base, gap.y) == ((None, 75), (None, pytest.approx(15)))
    assert gap.marker.pattern.shape == "/"
    assert (diagonal.x, diagonal.y) == ((0, 100), (0, 100))
