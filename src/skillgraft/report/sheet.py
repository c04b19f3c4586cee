"""Results as values: a `Cell` is a number or the reason why there is none, a `Sheet` a table or figure of them, a `Result` the
sheets of one of the papers' tables or figures.

Everything that is shown, in Markdown, as a figure or on the HTML page, is made from these.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from skillgraft.errors import InputError, did_you_mean, listed
from skillgraft.files import atomic
from skillgraft.files.regular import CONFIG_BYTES, read_text
from skillgraft.measure.intervals import seed_std
from skillgraft.values import escaping, strict_json
from skillgraft.values.info import FORMATS
from skillgraft.values.printing import ENOUGH_SEEDS, Unit, shown

FORMAT = FORMATS["result"]
Look = Literal["table", "lines", "bars", "heatmap"]


@dataclass(frozen=True)
class Cell:
    """A number with its interval, the paper's own number beside it, or the reason why there is none.

    `seeds` are the numbers of the seeds whose mean it is, where these are several. `note` is what else there is to say;
    figures show it under the pointer.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    paper: float | None = None
    reason: str = ""
    note: str = ""
    seeds: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.value is None and not self.reason:
            raise InputError("a cell without a value carries the reason why")
        for number in (self.value, self.low, self.high, self.paper, *self.seeds):
            if number is not None and not math.isfinite(number):
                raise InputError(f"a cell's value is a finite number, found {number}; give a reason instead")

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends, or None where one is missing."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def std(self) -> float | None:
        """The standard deviation over seeds; None where there are not several."""
        return seed_std(self.seeds)


@dataclass(frozen=True)
class Sheet:
    """Rows × columns of cells; every pair has its cell. `look` is how it is drawn, `rows_are` and `columns_are` name the axes.

    A sheet of lines has numbers as row names (the x axis) and one line per column. `values_are` names what the cells say,
    `log_values` spreads bars or colours logarithmically, and a heatmap with a `centre` has two colours that meet there.
    Columns of a table may have `units` of their own.
    """

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: Mapping[tuple[str, str], Cell]
    rows_are: str = ""
    columns_are: str = ""
    unit: Unit = "percent"
    look: Look = "table"
    log_x: bool = False
    notes: tuple[str, ...] = ()
    values_are: str = ""
    log_values: bool = False
    centre: float | None = None
    units: Mapping[str, Unit] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for what, known in (("look", get_args(Look)), ("unit", get_args(Unit))):
            if getattr(self, what) not in known:
                found = str(getattr(self, what))
                raise InputError(f"sheet {self.title!r}: unknown {what} {found!r}; {did_you_mean(found, known)}")
        odd_units = [unit for unit in self.units.values() if unit not in get_args(Unit)]
        if odd_units or not self.units.keys() <= set(self.columns) or (self.units and self.look != "table"):
            names = listed(get_args(Unit))
            raise InputError(
                f"sheet {self.title!r}: units are {names}, for columns of a table; found {dict(self.units)!r:.200}"
            )
        if self.look == "lines" and not all(map(_is_number, self.rows)):
            odd = next(row for row in self.rows if not _is_number(row))
            raise InputError(f"sheet {self.title!r}: the rows of lines are numbers (the x axis), found {odd!r}")
        if len(set(self.rows)) < len(self.rows) or len(set(self.columns)) < len(self.columns):
            raise InputError(f"sheet {self.title!r}: rows and columns have names of their own, found one twice")
        missing = [pair for pair in self.pairs() if pair not in self.cells]
        if missing:
            raise InputError(f"sheet {self.title!r}: {len(missing)} cells are missing, the first is {missing[0]}")

    @property
    def corner(self) -> str:
        """What stands above the row names of a table."""
        return " / ".join(filter(None, (self.rows_are, self.columns_are)))

    def unit_of(self, column: str) -> Unit:
        return self.units.get(column, self.unit)

    def heading(self, column: str) -> str:
        """What stands above a column; its unit where the columns have several."""
        return f"{column} (%)" if self.units and self.unit_of(column) == "percent" else column

    @property
    def caption(self) -> str:
        """The title, with the unit that all columns have."""
        return f"{self.title} (%)" if self.unit == "percent" and not self.units else self.title

    def pairs(self) -> Iterator[tuple[str, str]]:
        return ((row, column) for row in self.rows for column in self.columns)

    def column(self, name: str) -> list[Cell]:
        return [self.cells[row, name] for row in self.rows]

    def row(self, name: str) -> list[Cell]:
        return [self.cells[name, column] for column in self.columns]

    def has_intervals(self) -> bool:
        return any(cell.interval for cell in self.cells.values())


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


@dataclass(frozen=True)
class Result:
    """One of the papers' tables or figures, measured here: its sheets, and how they were made."""

    name: str
    title: str
    sheets: tuple[Sheet, ...]
    notes: tuple[str, ...] = ()
    made: Mapping[str, Any] = field(default_factory=dict)


