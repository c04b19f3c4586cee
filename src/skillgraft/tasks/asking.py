"""One task's question about another task's rows: how a skill is tried out of distribution (P1 §4.2).

    asked_as(load_task("imdb"), load_task("sst2"))    # IMDb's rows with SST-2's prompts, words, descriptions or head
    load_task("imdb as sst2")                         # the same

Columns correspond in their order. A label corresponds to the one of the same name; those that only one of the tasks has
correspond in their order. Refused: rows of another kind, another number of columns, labels that find no counterpart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from skillgraft.errors import InputError, listed
from skillgraft.tasks.prompt import Prompt
from skillgraft.tasks.task import Origin, PromptKind, Task

AS = " as "
FIRST_TEXT = 110  # tokens of a row's first text in P1's masked prompts


def asked_as(task: Task, source: Task, *, first_text: int | None = FIRST_TEXT) -> Task:
    """The rows of `task` with the question of `source`: its prompts, words, descriptions, labels, metric and lengths.

    A linear head is that of a model tuned on `source`. `first_text` limits the first text of a masked prompt: other data have
    longer texts than the prompt was written for.
    """
    if (task.kind, len(task.inputs)) != (source.kind, len(source.inputs)):
        raise InputError(
            f"{task.name!r} cannot be asked as {source.name!r}: expected {_columns(source)}, found {_columns(task)}; "
            "choose a task with such rows"
        )
    labels = _counterparts(task, source)
    return replace(
        source,
        name=f"{task.name}{AS}{source.name}",
        data=_renamed(task.data, task, source, labels),
        hub=None if task.hub is None else _renamed(task.hub, task, source, labels),
        ignore_labels=task.ignore_labels,
        prompts=source.prompts if first_text is None else _limited(source, first_text),
        asked_as=source.question,
    )


def _columns(task: Task) -> str:
    return f"{task.kind} in {len(task.inputs)} column{'s' * (len(task.inputs) > 1)} ({listed(task.inputs)})"


def _counterparts(task: Task, source: Task) -> dict[str, str]:
    """Each label of the task → that of the source."""
    theirs, ours = source.labels, task.labels
    if not {*ours} <= {*theirs} and len(ours) != len(theirs):
        raise InputError(
            f"{task.name!r} cannot be asked as {source.name!r}: expected labels that correspond to {listed(theirs, most=10)}, "
            f"found {listed(ours, most=10)}; choose a task with the same names or the same number of labels"
        )
    spare = (label for label in theirs if label not in ours)
    return {label: label if label in theirs else next(spare) for label in ours}


def _renamed(origin: Origin, task: Task, source: Task, labels: Mapping[str, str]) -> Origin:
    """The origin of the task's rows under the names of the source's fields and labels."""
    fields = zip((*source.fields, source.label), (*task.fields, task.label), strict=True)
    columns = {ours: origin.columns.get(theirs, (theirs,)) for ours, theirs in fields}
    return replace(origin, columns=columns, meanings=labels)


def _limited(source: Task, tokens: int) -> dict[PromptKind, Prompt]:
    """The source's prompts, the masked one with so many tokens of the first text at most."""
    first = source.inputs[0]
    return {
        kind: prompt.limited(first, tokens) if kind == "masked" else prompt for kind, prompt in source.prompts.items()
    }
