"""HTML, escaped by construction: plain text can never become markup, because only `Markup` is written as it is.

    >>> tag("td", "<b>", scope="row")
    '<td scope="row">&lt;b&gt;</td>'

Also what every page here consists of: the document around it, tables, and figures with their data.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_EMPTY = frozenset({"meta", "br"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str | bool) -> Markup:
    """An element; text among the children is escaped. `class_` is class, `data_sort` data-sort, True an attribute alone."""
    given = [(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items() if value is not False]
    opened = "".join(f" {key}" if value is True else f' {key}="{escape(str(value))}"' for key, value in given)
    return Markup(f"<{name}{opened}>" if name in _EMPTY else f"<{name}{opened}>{join(*children)}</{name}>")


def join(*children: str) -> Markup:
    """Several children one after the other, text escaped."""
    return Markup("".join(child if isinstance(child, Markup) else escape(child) for child in children))


@dataclass(frozen=True)
class Field:
    """One field of a table: what it shows, a quieter remark behind it, what it sorts by, and what the pointer reveals."""

    text: str
    remark: str = ""
    sort: float | None = None
    hint: str = ""

    @property
    def is_number(self) -> bool:
        return self.sort is not None or self.text == "–"


def table(caption: str, header: Sequence[str], rows: Iterable[Sequence[Field]], *, notes: Sequence[str] = ()) -> Markup:
    """A table in a box of its own that scrolls sideways; the first field of each row is its name."""
    body = [list(row) for row in rows]
    numeric = [bool(body) and all(row[place].is_number for row in body) for place in range(len(header))]
    heads = [
        tag("th", name, scope="col", class_="number" if n else False) for name, n in zip(header, numeric, strict=True)
    ]
    lines = [
        tag("tr", *(_field(f, first=not place, numeric=numeric[place]) for place, f in enumerate(row))) for row in body
    ]
    made = tag("table", tag("caption", caption), tag("thead", tag("tr", *heads)), tag("tbody", *lines))
    # A box that scrolls must be reachable by keyboard.
    return join(tag("div", made, class_="box", tabindex="0", role="region", aria_label=caption), paragraphs(notes))


def _field(field: Field, *, first: bool, numeric: bool) -> Markup:
    remark = tag("span", f" {field.remark}", class_="remark") if field.remark else ""
    attributes: dict[str, str | bool] = {
        "scope": "row" if first else False, "class_": "number" if numeric else False,
        "data_sort": repr(field.sort) if field.sort is not None else False, "title": field.hint or False,
    }  # fmt: skip
    return tag("th" if first else "td", field.text, remark, **attributes)


def paragraphs(notes: Sequence[str]) -> Markup:
    return join(*(tag("p", note, class_="note") for note in notes))


def drawing(name: str, figure: Figure, *, caption: str, notes: Sequence[str] = (), data: str = "") -> Markup:
    """A figure: the place where the script draws it, what it draws, and its numbers as a table for everyone else."""
    height = int(figure.layout.height or 400)
    figure = type(figure)(figure).update_layout(title={"text": "", "automargin": False})  # the caption is the title
    return tag(
        "figure",
        tag("figcaption", caption),
        tag("div", id=name, class_="plot", style=f"min-height: {height}px", role="img", aria_label=caption),
        # A script of a type that browsers do not run: data, in which only `<` could end the element.
        tag("script", Markup(_inert(figure.to_json())), type="application/json", data_draws=name),
        paragraphs(notes),
        tag("details", tag("summary", "Numbers"), data, open=True) if data else "",
    )  # fmt: skip


def document(title: str, *body: str, plotly: str = "") -> str:
    """A whole page. `plotly` is a file beside the page that holds plotly's script; without it the script is inside.

    Nothing is fetched: the page's own policy forbids all but these scripts.
    """
    own = [asset("page.js")] if plotly else [library(), asset("page.js")]
    allowed = " ".join([*(_hash(script) for script in own), *(["'self'", "file:"] if plotly else [])])
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'"
    )
    outside = tag("script", src=plotly) if plotly else ""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Markup(asset("page.css"))),
    )
    scripts = [tag("script", Markup(script)) for script in own]
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', *body, outside, *scripts), lang='en')}\n"


@cache
def library() -> str:
    """plotly's script, from its package."""
    return (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


@cache
def asset(name: str) -> str:
    """A file of this package."""
    return (files("skillgraft.report") / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _inert(json: str) -> str:
    """JSON that can stand in a script element: neither `</script` nor `<!--` can occur without `<`."""
    return json.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
