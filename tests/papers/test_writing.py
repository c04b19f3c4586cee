"""Results as files; a figure that cannot be drawn is a note."""

from __future__ import annotations

from pathlib import Path

import pytest

from skillgraft.papers.main import written
from skillgraft.report import figure_files
from skillgraft.report.sheet import Cell, Result, Sheet, load_result


def result(look: str = "bars") -> Result:
    sheet = Sheet("s", ("a",), ("x",), {("a", "x"): Cell(0.5)}, look=look)  # type: ignore[arg-type]
    return Result("fig0", "a toy", (sheet,), ("a note",), {"recipe": "fig0"})


@pytest.mark.usefixtures("_no_pictures")
def test_json_markdown_and_a_figure(tmp_path: Path) -> None:
    whole = written(result(), tmp_path)
    assert load_result(tmp_path / "fig0.json") == whole
    assert "| a | 50.0 |" in (tmp_path / "fig0.md").read_text(encoding="utf-8")
    assert (tmp_path / "fig0.html").is_file()
    assert whole.made["figures"] == ["fig0.html"]
    assert whole.made["without_svg"] == "no pictures in this test"


def test_a_table_is_not_drawn(tmp_path: Path) -> None:
    assert written(result("table"), tmp_path) == result("table")
    assert not list(tmp_path.glob("*.html"))


def test_what_cannot_be_drawn_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_given: object, **_options: object) -> None:
        raise RuntimeError("no ink\nat all")

    monkeypatch.setattr(figure_files, "write_figure", broken)
    whole = written(result(), tmp_path)
    assert whole.notes == ("a note", "No figure was drawn: no ink")
    assert load_result(tmp_path / "fig0.json").notes == whole.notes
