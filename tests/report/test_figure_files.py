"""Figures as files."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from skillgraft.report import figure_files
from skillgraft.report.blocks import library
from skillgraft.report.figure_files import write_figure
from skillgraft.report.sheet import Result

from .browsing import need_browser
from .making import EVIL, curve, grid


def test_many_figures_share_one_library(tmp_path: Path) -> None:
    for name in ("one", "two.b", "three.html"):
        written = write_figure(grid("bars"), tmp_path / "figures" / name, svg=False)
    assert written.files == (tmp_path / "figures" / "three.html",)
    assert {file.name for file in (tmp_path / "figures").iterdir()} == {
        "one.html",
        "two.b.html",
        "three.html",
        "plotly.min.js",
    }
    assert (tmp_path / "figures" / "plotly.min.js").read_text() == library()
    assert (tmp_path / "figures" / "one.html").stat().st_size < 30_000


def test_a_result_is_one_page_of_its_sheets(tmp_path: Path) -> None:
    write_figure(Result("r", f"Result {EVIL}", (grid("bars"), curve())), tmp_path / "r", svg=False)
    page = (tmp_path / "r.html").read_text()
    assert page.count("data-draws=") == 2
    assert "<figcaption>Curve</figcaption>" in page
    assert EVIL not in page


def test_pictures_are_svg_and_the_same_each_time(tmp_path: Path) -> None:
    need_browser()
    written = write_figure(Result("r", "Result", (curve(), grid("bars"), curve())), tmp_path / "r.html")
    assert written.without_svg == ""
    assert [file.name for file in written.files] == ["r.html", "r-1.svg", "r-2.svg", "r-3.svg"]
    picture = written.files[1].read_text()
    assert ElementTree.fromstring(picture).tag == "{http://www.w3.org/2000/svg}svg"
    assert "density" in picture
    assert written.files[3].read_text() == picture


def test_a_single_picture_has_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure_files, "pictures_of", lambda figures, _kind: [b"<svg/>"] * len(figures))
    assert write_figure(curve(), tmp_path / "fig.4").files == (tmp_path / "fig.4.html", tmp_path / "fig.4.svg")


def without_kaleido(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kaleido", None)


def without_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    kaleido: Any = ModuleType("kaleido")

    def fails(**_: object) -> None:
        raise RuntimeError("Chrome not found\nand a long story")

    kaleido.PageGenerator, kaleido.Kaleido = (lambda **_: None), fails
    monkeypatch.setitem(sys.modules, "kaleido", kaleido)


@pytest.mark.parametrize(
    ("missing", "why"),
    [
        (without_kaleido, "pictures need the package 'kaleido': pip install 'skillgraft[report]'"),
        (without_browser, "pictures need a Chromium or Chrome browser that starts here: Chrome not found"),
    ],
)
def test_why_there_is_no_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: Any, why: str) -> None:
    missing(monkeypatch)
    written = write_figure(grid("bars"), tmp_path / "f")
    assert (written.files, written.without_svg) == ((tmp_path / "f.html",), why)


def test_a_pdf_on_request_the_same_each_time(tmp_path: Path) -> None:
    need_browser()
    first = write_figure(grid("bars"), tmp_path / "one" / "f", svg=False, pdf=True)
    assert [file.name for file in first.files] == ["f.html", "f.pdf"]
    made = (tmp_path / "one" / "f.pdf").read_bytes()
    assert made.startswith(b"%PDF-")
    assert made.rstrip().endswith(b"%%EOF")
    write_figure(grid("bars"), tmp_path / "two" / "f", svg=False, pdf=True)
    assert (tmp_path / "two" / "f.pdf").read_bytes() == made