def save_result(result: Result, path: str | Path) -> None:
    """Write a result as JSON, whole or not at all."""
    with atomic.new_file(Path(path), overwrite=True) as file:
        file.write_text(json.dumps(_to_json(result), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def load_result(path: str | Path) -> Result:
    """Read a result, with everything checked."""
    try:
        found = strict_json.parse(read_text(Path(path), limit=CONFIG_BYTES))
    except ValueError as error:
        raise InputError(f"{path}: not a result file ({error})") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InputError(f"{path}: expected a result file ({FORMAT!r}), found something else")
    try:
        sheets = tuple(_sheet(each) for each in found["sheets"])
        return Result(_text(found["name"]), _text(found["title"]), sheets, _texts(found["notes"]), dict(found["made"]))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, InputError) as error:
        raise InputError(f"{path}: a damaged result file ({error}); run its recipe again") from None


def _to_json(result: Result) -> dict[str, Any]:
    return {
        "format": FORMAT, "name": result.name, "title": result.title, "notes": list(result.notes),
        "made": dict(result.made), "sheets": [_sheet_json(sheet) for sheet in result.sheets],
    }  # fmt: skip


# A sheet's own fields besides its cells, with their types; all but the title may be missing in a file.
_LISTS = ("rows", "columns", "notes")
_PLAIN: Mapping[str, type | tuple[type, ...]] = {
    "title": str, "rows_are": str, "columns_are": str, "unit": str, "look": str, "log_x": bool,
    "values_are": str, "log_values": bool, "centre": (float, int, type(None)),
}  # fmt: skip


def _sheet_json(sheet: Sheet) -> dict[str, Any]:
    own = {key: list(getattr(sheet, key)) for key in _LISTS} | {key: getattr(sheet, key) for key in _PLAIN}
    cells = [
        {"row": row, "column": column}
        | {k: v for k, v in vars(sheet.cells[row, column]).items() if v not in (None, "", ())}
        for row, column in sheet.pairs()
    ]
    return {**own, **({"units": dict(sheet.units)} if sheet.units else {}), "cells": cells}


def _sheet(found: Mapping[str, Any]) -> Sheet:
    wrong = [key for key, wanted in _PLAIN.items() if key in found and not isinstance(found[key], wanted)]
    if wrong:
        raise TypeError(f"{wrong[0]} is {found[wrong[0]]!r}")
    cells = {(_text(each["row"]), _text(each["column"])): _cell(each) for each in found["cells"]}
    own: dict[str, Any] = {key: _texts(found.get(key, ())) for key in _LISTS} | {"units": dict(found.get("units", {}))}
    return Sheet(cells=cells, **own, **{key: found[key] for key in _PLAIN if key in found})


def _cell(found: Mapping[str, Any]) -> Cell:
    for key in ("reason", "note"):
        _text(found.get(key, ""))
    own = {key: value for key, value in found.items() if key not in ("row", "column")}
    return Cell(**{**own, "seeds": tuple(found.get("seeds", ()))})


def _text(found: Any) -> str:
    if not isinstance(found, str):
        raise TypeError(f"expected text, found {found!r}")
    return found


def _texts(found: Any) -> tuple[str, ...]:
    return tuple(map(_text, found))


def markdown(result: Result, *, level: int = 2) -> str:
    """The result as Markdown tables; missing cells are dashes with their reasons below."""
    lines = [f"{'#' * level} {result.name}: {result.title}", ""]
    for sheet in result.sheets:
        lines += [*_table(sheet), ""]
    lines += [f"- {note}" for note in result.notes]
    return "\n".join(lines).rstrip() + "\n"


def _table(sheet: Sheet) -> list[str]:
    reasons: list[str] = []
    lines = [f"**{escaping.markdown(sheet.title)}**{sheet.caption.removeprefix(sheet.title)}", ""]
    lines += [_line([sheet.corner, *map(sheet.heading, sheet.columns)])]
    lines += [_line(["---", *["---:"] * len(sheet.columns)])]
    lines += [
        _line([row, *(_shown(sheet.cells[row, c], sheet.unit_of(c), reasons) for c in sheet.columns)])
        for row in sheet.rows
    ]
    marks = [f"{mark(number)} {reason}" for number, reason in enumerate(reasons)]
    return [*lines, *(["", "; ".join(marks)] if marks else []), *(["", *sheet.notes] if sheet.notes else [])]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(escaping.markdown, cells)) + " |"


def _shown(cell: Cell, unit: Unit, reasons: list[str]) -> str:
    """`84.7 [82.4, 86.9] (seeds 84.1, 85.3; paper 91.0)`, or a dash with the mark of its reason."""
    paper = f"paper {shown(cell.paper, unit)}" if cell.paper is not None else ""
    about = "; ".join(filter(None, (seeds_shown(cell, unit), paper)))
    beside = f" ({about})" if about else ""
    if cell.value is None:
        if cell.reason not in reasons:
            reasons.append(cell.reason)
        return f"– {mark(reasons.index(cell.reason))}{beside}"
    spread = f" [{', '.join(shown(end, unit) for end in cell.interval)}]" if cell.interval else ""
    return f"{shown(cell.value, unit)}{spread}{beside}"


def seeds_shown(cell: Cell, unit: Unit) -> str:
    """`seeds 84.1, 85.3`; from five on `5 seeds, std 0.6`; nothing where there are not several."""
    if cell.std is None:
        return ""
    if len(cell.seeds) < ENOUGH_SEEDS:
        return f"seeds {', '.join(shown(number, unit) for number in cell.seeds)}"
    return f"{len(cell.seeds)} seeds, std {shown(cell.std, unit)}"


def mark(number: int) -> str:
    """(a), (b) … (z), (27) …: how a missing cell points to its reason."""
    return f"({chr(ord('a') + number)})" if number < 26 else f"({number + 1})"
