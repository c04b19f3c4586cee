"""Rows without labels: plain text, as something that a model's next tokens are compared on.

    as_rows("notes.txt")            one row a line
    as_rows("prompts.jsonl")        its column text, prompt or content; so for CSV, TSV and Parquet, also .gz
    as_rows("ag_news")              a task, by name, as a TOML file or as a value: its own rows

The same rows train a search and stand for the test: give other text to `evaluate` where an honest number matters.
"""

from __future__ import annotations

from pathlib import Path

from skillgraft.errors import DataError, InputError, listed
from skillgraft.tasks.completions import COMPLETE
from skillgraft.tasks.data import TaskLike, as_task
from skillgraft.tasks.sources import READERS, read_table
from skillgraft.tasks.task import Completing, Origin, Task

COLUMNS = ("text", "prompt", "content")
LENGTH = 256  # tokens of a row at most


def as_rows(given: TaskLike) -> Task:
    """A task, or a task of plain text made of a file."""
    if isinstance(given, Task) or not str(given).endswith(tuple(READERS)):
        return as_task(given)
    path = Path(given)
    source = str(path.absolute())
    name = path.name.partition(".")[0]
    return Task(
        name=name or "text",
        kind=COMPLETE,
        inputs=("text",),
        data=Origin(train=(source,), test=(source,), columns={"text": (_column(source),)}),
        label="",
        metric="nll",
        max_length=LENGTH,
        completing=Completing(layout="text", ends=False),
    )


def _column(source: str) -> str:
    """The first of the columns that hold text; the others are not looked at."""
    for name in COLUMNS:
        try:
            read_table(source, (name,))
        except DataError as error:
            if "there is no column" not in str(error):
                raise
        else:
            return name
    raise InputError(f"{source}: expected a column of text called {listed(COLUMNS)}; rename one, or write a task file")
