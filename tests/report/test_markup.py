"""Markup: text stays text wherever it stands."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from skillgraft.report.figures import figure
from skillgraft.report.markup import Field, Markup, document, drawing, library, table, tag

from .making import EVIL, grid


class Reader(HTMLParser):
    """The elements and the text that a browser would see."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


PRINTABLE = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)


@given(PRINTABLE, PRINTABLE)
def test_text_and_attributes_come_back_as_they_were(text: str, attribute: str) -> None:
    found = Reader(tag("p", text, title=attribute))
    assert (found.elements, found.text, found.attributes) == (["p"], text, [("title", attribute)])


def test_attributes() -> None:
    assert (
        tag("th", "x", class_="number", data_sort="1", open=True, title=False)
        == '<th class="number" data-sort="1" open>x</th>'
    )
    assert tag("meta", charset="utf-8") == '<meta charset="utf-8">'
    assert isinstance(tag("p"), Markup)
    assert tag("p", tag("b", "<"), "<") == "<p><b>&lt;</b>&lt;</p>"


def test_a_table_has_names_for_its_rows_and_columns() -> None:
    rows = [[Field("sst2"), Field("50.0", "[40.0, 60.0]", sort=0.5)], [Field("trec"), Field("–", hint="too few rows")]]
    html = table("Scores", ["task", "accuracy"], rows, notes=["64 shots"])
    assert (
        '<caption>Scores</caption><thead><tr><th scope="col">task</th><th scope="col" class="number">accuracy</th>'
        in html
    )
    assert (
        '<th scope="row">sst2</th><td class="number" data-sort="0.5">50.0<span class="remark"> [40.0, 60.0]</span></td>'
        in html
    )
    assert '<td class="number" title="too few rows">–</td>' in html
    assert html.startswith('<div class="box" tabindex="0" role="region" aria-label="Scores">')
    assert html.endswith('<p class="note">64 shots</p>')


def test_a_figure_cannot_end_its_script_element() -> None:
    sheet = grid("bars", values_are=EVIL)
    found = Reader(drawing("f", figure(sheet), caption=EVIL, data=tag("p", "numbers")))
    assert found.elements == ["figure", "figcaption", "div", "script", "details", "summary", "p"]


def test_the_page_allows_its_own_scripts_only() -> None:
    page = document("t", tag("p", "x"))
    policy = page.split('Content-Security-Policy" content="')[1].split('"')[0]
    assert policy.startswith("default-src &#x27;none&#x27;; script-src &#x27;sha256-")
    assert "unsafe-inline" not in policy.split("script-src")[1].split(";")[0]
    assert page.startswith('<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">')
    assert library() in page
    assert "</script" not in library()
    beside = document("t", plotly="plotly.min.js")
    assert '<script src="plotly.min.js"></script>' in beside
    assert len(beside) < 20_000
