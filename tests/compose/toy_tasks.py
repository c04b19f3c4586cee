"""Three tiny tasks beside `films.toml` of tests/training: animals and colours in the same words, and films under another name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.training.conftest import _one_thread  # noqa: F401
from tests.training.test_finetune import QUICK, place, run  # noqa: F401

TASKS = ("films", "animals", "colours")
_WORDS = {
    "animals": {"bad": ("cat", "mouse"), "good": ("dog", "house")},
    "colours": {"bad": ("red", "green"), "good": ("blue", "quick")},
}
_TEXTS = {"animals": ("a cat", "a dog"), "colours": ("red", "blue")}


@pytest.fixture(scope="module")
def tasks(place: Path) -> list[Path]:  # noqa: F811
    """The files of the three tasks, which lie beside the models `encoder` and `masked`."""
    films = (place / "films.toml").read_text()
    for name, words in _WORDS.items():
        for file, seed, count in ((f"{name}-x.jsonl", 1, 120), (f"{name}-y.jsonl", 2, 40)):
            (place / file).write_text("".join(json.dumps(row) + "\n" for row in _rows(words, seed, count)))
        text = films.replace('name = "films"', f'name = "{name}"')
        text = text.replace('"x.jsonl"', f'"{name}-x.jsonl"').replace('"y.jsonl"', f'"{name}-y.jsonl"')
        first, second = _TEXTS[name]
        text = text.replace('"a bad film"', f'"{first}"').replace('"a good film"', f'"{second}"')
        (place / f"{name}.toml").write_text(text)
    return [place / f"{name}.toml" for name in TASKS]


def _rows(words: dict[str, tuple[str, ...]], seed: int, count: int) -> list[dict[str, object]]:
    draw = np.random.default_rng(seed)
    chosen = [words["good" if number % 2 else "bad"] for number in range(count)]
    letters = [" ".join(draw.choice(list("abcdefg"), 3)) for _ in range(count)]
    return [
        {"text": f"it is {draw.choice(some)} {few} {draw.choice(some)}", "label": number % 2}
        for number, (some, few) in enumerate(zip(chosen, letters, strict=True))
    ]
