"""Greedy answers: those of a model that reads every text whole for every token, whatever the batch; where they stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from skillgraft.predictions.generate import answer_tokens, generate
from skillgraft.predictions.predict import predict
from skillgraft.readouts.completion import Completion
from skillgraft.tasks.task import Completing
from tests.readouts.conftest import folders  # noqa: F401
from tests.readouts.test_completion import ROWS, examples, opened, task

# pytest passes fixtures by their names, which are imported here
# ruff: noqa: F811

Folders = Callable[[str], Path]


def whole_again(model: Any, readout: Completion, asked: list[int], most: int) -> str:
    """Brute force: no cache, no batch."""
    tokens: list[int] = []
    for _ in range(most):
        with torch.no_grad():
            tokens.append(int(model(input_ids=torch.tensor([[*asked, *tokens]])).logits[0, -1].argmax()))
        if tokens[-1] in readout.stops:
            break
    return readout.answer(tokens)


@pytest.mark.parametrize("home", ["llama", "gpt2"])
@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_answers_are_those_of_whole_texts_read_again(folders: Folders, home: str, batch_size: int) -> None:
    model, readout = opened(folders(home), task())
    rows = readout.encode(examples())
    found = generate(model, readout, rows, most=6, batch_size=batch_size)
    assert found == [whole_again(model, readout, readout.asked(row), 6) for row in rows]
    assert len(set(found)) > 1


def test_an_answer_ends_at_the_first_stop(folders: Folders) -> None:
    model, readout = opened(folders("llama"), task())
    rows = readout.encode(examples())
    free = generate(model, replace(readout, stops=()), rows[:1], most=6)[0]
    first = int(model(input_ids=torch.tensor([readout.asked(rows[0])])).logits[0, -1].argmax())
    assert free != ""
    assert generate(model, replace(readout, stops=(first,)), rows[:1], most=6) == [""]


def test_the_longest_completion_or_the_task_limits_an_answer(folders: Folders) -> None:
    _, readout = opened(folders("llama"), task())
    rows = readout.encode(examples())
    assert answer_tokens(readout, rows) == max(row.units for row in rows)
    assert answer_tokens(replace(readout, style=Completing(answer_tokens=2)), rows) == 2


def test_nothing_is_generated_beyond_the_window(folders: Folders) -> None:
    model, readout = opened(folders("llama"), task(max_length=96))
    (row,) = readout.encode(examples(("a " * 92, " b")))
    assert len(readout.asked(row)) == 93
    assert len(readout.text.tokenizer(generate(model, replace(readout, stops=()), [row], most=50)[0])["input_ids"]) <= 3


def test_predictions_hold_losses_counts_and_answers(folders: Folders) -> None:
    model, readout = opened(folders("llama"), task())
    rows = readout.encode(examples())
    quiet, written = predict(model, readout, rows), predict(model, readout, rows, generates=True, batch_size=1)
    assert (quiet.texts, written.references) == ((), tuple(answer for _, answer in ROWS))
    assert written.texts == tuple(generate(model, readout, rows))
    for row, encoded in enumerate(rows):
        batch = readout.collate([encoded])
        with torch.no_grad():
            logits = readout.scores(model, batch)
        loss = torch.nn.functional.cross_entropy(logits, batch["labels"], reduction="sum")
        assert quiet.losses[row] == pytest.approx(float(loss), rel=1e-5)
        assert written.losses[row] == pytest.approx(float(loss), rel=1e-5)
        assert quiet.hits[row] == int((logits.argmax(-1) == batch["labels"]).sum())
    assert quiet.tokens.tolist() == [row.units for row in rows]


def test_a_callable_scores_what_was_generated(folders: Folders) -> None:
    own = replace(task(Completing(scorer=lambda text, true: float(len(text) > len(true)))), metric="callable")
    model, readout = opened(folders("llama"), own)
    found = predict(model, readout, readout.encode(examples()))
    assert found.values.tolist() == [float(len(a) > len(b)) for a, b in zip(found.texts, found.references, strict=True)]
