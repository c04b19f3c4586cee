"""Task files and rows of prompts that are completed: TRL's layouts, and everything that is wrong with a row, in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skillgraft.errors import DataError, InputError
from skillgraft.tasks import load_task, read_examples
from skillgraft.tasks.data import Data
from skillgraft.tasks.task_file import definition
from tests.completing import fact_rows, write_facts, write_rows

USER, ASSISTANT = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}


def read(folder: Path, lines: str, *rows: Any) -> dict[str, Any]:
    write_rows(folder / "rows.jsonl", rows)
    file = folder / "task.toml"
    file.write_text(f'name = "facts"\nkind = "complete"\ntrain = "rows.jsonl"\n{lines}')
    return dict(read_examples(load_task(file), "train").columns)


@pytest.mark.parametrize(
    ("lines", "row", "prompt", "completion"),
    [
        ("", {"prompt": "a", "completion": "b"}, "a", "b"),
        ('columns = { prompt = ["q", "more"], completion = "r" }', {"q": "a", "more": "c", "r": "b"}, "a\nc", "b"),
        ('columns = { prompt = ["q", "more"], completion = "r" }', {"q": "a", "more": "", "r": "b"}, "a", "b"),
        ("chat = true", {"prompt": [USER], "completion": [ASSISTANT]}, (("user", "hi"),), "yes"),
        ('layout = "messages"', {"messages": [USER, ASSISTANT]}, (("user", "hi"),), "yes"),
        (
            'layout = "messages"',
            {"messages": [USER, ASSISTANT, USER, ASSISTANT]},
            (("user", "hi"), ("assistant", "yes"), ("user", "hi")),
            "yes",
        ),
        ('layout = "text"', {"text": "a b"}, "", "a b"),
    ],
)
def test_layouts(tmp_path: Path, lines: str, row: Any, prompt: Any, completion: str) -> None:
    assert read(tmp_path, lines, row) == {"prompt": (prompt,), "completion": (completion,)}


@pytest.mark.parametrize(
    ("lines", "rows", "message"),
    [
        (
            "",
            [{"prompt": "a", "completion": "b"}, {"prompt": "a", "completion": "  "}],
            r"line 2, column 'completion': an empty completion",
        ),
        ('layout = "text"', [{"text": ""}], "an empty completion"),
        ('layout = "messages"', [{"messages": [USER, {**ASSISTANT, "content": ""}]}], "an empty completion"),
        (
            "",
            [{"prompt": "a", "completion": "b"}, {"prompt": [USER], "completion": [ASSISTANT]}],
            r"line 2, column 'prompt': expected text",
        ),
        (
            "chat = true",
            [{"prompt": [USER], "completion": [ASSISTANT]}, {"prompt": "a", "completion": "b"}],
            "line 2.*found text: 'a'",
        ),
        (
            "",
            [{"prompt": "a", "completion": "b"}, {"messages": [USER, ASSISTANT]}],
            "line 2: there is no 'prompt'; this row has messages",
        ),
        ('layout = "messages"', [{"prompt": "a", "completion": "b"}], "no column 'messages'"),
        ('layout = "messages"', [{"messages": [USER]}], "end with the assistant's answer.*found the roles user"),
        ('layout = "messages"', [{"messages": [ASSISTANT]}], "end with the assistant's answer"),
        ('layout = "messages"', [{"messages": []}], "a list of turns"),
        ('layout = "messages"', [{"messages": [{"role": "user"}, ASSISTANT]}], "turns with role and content"),
        ('layout = "messages"', [{"messages": [{"role": "usr", "content": "a"}, ASSISTANT]}], "no role 'usr'.*user"),
        ('layout = "messages"', [{"messages": [{**USER, "content": "\ud800"}, ASSISTANT]}], "half a character"),
        ('layout = "messages"', [{"messages": [USER, {**ASSISTANT, "tool_calls": [{}]}]}], "tool_calls"),
        ("chat = true", [{"prompt": [USER], "completion": [USER]}], "expected one turn of the assistant"),
        ("", [{"prompt": [USER], "completion": [ASSISTANT]}], "write chat = true"),
        ("", [{"prompt": 3, "completion": "b"}], "expected text or a list of turns"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, lines: str, rows: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path, lines, *rows)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('layout = "rows"', "no layout 'rows'"),
        ('layout = "messages"\nchat = false', "leave 'chat' out"),
        ('layout = "text"\nchat = true', "leave 'chat' out"),
        ('metric = "accuracy"', "no metric 'accuracy'"),
        ('labels = ["a", "b"]', "unknown key 'labels'"),
        ('chat = "yes"', "must be true or false"),
        ('columns = { text = "a" }', "no field"),
        ('[prompt]\ntemplate = "{completion}"', "no field 'completion'"),
        ('[prompt]\nwords = "a"', "unknown key 'words'"),
        ('layout = "text"\n[prompt]\ntemplate = "{prompt}"', "a template is for rows of prompt and completion"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, lines: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, lines, {"prompt": "a", "completion": "b"})


def test_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "task.toml").write_text('name = "a"\nkind = "image"\ntrain = "x.npz"\n')
    with pytest.raises(InputError, match="'kind' is 'complete'"):
        load_task(tmp_path / "task.toml")


def test_rows_are_drawn_as_one_group_and_none_is_in_two_splits(tmp_path: Path) -> None:
    task = load_task(write_facts(tmp_path))
    split = Data(shots=40, validation_rows=8).split(task)
    assert len(split.train) == 40
    rows = [{(row["prompt"], row["completion"]) for row in part.rows()} for part in (split.train, split.validation)]
    assert not rows[0] & rows[1]


def test_a_definition_tells_styles_apart_and_leaves_other_tasks_alone(tmp_path: Path) -> None:
    plain, chat = (load_task(write_facts(tmp_path, more)) for more in ("", "chat = true\n"))
    assert definition(plain) != definition(chat)
    assert "completing" not in definition(load_task("sst2"))
    assert len(fact_rows(3)) == 3
