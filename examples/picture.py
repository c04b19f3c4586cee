"""The README's picture, from what the demo measured.

skillgraft demo -o demo && python examples/picture.py demo docs/picture.svg
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from skillgraft.report.figure_files import write_figure
from skillgraft.report.sheet import Sheet, load_result


def bars(scores: Sheet) -> Sheet:
    """Tasks as groups of bars, one bar for each model."""
    cells = {(task, model): scores.cells[model, task] for model in scores.rows for task in scores.columns}
    turned = replace(
        scores, rows=scores.columns, columns=scores.rows, cells=cells, rows_are="", columns_are="", notes=()
    )
    return replace(turned, title="Three skills in one model", look="bars", values_are="accuracy on test rows")


def main() -> None:
    demo, target = map(Path, sys.argv[1:])
    scores = load_result(demo / "scores.json").sheets[0]
    with tempfile.TemporaryDirectory() as folder:
        written = write_figure(bars(scores), Path(folder) / "picture.html")
        drawn = [file for file in written.files if file.suffix == ".svg"]
        if not drawn:
            raise SystemExit(f"no picture: {written.without_svg}")
        shutil.copyfile(drawn[0], target)


if __name__ == "__main__":
    main()
