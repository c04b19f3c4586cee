"""Tasks whose prompts are completed (`kind = "complete"`): their keys in a task file, and how their rows are read.

    kind = "complete"
    layout = "prompt"        # columns prompt and completion; or "messages", or "text"
    chat = true              # fill the tokenizer's chat template (always so where rows are messages)

The layouts are those of TRL. Whatever the layout, a row read is a `prompt`, either text or turns of (role, content), and the
`completion` as text. Of messages, the last one is the completion and must be the assistant's. A row of text alone has an empty
prompt. Refused, each by its row: an empty completion, rows of different kinds, turns without role or content.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from skillgraft.errors import did_you_mean
from skillgraft.tasks.section import Section
from skillgraft.tasks.tables import Column, Table, check_encodable, shown, texts
from skillgraft.tasks.task import Completing, Kind, Layout, Task

COMPLETE: Kind = "complete"
# Layout → the columns that it has.
LAYOUTS: Mapping[Layout, tuple[str, ...]] = {
    "prompt": ("prompt", "completion"),
    "messages": ("messages",),
    "text": ("text",),
}
COMPLETE_KEYS = (
    *("name", "kind", "layout", "chat", "ends", "answer_tokens", "metric", "max_length"),
    *("train", "test", "validation", "holdout", "columns", "prompt", "hub"),
)
ROLES = ("system", "developer", "user", "assistant", "tool")
Turn = tuple[str, str]  # role, content


def completing(top: Section) -> Completing | None:
    """How a task file's prompts are completed; None where it is a task of classes."""
    if "kind" not in top.values:
        return None
    kind = top.text("kind")
    if kind != COMPLETE:
        raise top.wrong(f"'kind' is {COMPLETE!r}, or is left out for a task of classes; found {kind!r}")
    layout = _layout(top)
    chat = top.flag("chat", layout == "messages")
    if layout == "messages" and not chat:
        raise top.wrong("messages are always asked with the chat template: leave 'chat' out")
    if layout == "text" and chat:
        raise top.wrong("rows of text are taken as they are: leave 'chat' out")
    most = top.count("answer_tokens", 1) if "answer_tokens" in top.values else None
    return Completing(layout, chat, top.flag("ends", layout != "text"), most)


def _layout(top: Section) -> Layout:
    given = top.text("layout", "prompt")
    known: tuple[Layout, ...] = get_args(Layout)
    for layout in known:
        if layout == given:
            return layout
    raise top.wrong(f"no layout {given!r}: {did_you_mean(given, known)}")


def completed_rows(task: Task, table: Table, paths: Sequence[tuple[str, ...]]) -> dict[str, Column]:
    """The columns `prompt` and `completion` of a table; `paths` are the source's columns of each of the task's."""
    style = task.completing
    assert style is not None
    if style.layout == "text":
        found = _joined(table, paths[0])
        _refuse_empty(table, paths[0][-1], found)
        return {"prompt": ("",) * len(found), "completion": found}
    if style.layout == "messages":
        (path,) = paths[0]
        rows = [_turns(table, index, path, cell) for index, cell in enumerate(table.column(path))]
        split = [_split(table, index, path, turns) for index, turns in enumerate(rows)]
        prompts, completions = zip(*split, strict=True)
        _refuse_empty(table, path, completions)
        return {"prompt": prompts, "completion": completions}
    return _prompted(table, *paths, chat=style.chat)


def _prompted(table: Table, prompt: tuple[str, ...], completion: tuple[str, ...], *, chat: bool) -> dict[str, Column]:
    """Rows of prompt and completion: texts, or both of them turns of a conversation."""
    first = table.column(prompt[0])[0]
    if not isinstance(first, str | list | tuple):
        raise table.wrong(0, prompt[0], f"expected text or a list of turns; found {shown(first)}")
    if isinstance(first, str):
        prompts, answers = _joined(table, prompt), _joined(table, completion)
        _refuse_empty(table, completion[-1], answers)
        return {"prompt": prompts, "completion": answers}
    (asked,), (answered,) = prompt, completion
    if not chat:
        raise table.wrong(0, asked, "turns of a conversation are asked with the chat template: write chat = true")
    turns = tuple(_turns(table, index, asked, cell) for index, cell in enumerate(table.column(asked)))
    ends = [_turns(table, index, answered, cell) for index, cell in enumerate(table.column(answered))]
    for index, each in enumerate(ends):
        if len(each) != 1 or each[0][0] != "assistant":
            raise table.wrong(index, answered, f"expected one turn of the assistant; found {shown(each)}")
    answers = tuple(content for ((_, content),) in ends)
    _refuse_empty(table, answered, answers)
    return {"prompt": turns, "completion": answers}


def _joined(table: Table, paths: Sequence[str]) -> tuple[str, ...]:
    """Several columns are one text with line ends between what is not empty, as instructions and their input are."""
    columns = [texts(table, path) for path in paths]
    return (
        columns[0] if len(columns) == 1 else tuple("\n".join(filter(None, row)) for row in zip(*columns, strict=True))
    )


def _turns(table: Table, index: int, path: str, cell: Any) -> tuple[Turn, ...]:
    if isinstance(cell, str):
        raise table.wrong(
            index, path, f"expected turns of a conversation as in the rows before; found text: {shown(cell)}"
        )
    if not isinstance(cell, list | tuple) or not cell:
        raise table.wrong(index, path, f"expected a list of turns with role and content; found {shown(cell)}")
    return tuple(_turn(table, index, path, turn) for turn in cell)


def _turn(table: Table, index: int, path: str, turn: Any) -> Turn:
    if not isinstance(turn, Mapping) or not all(isinstance(turn.get(key), str) for key in ("role", "content")):
        raise table.wrong(index, path, f"expected turns with role and content, both text; found {shown(turn)}")
    if turn["role"] not in ROLES:
        raise table.wrong(index, path, f"no role {turn['role']!r}: {did_you_mean(turn['role'], ROLES)}")
    if turn.get("tool_calls"):
        raise table.wrong(index, path, "a turn with tool_calls, which are not read; write the call into its content")
    check_encodable(table, path, [turn["content"]])
    return turn["role"], turn["content"]


def _split(table: Table, index: int, path: str, turns: tuple[Turn, ...]) -> tuple[tuple[Turn, ...], str]:
    """What is asked, and the answer."""
    *asked, (role, content) = turns
    if role != "assistant" or not asked:
        expected = "expected turns that end with the assistant's answer to something"
        raise table.wrong(index, path, f"{expected}; found the roles {', '.join(role for role, _ in turns)}")
    return tuple(asked), content


def _refuse_empty(table: Table, path: str, completions: Sequence[str]) -> None:
    for index, completion in enumerate(completions):
        if not completion.strip():
            raise table.wrong(
                index, path, f"an empty completion ({shown(completion)}): nothing to learn; remove the row"
            )
