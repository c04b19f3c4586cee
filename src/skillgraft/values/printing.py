"""Results as aligned lines of text: any rows, and the summaries of models (`measure.summary`).

>>> columns([("a", "1,000"), ("bcd", "7")], header=["name", "n"])
['name      n', 'a     1,000', 'bcd       7']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SCORE_COLUMNS = ("score", "ECE", "NLL", "agreement", "share kept", "relative gain")


def columns(rows: Sequence[Sequence[object]], *, header: Sequence[str] = ()) -> list[str]:
    """Rows as aligned lines; numbers to the right."""
    table = (
        [list(map(str, header)), *([str(cell) for cell in row] for row in rows)]
        if header
        else [[str(cell) for cell in row] for row in rows]
    )
    widths = [max(len(row[place]) for row in table) for place in range(len(table[0]))] if table else []
    right = [all(_is_number(row[place]) for row in table[bool(header) :]) for place in range(len(widths))]
    return [
        "  ".join(cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(row, widths, right, strict=True)).rstrip()
        for row in table
    ]


def _is_number(text: str) -> bool:
    return text.replace(",", "").replace(".", "").replace("-", "").replace("e", "").replace("%", "").isdigit()


def score_table(title: str, models: Mapping[str, Any]) -> list[str]:
    """Models as rows: score, calibration, agreement with tuned, what is kept of it; the majority class below."""
    first = next(iter(models.values()))
    rows = [(name, *score_cells(one)) for name, one in models.items()]
    header = [f"{title} ({first['n']} rows)", first["metric"], *SCORE_COLUMNS[1:]]
    return [*columns(rows, header=header), f"majority class: {100 * first['majority']:.1f}"]


def score_cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    """One model's cells, in the order of SCORE_COLUMNS; shares and rates in percent, with intervals."""
    percents = [_percent(one.get(key)) for key in ("score", "ece", "agreement", "share_kept", "relative_gain")]
    return (*percents[:2], f"{one['nll']['value']:.3f}", *percents[2:])


def _percent(found: Any) -> str:
    if not found or found.get("value") is None:
        return "-"
    value = f"{100 * found['value']:.1f}"
    return f"{value} [{100 * found['low']:.1f}, {100 * found['high']:.1f}]" if found.get("low") is not None else value
