"""The README's measured numbers: the first screen's table and picture, and what a small encoder keeps.

    python examples/first_screen.py docs/picture.svg

draws the picture. The tables are written by `examples/results.py --write`, each between two comments of the README.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from skillgraft.report.figure_files import write_figure
from skillgraft.report.sheet import Cell, Sheet, load_result
from skillgraft.values.printing import shown

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- made by examples/results.py --write: {} -->", "<!-- end -->"
RESULTS = ROOT / "docs" / "results"
GRAFT = "budgeted, 0.0001"
HEADER = ("task", "base", "tuned", "graft", "accuracy kept", "gain kept", "ECE: tuned → graft")


def headline_sheets() -> Iterator[tuple[str, Sheet]]:
    """(task, its sheet) of every measured headline, in the order in which the README shows them.

    Once all tasks are there with all their seeds in one result, that one is shown instead of the runs that it is made of.
    """
    joint = RESULTS / "headline" / "headline.json"
    for path in [joint] if joint.exists() else sorted(RESULTS.glob("headline-*/headline.json")):
        seeds = json.loads(path.read_text(encoding="utf-8"))["made"]["profile"]["seeds"]
        draw = "" if seeds == [0] else f", seed{'s' * (len(seeds) > 1)} {' and '.join(map(str, seeds))}"
        for sheet in load_result(path).sheets:
            yield sheet.title.partition(",")[0] + draw, sheet


def table() -> str:
    """The README's table, in Markdown."""
    return _markdown([HEADER, *(_line(task, sheet) for task, sheet in headline_sheets())])


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    head, *rest = lines
    every = [head, ("---", *["---:"] * (len(head) - 1)), *rest]
    return "\n".join(f"| {' | '.join(line)} |" for line in every)


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


SMALL = ("sst2", "subj", "ag_news", "qnli")
# A row's name → result, sheet, row and column of a task's number ("{}" is the task); a second column has its calibration error.
Where = tuple[str, str, str, tuple[str, ...]]
_TABLE2, _BEYOND = "512 examples per class", "beyond the paper"
KEPT: Mapping[str, Where | Mapping[str, Where]] = {
    "base": ("table2-512/table2", _TABLE2, "{}", ("base",)),
    "base with thresholds fitted on validation rows: no skill": ("table2-512/table2", _TABLE2, "{}", ("base + shift",)),
    "tuned: 10.6 million numbers": ("table2-512/table2", _TABLE2, "{}", ("tuned", "tuned ECE")),
    "graft: tuned's numbers in the region that P1's search learned": ("table2-512/table2", _TABLE2, "{}", ("graft", "graft ECE")),
    "the same by an earlier form of the default search (`budgeted`)": (
        "table2-512/table2", _BEYOND, "{}", ("budgeted graft", "budgeted graft ECE"),
    ),
    "graft after tuning with a pull towards the base (`finetune --l1 0.001`); another run, qnli with 0.1 %": {
        **dict.fromkeys(SMALL[:3], ("pull-512/pull", "{}", "0.001, learned", ("graft", "graft ECE"))),
        "qnli": ("pull-qnli/pull", "{}", "0.001, learned", ("graft", "graft ECE")),
    },
    "graft with a multiple of the change (`--scale auto`)": (
        "table2-512/table2", _BEYOND, "{}", ("amplified graft", "amplified graft ECE"),
    ),
    "trained inside the region, the earlier tasks' grafts kept (`continual`)": (
        "table4-512/table4", "after the last task", "grafts", ("{}",),
    ),
}  # fmt: skip


def kept() -> str:
    """What a graft of a small encoder keeps, task by task, in Markdown."""
    lines = [(name, *(_kept(where if isinstance(where, tuple) else where[task], task) for task in SMALL))
             for name, where in KEPT.items()]  # fmt: skip
    return _markdown([("", *SMALL), *lines])


def _kept(where: Where, task: str) -> str:
    result, title, row, columns = where
    found = [
        sheet for sheet in load_result(RESULTS / f"{result}.json").sheets if sheet.title.startswith(title.format(task))
    ]
    cells = [sheet.cells.get((row.format(task), column.format(task))) for sheet in found[:1] for column in columns]
    numbers = [shown(cell.value, "percent") for cell in cells if cell is not None and cell.value is not None]
    return " ".join([*numbers[:1], *(f"({ece})" for ece in numbers[1:])]) or "–"


def added_up() -> str:
    """What is left of six skills in one model, in a sentence."""
    sheets = load_result(RESULTS / "talos-addition" / "talos-addition.json").sheets
    (sheet,) = [sheet for sheet in sheets if "undertrained" in sheet.title]
    full, dare, upper = (
        shown(sheet.cells["mean", method].value or 0.0, "percent") for method in ("full", "DARE", "TaLoS upper half")
    )
    return (
        f"Six skills of this encoder added up in one model keep {full} % of what each reaches alone after full fine-tuning, "
        f"{dare} % combined by DARE,\nand {upper} % after TaLoS in the upper half of the layers "
        "([how](docs/training.md#skills-that-add-up))."
    )


def with_tables(readme: str) -> str:
    """The README with the numbers of today's results."""
    for name, text in {"headline": table(), "what it keeps": kept(), "added up": added_up()}.items():
        before, begin, rest = readme.partition(BEGIN.format(name))
        _, end, after = rest.partition(END)
        if not begin or not end:
            raise SystemExit(f"README.md has no place for a table: {BEGIN.format(name)} … {END}")
        readme = f"{before}{begin}\n{text}\n{END}{after}"
    return readme


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
