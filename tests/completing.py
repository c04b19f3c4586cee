"""A tiny language model that can chat, and a task of prompts that it can learn to complete."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.readouts import making

FACTS = {"cat": "red", "dog": "blue", "house": "green great", "mouse": "slow", "film": "quick"}
TASK = """
name = "facts"
kind = "complete"
train = "facts-train.jsonl"
test = "facts-test.jsonl"
max_length = 64
"""
CHAT = (
    "{% for message in messages %}<s>{{ message['role'] }}\n{{ message['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)


def write_rows(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def fact_rows(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Prompts of a noun among letters; the completion follows from the noun."""
    draw = np.random.default_rng(seed)
    nouns = [list(FACTS)[number % len(FACTS)] for number in range(count)]
    letters = (" ".join(draw.choice(list("abcdefg"), 2)) for _ in range(count))
    return [
        {"prompt": f"{few} the {noun} is", "completion": f" {FACTS[noun]}"}
        for few, noun in zip(letters, nouns, strict=True)
    ]


def write_facts(folder: Path, more: str = "", *, train: int = 100, test: int = 20) -> Path:
    """facts.toml with its rows; `more` are further lines of the file."""
    write_rows(folder / "facts-train.jsonl", fact_rows(train, 1))
    write_rows(folder / "facts-test.jsonl", fact_rows(test, 2))
    (folder / "facts.toml").write_text(TASK + more, encoding="utf-8")
    return folder / "facts.toml"


def chatting(folder: Path, *, template: str | None = CHAT) -> Path:
    """A tiny Llama whose tokenizer has a chat template, and no padding token."""
    making.llama(folder)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder
