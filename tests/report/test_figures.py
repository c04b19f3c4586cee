"""Figures: that what is drawn are the sheet's numbers, told apart without colour, with names that stay text."""

from __future__ import annotations

import builtins
import json
import math
from typing import Any

import pytest

from skillgraft.errors import InputError
from skillgraft.report import look
from skillgraft.report.figures import figure
from skillgraft.report.sheet import Cell, Sheet

from .making import EVIL, curve, grid


def traces(sheet: Sheet) -> list[Any]:
    return list(figure(sheet).data)


def rows(table: Any) -> list[list[Any]]:
    return [list(row) for row in table]


def test_lines_go_from_left_to_right_with_gaps() -> None:
    band, learned, movement, paper = traces(curve())
    assert (learned.x, learned.y) == ((1e-5, 1e-4, 1e-3), pytest.approx((60, 70, 80)))
    assert (movement.x, movement.y) == ((1e-5, 1e-4, 1e-3), (50, None, 70))
    assert band.x == (1e-5, 1e-4, 1e-3, 1e-3, 1e-4, 1e-5)
    assert band.y == pytest.approx((65, 75, 85, 75, 65, 55))
    assert (band.fill, band.legendgroup) == ("toself", learned.legendgroup)
    assert dict(zip(paper.x, paper.y, strict=True)) == {1e-3: None, 1e-5: None, 1e-4: 72}


def test_lines_are_told_apart_without_colour() -> None:
    _, one, two, _ = traces(curve())
    assert one.line.dash != two.line.dash
    assert one.marker.symbol != two.marker.symbol
    styles = [look.series(place) for place in range(20)]
    # Markers and dashes repeat at different lengths: the pair is new longer than either.
    assert len({(style["dash"], style["marker"], style["colour"]) for style in styles}) == 20


def test_axes_say_what_they_show() -> None:
    layout = figure(curve()).layout
    assert (layout.xaxis.title.text, layout.xaxis.type, layout.yaxis.title.text) == ("density", "log", "accuracy (%)")
    assert layout.title.text == "Curve"
    assert figure(curve(log_x=False)).layout.xaxis.type is None
    assert figure(grid("bars", unit="number")).layout.yaxis.title.text == "accuracy"


def test_bars_and_their_whiskers() -> None:
    base, graft, paper = traces(grid("bars"))
    assert (base.y, graft.y) == ((50, 25), (80, None))
    assert base.error_y.array == pytest.approx((10, None))
    assert base.error_y.arrayminus == pytest.approx((10, None))
    assert base.marker.pattern.shape != graft.marker.pattern.shape
    assert (paper.y, paper.marker.symbol, paper.offsetgroup) == (
        pytest.approx((55, None)),
        "diamond-open",
        base.offsetgroup,
    )


def test_a_whisker_above_its_value_goes_up_only() -> None:
    sheet = Sheet(
        "ECE", ("m",), ("ece", "other"), {("m", "ece"): Cell(0.1, 0.12, 0.2), ("m", "other"): Cell(0.1)}, look="bars"
    )
    ece, other = traces(sheet)
    assert (ece.error_y.arrayminus, ece.error_y.array) == ((0,), pytest.approx((10,)))
    assert other.error_y.visible is False


def test_a_single_column_lies_down_and_carries_its_numbers() -> None:
    sheet = Sheet(
        "s",
        ("BASE", "graft"),
        ("size",),
        {("BASE", "size"): Cell(91.6e6), ("graft", "size"): Cell(1.6e5)},
        look="bars",
        unit="bytes",
        log_values=True,
    )
    (bar,) = traces(sheet)
    assert (bar.orientation, bar.x, bar.y) == ("h", (91.6e6, 1.6e5), (0, 1))
    assert [text.strip() for text in bar.text] == ["91.6 MB", "160.0 kB"]
    layout = figure(sheet).layout
    assert (layout.xaxis.type, layout.xaxis.range[0], layout.yaxis.ticktext) == ("log", 4, ("BASE", "graft"))


def test_heatmap_fields() -> None:
    fields, undefined = traces(grid("heatmap"))
    assert rows(fields.z) == [[50, 80], [25, None]]
    assert rows(fields.text) == [["50.0", "80.0"], ["25.0", ""]]
    assert rows(undefined.z) == [[None, None], [None, 0]]
    assert undefined.text[1][1] == "–"
    assert undefined.hovertext[1][1] == "task trec<br>model graft<br>accuracy –<br>no skill to localise"
    assert {colour for _, colour in undefined.colorscale} == {look.UNDEFINED}
    assert len(traces(grid("heatmap", cells={pair: Cell(0.5) for pair in grid().cells}))) == 1


def test_heatmap_colours() -> None:
    assert traces(grid("heatmap"))[0].colorscale[0][1] == look.SEQUENTIAL[0][1]
    centred = traces(grid("heatmap", centre=0.5))[0]
    assert (centred.zmid, centred.colorscale[2]) == (50, (0.5, "#FFFFFF"))
    counts = {
        ("sst2", "base"): Cell(1000.0),
        ("sst2", "graft"): Cell(0.0),
        ("trec", "base"): Cell(20_000.0),
        ("trec", "graft"): Cell(3.2e6),
    }
    logs = traces(grid("heatmap", cells=counts, unit="number", log_values=True))[0]
    assert rows(logs.z) == [[3, -0.5], [math.log10(20_000), math.log10(3.2e6)]]
    assert rows(logs.text) == [["1,000", "0"], ["20k", "3.2M"]]


def test_decimals_are_the_same_all_over_a_heatmap() -> None:
    numbers = {pair: Cell(value) for pair, value in zip(grid().cells, (1.0, 0.123, 0.5, 0.0), strict=True)}
    text = traces(grid("heatmap", cells=numbers, unit="number"))[0].text
    assert rows(text) == [["1.00", "0.12"], ["0.50", "0.00"]]


def test_a_large_heatmap_has_no_numbers_on_it() -> None:
    names = tuple(map(str, range(21)))
    sheet = Sheet("t", names, names, {(a, b): Cell(0.5) for a in names for b in names}, look="heatmap")
    assert traces(sheet)[0].texttemplate is None


def test_a_table_shows_cells_in_full() -> None:
    (table,) = traces(grid())
    assert table.header.values == ("task / model", "base", "graft")
    columns = [["sst2", "trec"], ["50.0 [40.0, 60.0], paper 55.0", "25.0"], ["80.0 [70.0, 90.0]", "–"]]
    assert rows(table["cells"].values) == columns


@pytest.mark.parametrize("kind", ["table", "bars", "heatmap"])
def test_names_never_become_markup(kind: str) -> None:
    cells = {(EVIL, EVIL): Cell(0.5, note=EVIL, paper=0.5), (EVIL, "x"): Cell(reason=EVIL)}
    words = dict.fromkeys(("rows_are", "columns_are", "values_are"), EVIL)
    sheet = Sheet(EVIL, (EVIL,), (EVIL, "x"), cells, look=kind, **words)  # type: ignore[arg-type]
    text = json.dumps(json.loads(figure(sheet).to_json()), ensure_ascii=False).replace("<br>", "")
    assert "<b>" not in text
    assert "<script" not in text
    assert "&lt;/script&gt;" in text


def test_long_names_are_cut_and_stay_apart() -> None:
    names = tuple(f"{'encoder-' * 6}{number}" for number in range(2))
    sheet = Sheet("t", names, ("x",), {(name, "x"): Cell(0.5) for name in names}, look="bars")
    (bar,) = traces(sheet)
    axis = figure(sheet).layout.yaxis
    assert bar.y == axis.tickvals == (0, 1)
    assert all(len(text) == 26 and text.endswith("…") for text in axis.ticktext)


def test_without_plotly_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("plotly"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"pip install 'skillgraft\[report\]'"):
        look.graph_objects()
