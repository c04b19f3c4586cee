"""What pages are made of, as values: texts, tables, figures with their numbers. `templates/` turns them into HTML, where jinja2
escapes every text.

    render("page.html", title="Two skills", sections=[…])

A page fetches nothing: its own policy forbids all scripts but these.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, ClassVar

from skillgraft.errors import InputError
from skillgraft.report.figures import figure
from skillgraft.report.sheet import Cell, Sheet, mark, seeds_shown
from skillgraft.values.printing import Unit, shown

if TYPE_CHECKING:
    from jinja2 import Environment
    from plotly.graph_objects import Figure


@dataclass(frozen=True)
class Text:
    """A paragraph; `strong` stands in front of it, `link` (target and words) behind."""

    kind: ClassVar[str] = "text"
    text: str
    style: str = ""
    strong: str = ""
    link: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class Heading:
    kind: ClassVar[str] = "heading"
    text: str


@dataclass(frozen=True)
class Made:
    """How one artefact was made: its command in sight, the settings folded."""

    kind: ClassVar[str] = "made"
    name: str
    command: str
    settings: str


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


@dataclass(frozen=True)
class TableBlock:
    """A table in a box of its own that scrolls sideways; the first field of each row is its name."""

    kind: ClassVar[str] = "table"
    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Field]]
    notes: Sequence[str] = ()

    @property
    def numeric(self) -> list[bool]:
        return [bool(self.rows) and all(row[at].is_number for row in self.rows) for at in range(len(self.header))]


@dataclass(frozen=True)
class Drawing:
    """A figure that the page's script draws, as plotly's JSON, and its numbers as a table for everyone else."""

    kind: ClassVar[str] = "drawing"
    name: str
    caption: str
    data: str
    height: int
    notes: Sequence[str] = ()
    numbers: TableBlock | None = None

    @classmethod
    def of(cls, name: str, sheet: Sheet, *, drawn: Figure | None = None, numbers: bool = True) -> Drawing:
        """The sheet's figure, or another one of the same numbers."""
        made = drawn or figure(sheet)
        height = int(made.layout.height or 400)
        bare = type(made)(made).update_layout(title={"text": "", "automargin": False})  # the caption is the title
        # In a script element of data only `<` could end it: neither `</script` nor `<!--` occurs without one.
        data = bare.to_json().replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
        return cls(name, sheet.title, data, height, sheet.notes, table_of(sheet) if numbers else None)


@dataclass(frozen=True)
class Grid:
    """Figures in as many columns as fit; `size` is small, wide, or first (the first screen's)."""

    kind: ClassVar[str] = "grid"
    blocks: Sequence[Drawing | TableBlock]
    size: str = "wide"


Block = Text | Heading | Made | TableBlock | Drawing | Grid


def table_of(sheet: Sheet) -> TableBlock:
    """Rows and columns as the sheet has them; the reasons of missing cells stand below."""
    reasons = list(dict.fromkeys(cell.reason for cell in sheet.cells.values() if cell.value is None))
    rows = [
        [_row_name(row), *(cell_field(sheet.cells[row, c], sheet.unit_of(c), reasons) for c in sheet.columns)]
        for row in sheet.rows
    ]
    notes = [f"{mark(number)} {reason}" for number, reason in enumerate(reasons)]
    return TableBlock(sheet.caption, [sheet.corner, *map(sheet.heading, sheet.columns)], rows, notes)


def shown_sheet(name: str, sheet: Sheet) -> list[Block]:
    """The sheet as its look says: a figure with its numbers folded below, or a plain table."""
    if sheet.look == "table":
        return [table_of(sheet), *(Text(note, "note") for note in sheet.notes)]
    return [Drawing.of(name, sheet)]


def _row_name(name: str) -> Field:
    """A name; a number sorts as one."""
    try:
        return Field(name, sort=float(name))
    except ValueError:
        return Field(name)


def cell_field(cell: Cell, unit: Unit, reasons: Sequence[str] = ()) -> Field:
    """`84.7` with its interval, seeds and the paper's number; a dash, with the mark of its reason where there are any."""
    remarks = [f"[{', '.join(shown(end, unit) for end in cell.interval)}]"] if cell.interval else []
    remarks += filter(None, [seeds_shown(cell, unit)])
    remarks += [f"paper {shown(cell.paper, unit)}"] if cell.paper is not None else []
    if cell.value is None:
        remarks = [mark(reasons.index(cell.reason)), *remarks] if cell.reason in reasons else remarks
        return Field("–", " ".join(remarks), hint=cell.reason)
    return Field(shown(cell.value, unit), " ".join(remarks), sort=cell.value, hint=cell.note or cell.reason)


def render(template: str, *, title: str, plotly: str = "", **values: Any) -> str:
    """A whole page. `plotly` is a file beside the page that holds plotly's script; without it the script is inside."""
    scripts = [asset("page.js"), *([] if plotly else [library()])]
    allowed = " ".join([*map(_hash, scripts), *(["'self'", "file:"] if plotly else [])])
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'"
    )
    page = {"title": title, "plotly": plotly, "policy": policy, "scripts": scripts, "style": asset("page.css")}
    return environment().get_template(template).render(**page, **values)


@cache
def environment() -> Environment:
    """The templates. Whatever stands in double braces is escaped; `safe` are our own files and a figure's data alone."""
    try:
        import jinja2
    except ImportError as error:
        raise InputError("pages need the package 'jinja2': pip install 'skillgraft[report]'") from error
    loader = jinja2.PackageLoader("skillgraft.report")
    return jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)


@cache
def library() -> str:
    """plotly's script, from its package."""
    return (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


@cache
def asset(name: str) -> str:
    """A file beside the templates."""
    return (files("skillgraft.report") / "templates" / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
