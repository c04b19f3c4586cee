"""The papers' own numbers, as fractions, to stand beside ours: papers/*.toml, by table, row and column."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "papers"


def paper(table: str, row: str, column: str) -> float | None:
    """The paper's percentage as a fraction, or None where it has none."""
    found = _numbers().get(table, {}).get(row, {}).get(column)
    return None if found is None else found / 100


@cache
def _numbers() -> dict[str, dict[str, dict[str, float]]]:
    tables: dict[str, dict[str, dict[str, float]]] = {}
    for file in sorted(FOLDER.glob("*.toml")):
        tables |= tomllib.loads(file.read_text(encoding="utf-8"))
    return tables
