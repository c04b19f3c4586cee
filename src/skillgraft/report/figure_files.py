"""Figures as files: an HTML page for readers, an SVG picture for documents and, on request, a PDF for papers.

    written = write_figure(result, "figures/fig8", pdf=True)   # figures/fig8.html, figures/fig8.svg, figures/fig8.pdf
    written.files, written.without_svg                         # the reason, where no picture could be made

Many figures in one folder share one `plotly.min.js` beside them. The same input gives the same bytes.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skillgraft.files import atomic
from skillgraft.report import look
from skillgraft.report.blocks import Drawing, library, render
from skillgraft.report.figures import figure
from skillgraft.report.sheet import Result, Sheet

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

LIBRARY = "plotly.min.js"
_WIDTH = 760
_SUFFIXES = (".html", ".svg")


@dataclass(frozen=True)
class Written:
    """The files of a figure; `without_svg` says why there is no picture, and is empty where there is one."""

    files: tuple[Path, ...]
    without_svg: str = ""


def write_figure(shown: Result | Sheet, path: str | Path, *, svg: bool = True, pdf: bool = False) -> Written:
    """Write `path`.html and, where a browser is found, `path`.svg (`path`-1.svg … for a result of several sheets), `path`.pdf."""
    given = Path(path)
    stem = given.with_suffix("") if given.suffix in _SUFFIXES else given
    sheets = shown.sheets if isinstance(shown, Result) else (shown,)
    figures = [figure(sheet) for sheet in sheets]
    title = shown.title
    page = stem.parent / f"{stem.name}.html"
    _share_library(page.parent)
    _write(page, _page(title, sheets, figures))
    kinds = [kind for kind, wanted in (("svg", svg), ("pdf", pdf)) if wanted]
    if not kinds:
        return Written((page,), "no picture was asked for")
    names = [stem.name] if len(figures) == 1 else [f"{stem.name}-{number}" for number in range(1, len(figures) + 1)]
    try:
        pictures = {kind: pictures_of(figures, kind) for kind in kinds}
    except NoBrowser as missing:
        return Written((page,), str(missing))
    files = {
        stem.parent / f"{name}.{kind}": each for kind in kinds for name, each in zip(names, pictures[kind], strict=True)
    }
    for file, picture in files.items():
        with atomic.new_file(file, overwrite=True) as new:
            new.write_bytes(picture)
    return Written((page, *files))


class NoBrowser(Exception):
    """No picture can be made here; the message says what is missing."""


def pictures_of(figures: Sequence[Figure], kind: str = "svg") -> list[bytes]:
    """Each figure as SVG or PDF, all drawn by one headless browser; NoBrowser where there is none that works."""
    try:
        import kaleido
    except ImportError:
        raise NoBrowser("pictures need the package 'kaleido': pip install 'skillgraft[report]'") from None

    async def drawn() -> list[bytes]:
        # Kaleido would otherwise fetch MathJax from the network, which figures here do not use.
        async with kaleido.Kaleido(n=1, page_generator=kaleido.PageGenerator(mathjax=False)) as browser:
            return [await browser.calc_fig(_with_steady_traces(each), opts=_options(each, kind)) for each in figures]

    try:
        with ThreadPoolExecutor(1) as thread:  # a notebook's thread has a loop of its own running
            pictures = thread.submit(asyncio.run, drawn()).result()
    except Exception as error:  # whatever a browser that is missing or does not start makes kaleido raise
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise NoBrowser(f"pictures need a Chromium or Chrome browser that starts here: {why}") from None
    return list(map(_with_steady_names if kind == "svg" else _without_dates, pictures))


def _options(figure: Figure, kind: str) -> dict[str, Any]:
    return {"format": kind, "width": _WIDTH, "height": figure.layout.height}


# Plotly draws random characters for names within a picture; the same figure must give the same bytes.


def _with_steady_traces(figure: Figure) -> Figure:
    steady = type(figure)(figure)
    for number, trace in enumerate(steady.data):
        trace.uid = str(number)
    return steady


def _with_steady_names(picture: bytes) -> bytes:
    found = re.search(rb'id="defs-([0-9a-f]{6})"', picture)
    return picture.replace(found.group(1), b"figure") if found else picture


def _without_dates(picture: bytes) -> bytes:
    """A PDF says when it was made; the same digits everywhere keep what follows where the file says it is."""
    return re.sub(rb"(?<=Date \(D:)\d{14}", b"20000101000000", picture)


def _page(title: str, sheets: Sequence[Sheet], figures: Sequence[Figure]) -> str:
    pairs = enumerate(zip(sheets, figures, strict=True))
    drawings = [Drawing.of(f"figure-{number}", sheet, drawn=each, numbers=False) for number, (sheet, each) in pairs]
    return render("figures.html", title=title, plotly=LIBRARY, drawings=drawings)


def _share_library(folder: Path) -> None:
    """One copy of plotly's script for all figures of a folder."""
    look.graph_objects()
    target, script = folder / LIBRARY, library().encode()
    if not target.is_file() or target.read_bytes() != script:
        with atomic.new_file(target, overwrite=True) as file:
            file.write_bytes(script)


def _write(path: Path, text: str) -> None:
    with atomic.new_file(path, overwrite=True) as file:
        file.write_text(text, encoding="utf-8")
