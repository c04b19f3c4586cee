"""A result as files: JSON for programs, Markdown for people, figures where they can be drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from skillgraft import atomic
from skillgraft.report.sheet import Result, markdown, save_result


def written(result: Result, folder: Path) -> Result:
    """Write FOLDER/NAME.json, NAME.md and figures; gives the result as it was written."""
    whole = _with_figures(result, folder)
    save_result(whole, folder / f"{result.name}.json")
    with atomic.new_file(folder / f"{result.name}.md", overwrite=True) as file:
        file.write_text(markdown(whole), encoding="utf-8")
    return whole


def _with_figures(result: Result, folder: Path) -> Result:
    """Draw what is no table; what cannot be drawn is a note.

    Hours of measuring must not be lost to a figure, so any failure counts.
    """
    from skillgraft.report.figure_files import write_figure

    figures = replace(result, sheets=tuple(sheet for sheet in result.sheets if sheet.look != "table"))
    if not figures.sheets:
        return result
    try:
        drawn = write_figure(figures, folder / result.name)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        return replace(result, notes=(*result.notes, f"No figure was drawn: {reason}"))
    files = {"figures": [file.name for file in drawn.files], "without_svg": drawn.without_svg}
    return replace(result, made={**result.made, **files})
