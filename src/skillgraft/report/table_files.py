r"""Sheets as CSV for programs and as LaTeX for papers: one writer for all verbs.

    csv_text([sheet])     # one line for each cell, all digits: table,row,column,unit,value,low,high,std,seeds,paper,missing,note
    latex([sheet])        # one table for each sheet, rounded as on screen; needs \usepackage{booktabs}

Shares are fractions in CSV (0.847) and percentages in LaTeX (84.7). Whatever names hold, a cell of CSV is no formula of a
spreadsheet, and no name is a command of LaTeX.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from skillgraft.files import atomic
from skillgraft.report.sheet import Cell, Sheet, mark
from skillgraft.values.escaping import csv_text as plain
from skillgraft.values.escaping import latex as escaped
from skillgraft.values.printing import ENOUGH_SEEDS, Unit, shown

HEADER = ("table", "row", "column", "unit", "value", "low", "high", "std", "seeds", "paper", "missing", "note")


def csv_text(sheets: Iterable[Sheet]) -> str:
    """Every cell of every sheet on a line of its own; what a cell lacks is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows(_line(sheet, row, column) for sheet in sheets for row, column in sheet.pairs())
    return text.getvalue()


def _line(sheet: Sheet, row: str, column: str) -> list[str]:
    cell, unit = sheet.cells[row, column], sheet.unit_of(column)
    numbers = ["" if each is None else repr(each) for each in (cell.value, cell.low, cell.high, cell.std)]
    seeds, paper = " ".join(map(repr, cell.seeds)), "" if cell.paper is None else repr(cell.paper)
    names = map(plain, (sheet.title, row, column))
    return [
        *names,
        "fraction" if unit == "percent" else unit,
        *numbers,
        seeds,
        paper,
        plain(cell.reason),
        plain(cell.note),
    ]


def latex(sheets: Iterable[Sheet]) -> str:
    """Every sheet as a table that can be pasted into a paper."""
    return "% needs \\usepackage{booktabs}\n" + "\n".join("\n".join(_table(sheet)) + "\n" for sheet in sheets)


def _table(sheet: Sheet) -> Iterator[str]:
    reasons: list[str] = []
    yield from ("\\begin{table}[t]", "  \\centering", f"  \\caption{{{escaped(sheet.caption)}}}")
    yield from (f"  \\begin{{tabular}}{{l{'r' * len(sheet.columns)}}}", "    \\toprule")
    yield _row([escaped(name) for name in (sheet.corner, *map(sheet.heading, sheet.columns))])
    yield "    \\midrule"
    for row in sheet.rows:
        yield _row(
            [escaped(row), *(_cell(sheet.cells[row, each], sheet.unit_of(each), reasons) for each in sheet.columns)]
        )
    yield from ("    \\bottomrule", "  \\end{tabular}")
    notes = [*(f"{mark(number)} {reason}" for number, reason in enumerate(reasons)), *sheet.notes]
    yield from (f"  \\par\\footnotesize {escaped(note)}" for note in notes)
    yield "\\end{table}"


def _row(cells: Sequence[str]) -> str:
    return f"    {' & '.join(cells)} \\\\"


def _cell(cell: Cell, unit: Unit, reasons: list[str]) -> str:
    r"""`84.7 $\pm$ 0.6`, its interval and what else there is in small letters; a dash with the mark of its reason."""
    if cell.value is None:
        if cell.reason not in reasons:
            reasons.append(cell.reason)
        return f"-- {mark(reasons.index(cell.reason))}"
    enough = cell.std is not None and len(cell.seeds) >= ENOUGH_SEEDS
    spread = f" $\\pm$ {_number(cell.std, unit)}" if enough and cell.std is not None else ""
    ends = f"[{', '.join(_number(end, unit) for end in cell.interval)}]" if cell.interval else ""
    seeds = f"({', '.join(_number(each, unit) for each in cell.seeds)})" if cell.seeds and not enough else ""
    paper = f"(paper {_number(cell.paper, unit)})" if cell.paper is not None else ""
    small = " ".join(filter(None, (ends, seeds, paper)))
    return _number(cell.value, unit) + spread + (f" {{\\scriptsize {small}}}" if small else "")


def _number(value: float, unit: Unit) -> str:
    """As on screen, with a minus that is one."""
    return escaped(shown(value, unit)).replace("-", "$-$")


WRITERS: Mapping[str, Callable[[Iterable[Sheet]], str]] = MappingProxyType({"csv": csv_text, "latex": latex})


def write_tables(sheets: Sequence[Sheet], files: Mapping[str, Path | None]) -> None:
    """Write the sheets in each format that has a file: {"csv": …, "latex": …}."""
    for name, path in files.items():
        if path is not None:
            with atomic.new_file(path) as file:
                file.write_text(WRITERS[name](sheets), encoding="utf-8")
