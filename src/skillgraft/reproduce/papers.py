"""The papers' own numbers, as fractions, to stand beside ours: papers/*.toml, by table, row and column.

A table of such a file says which model and data it is about (`about`), its `columns`, and a list of percentages for each of its
`rows`, in the columns' order; what the paper does not have is "".
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "papers"


def paper(table: str, row: str, column: str) -> float | None:
    """The paper's percentage as a fraction, or None where it has none."""
    found = _tables().get(table)
    if found is None:
        return None
    number = dict(zip(found["columns"], found["rows"].get(row, ()), strict=False)).get(column, "")
    return None if number == "" else number / 100


def paper_note(table: str) -> str:
    """Which model and how many examples the paper's numbers are about; "" where there are none."""
    found = _tables().get(table)
    return f"paper: {found['about']}" if found else ""


@cache
def _tables() -> Mapping[str, Mapping[str, Any]]:
    tables: dict[str, Mapping[str, Any]] = {}
    for file in sorted(FOLDER.glob("*.toml")):
        tables |= tomllib.loads(file.read_text(encoding="utf-8"))
    return tables
