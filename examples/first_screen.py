"""What the README's first screen shows: the headline results, one row for each task, as a table and as a picture.

    python examples/first_screen.py docs/picture.svg

draws the picture. The table is written by `examples/results.py --write`, between two comments of the README.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from skillgraft.report.figure_files import write_figure
from skillgraft.report.sheet import Cell, Sheet, load_result
from skillgraft.values.printing import shown

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- made by examples/results.py --write -->", "<!-- end -->"
GRAFT = "budgeted, 0.0001"
HEADER = ("task", "base", "tuned", "graft", "accuracy kept", "gain kept", "ECE: tuned → graft")


def headline_sheets() -> Iterator[tuple[str, Sheet]]:
    """(task, its sheet) of every measured headline, in the order in which the README shows them."""
    for path in sorted(ROOT.glob("docs/results/headline-*/headline.json")):
        seeds = json.loads(path.read_text(encoding="utf-8"))["made"]["profile"]["seeds"]
        draw = "" if seeds == [0] else f", seed {', '.join(map(str, seeds))}"
        for sheet in load_result(path).sheets:
            yield sheet.title.partition(",")[0] + draw, sheet


def table() -> str:
    """The README's table, in Markdown."""
    lines = [HEADER, ("---", *["---:"] * (len(HEADER) - 1)), *(_line(task, sheet) for task, sheet in headline_sheets())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _line(task: str, sheet: Sheet) -> Sequence[str]:
    def number(column: str, *, interval: bool = False) -> str:
        cell = sheet.cells[GRAFT, column]
        if cell.value is None:
            return f"– ({cell.reason})"
        ends = f" [{', '.join(shown(end, sheet.unit) for end in cell.interval)}]" if interval and cell.interval else ""
        return shown(cell.value, sheet.unit) + ends

    scores = [number(column) for column in ("base", "tuned", "graft")]
    kept = [number(column, interval=True) for column in ("share kept", "relative gain")]
    return (task, *scores, *kept, f"{number('tuned ECE')} → {number('graft ECE')}")


def with_table(readme: str) -> str:
    """The README with the table of today's results."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"README.md has no place for the table: {BEGIN} … {END}")
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def bars() -> Sheet:
    """Tasks as groups of bars: base, tuned and graft."""
    models = ("base", "tuned", "graft")
    cells: dict[tuple[str, str], Cell] = {
        (task, model): sheet.cells[GRAFT, model] for task, sheet in headline_sheets() for model in models
    }
    tasks = tuple(dict.fromkeys(task for task, _ in cells))
    title = "8,505 numbers in place of 85 million"
    return Sheet(title, tasks, models, cells, look="bars", values_are="accuracy on 1,000 test rows")


def main() -> None:
    (target,) = map(Path, sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        written = write_figure(bars(), Path(folder) / "picture.html")
        drawn = [file for file in written.files if file.suffix == ".svg"]
        if not drawn:
            raise SystemExit(f"no picture: {written.without_svg}")
        shutil.copyfile(drawn[0], target)


if __name__ == "__main__":
    main()
