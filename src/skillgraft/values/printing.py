"""Numbers as a reader sees them, one spelling for the terminal, Markdown, figures and pages; results as aligned lines of text.

>>> columns([("a", "1,000"), ("bcd", "7")], header=["name", "n"])
['name      n', 'a     1,000', 'bcd       7']
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

Unit = Literal["percent", "number", "bytes"]
ENOUGH_SEEDS = 5  # below, every seed's own number is shown; from then on their standard deviation
SCORE_COLUMNS = ("score", "ECE", "NLL", "agreement", "share kept", "relative gain")


def columns(rows: Sequence[Sequence[object]], *, header: Sequence[str] = ()) -> list[str]:
    """Rows as aligned lines; numbers to the right."""
    table = (
        [list(map(str, header)), *([str(cell) for cell in row] for row in rows)]
        if header
        else [[str(cell) for cell in row] for row in rows]
    )
    widths = [max(len(row[at]) for row in table) for at in range(len(table[0]))] if table else []
    right = [all(_is_number(row[at]) for row in table[bool(header) :]) for at in range(len(widths))]
    return [
        "  ".join(cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(row, widths, right, strict=True)).rstrip()
        for row in table
    ]


def _is_number(text: str) -> bool:
    return text.replace(",", "").replace(".", "").replace("-", "").replace("e", "").replace("%", "").isdigit()


def score_table(title: str, models: Mapping[str, Any]) -> list[str]:
    """Models as rows: score, calibration, agreement with tuned, what is kept of it; the majority class below."""
    first = next(iter(models.values()))
    if "majority" not in first:
        return _completion_table(title, models)
    rows = [(name, *score_cells(one)) for name, one in models.items()]
    header = [f"{title} ({first['n']} rows)", first["metric"], *SCORE_COLUMNS[1:]]
    return [*_filled(rows, header), f"majority class: {100 * first['majority']:.1f}", *_why_no_gain(models)]


def _filled(rows: Sequence[Sequence[str]], header: Sequence[str]) -> list[str]:
    """The table without columns of which nothing is known."""
    kept = [at for at in range(len(header)) if any(row[at] != "-" for row in rows)]
    return columns([[row[at] for at in kept] for row in rows], header=[header[at] for at in kept])


def _why_no_gain(models: Mapping[str, Any]) -> list[str]:
    """The reasons why a relative gain is missing, each once."""
    missing = [one["relative_gain"] for one in models.values() if "relative_gain" in one]
    return [f"no relative gain: {why}" for why in dict.fromkeys(each.get("reason", "") for each in missing) if why]


def score_cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    """One model's cells, in the order of SCORE_COLUMNS; shares and rates in percent, with intervals."""
    percents = [_percent(one.get(key)) for key in ("score", "ece", "agreement", "share_kept", "relative_gain")]
    nll = {key: one["nll"].get(key) for key in ("value", "std")} | {"seeds": one["nll"].get("seeds", ())}
    return (*percents[:2], _loss(nll, 3), *percents[2:])


COMPLETION_COLUMNS = (
    *("NLL", "perplexity", "token accuracy", "exact match", "contains"),
    *("relative gain", "exact match kept"),
)


def _completion_table(title: str, models: Mapping[str, Any]) -> list[str]:
    """Models as rows: losses and shares of completions, what is kept of tuned; what was cut below."""
    first = next(iter(models.values()))
    rows = [(name, *completion_cells(one)) for name, one in models.items()]
    lines = _filled(rows, [f"{title} ({first['n']} rows, {first['tokens']:,} tokens)", *COMPLETION_COLUMNS])
    cut = f"{first['cut_rows']} rows lost {first['cut_tokens']:,} tokens to fit the window" if first["cut_rows"] else ""
    return [*lines, *filter(None, [cut])]


def completion_cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    """One model's cells, in the order of COMPLETION_COLUMNS."""
    keys = ("token_accuracy", "exact_match", "contains", "relative_gain", "exact_match_kept")
    return (_loss(one["nll"], 3), _loss(one["perplexity"], 2), *(_percent(one.get(key)) for key in keys))


def _loss(found: Any, digits: int) -> str:
    return _with_ends(found, 1, digits)


def _with_ends(found: Any, factor: float, digits: int) -> str:
    """`84.7 [82.4, 86.9]`; of a mean `84.7 [82.4, 86.9] (84.1, 85.3)`, from five seeds on `84.7 ± 0.6 [82.4, 86.9]`."""

    def text(number: float) -> str:
        return f"{factor * number:.{digits}f}"

    seeds, low, high = found.get("seeds", ()), found.get("low"), found.get("high")
    enough = len(seeds) >= ENOUGH_SEEDS
    spread = f" ± {text(found['std'])}" if enough else ""
    ends = f" [{text(low)}, {text(high)}]" if low is not None else ""
    every = f" ({', '.join(map(text, seeds))})" if seeds and not enough else ""
    return f"{text(found['value'])}{spread}{ends}{every}"


def answer_lines(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """A few rows' prompts, true completions and what every model wrote; each text on one line, cut where it is long."""
    return [
        line
        for row in rows
        for line in ["", *(f"{name + ':':<{max(map(len, row)) + 1}} {_one_line(text)}" for name, text in row.items())]
    ]


def _one_line(text: str, most: int = 160) -> str:
    """Without control characters: a model's words never reach a terminal as commands."""
    plain = "".join(character if character.isprintable() else " " for character in text.replace("\n", "⏎"))
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"


def _percent(found: Any) -> str:
    if not found or found.get("value") is None:
        return "-"
    return _with_ends(found, 100, 1)


def counted(count: int, one: str, many: str = "") -> str:
    """`1 whole tensor`, `4 whole tensors`."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def shown(value: float, unit: Unit) -> str:
    """`84.7` for 0.847 as a percentage (`0.01` for 0.0001), `8,500` or `0.3217` as a number, `336.2 kB` as bytes."""
    return _SHOWN[unit](value)


def human_bytes(count: float) -> str:
    """A size in the largest decimal unit that leaves a number above 1."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def _as_percent(value: float) -> str:
    """One decimal; below that one digit, down to a millionth: the density of a graft is no 0.0."""
    percents = 100 * value
    return f"{percents:.1g}" if 5e-5 <= abs(percents) < 0.05 else f"{percents:z.1f}"


def _number(value: float) -> str:
    """Counts in full; anything else to four digits."""
    return f"{value:z,.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.4g}"


_SHOWN: Mapping[Unit, Callable[[float], str]] = MappingProxyType(
    {"percent": _as_percent, "number": _number, "bytes": human_bytes}
)
