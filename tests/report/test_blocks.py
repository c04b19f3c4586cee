"""Blocks as HTML: text stays text wherever it stands."""

from __future__ import annotations

import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillgraft.errors import InputError
from skillgraft.report.blocks import (
    Block,
    Drawing,
    Field,
    Heading,
    Made,
    TableBlock,
    Text,
    environment,
    library,
    render,
)

from .making import EVIL, grid, html


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
    found = Reader(html(TableBlock("", ["x"], [[Field(text, hint=attribute)]])))
    assert found.text.strip() == f"x{text}".strip() or text in found.text
    assert not attribute or ("title", attribute) in found.attributes
    assert found.elements == ["div", "table", "caption", "thead", "tr", "th", "tbody", "tr", "th"]


@pytest.mark.parametrize(
    "block",
    [
        Text(EVIL, strong=EVIL, link=("#x", EVIL)),
        Heading(EVIL),
        Made(EVIL, EVIL, EVIL),
        TableBlock(EVIL, [EVIL], [[Field(EVIL, EVIL, hint=EVIL)]], [EVIL]),
        Drawing.of("f", grid("bars", values_are=EVIL, title=EVIL, notes=(EVIL,))),
    ],
)
def test_every_kind_of_block_escapes_its_texts(block: Block) -> None:
    found = Reader(html(block))
    assert EVIL in found.text
    assert set(found.elements) & {"script", "b"} == ({"script"} if isinstance(block, Drawing) else set())
    assert not [name for name, _ in found.attributes if name.startswith("on")]


def test_attributes() -> None:
    table = html(TableBlock("t", ["name", "x"], [[Field("r"), Field("1", sort=1.0)]]))
    assert '<th scope="row">r</th><td class="number" data-sort="1.0">1</td>' in table
    assert "title=" not in table


def test_a_table_has_names_for_its_rows_and_columns() -> None:
    rows = [[Field("sst2"), Field("50.0", "[40.0, 60.0]", sort=0.5)], [Field("trec"), Field("–", hint="too few rows")]]
    table = html(TableBlock("Scores", ["task", "accuracy"], rows, ["64 shots"]))
    head = '<thead><tr><th scope="col">task</th><th scope="col" class="number">accuracy</th></tr></thead>'
    assert f"<caption>Scores</caption>\n{head}" in table
    assert (
        '<th scope="row">sst2</th><td class="number" data-sort="0.5">50.0<span class="remark"> [40.0, 60.0]</span></td>'
        in table
    )
    assert '<td class="number" title="too few rows">–</td>' in table
    assert table.startswith('<div class="box" tabindex="0" role="region" aria-label="Scores">')
    assert table.endswith('<p class="note">64 shots</p>')


def test_a_figure_cannot_end_its_script_element() -> None:
    drawn = replace(Drawing.of("f", grid("bars", values_are=EVIL)), caption=EVIL, numbers=None)
    found = Reader(html(drawn))
    assert found.elements == ["figure", "figcaption", "div", "script"]


def test_the_page_allows_its_own_scripts_only() -> None:
    page = render("page.html", title="t", sections=[])
    policy = page.split('Content-Security-Policy" content="')[1].split('"')[0]
    assert policy.startswith("default-src &#39;none&#39;; script-src &#39;sha256-")
    assert "unsafe-inline" not in policy.split("script-src")[1].split(";")[0]
    assert page.startswith('<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">')
    assert library() in page
    assert "</script" not in library()
    beside = render("figures.html", title="t", plotly="plotly.min.js", drawings=[])
    assert '<script src="plotly.min.js"></script>' in beside
    assert len(beside) < 20_000


def test_without_jinja_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    environment.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(InputError, match=r"pip install 'skillgraft\[report\]'"):
        environment()
