"""The causal readout against a forward pass per row."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from skillgraft.errors import InputError
from tests.readouts.making import (
    GAPS,
    SENTIMENT,
    assert_gradients_flow,
    assert_padding_is_invisible,
    films,
    gaps,
    open_readouts,
    scored,
    task_of,
)

Folders = Callable[[str], Path]


@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_scores_are_the_words_logits_after_the_prompt(folders: Folders, model: str) -> None:
    opened = open_readouts(folders(model), [task_of(SENTIMENT)], readout="causal")
    tokenizer = opened.source.tokenizer
    ids = tokenizer.convert_tokens_to_ids(["Ġterrible", "Ġgreat"])
    scores = scored(opened, films())
    for row, text in enumerate(films().columns["text"]):
        with torch.no_grad():
            logits = opened.model(torch.tensor([tokenizer(f"{text} it is")["input_ids"]])).logits
        torch.testing.assert_close(scores[row], logits[0, -1, ids], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_padding_and_gradients(folders: Folders, model: str) -> None:
    opened = open_readouts(folders(model), [task_of(SENTIMENT), task_of(GAPS)], readout="causal")
    for place, examples in enumerate((films(), gaps())):
        assert_padding_is_invisible(opened, examples, place)
        assert_gradients_flow(opened, examples, place)


def test_multiple_choice_is_answered_by_letter(folders: Folders) -> None:
    opened = open_readouts(folders("gpt2"), [task_of(GAPS)], readout="causal")
    tokenizer = opened.source.tokenizer
    scores = scored(opened, gaps())
    prompt = "the film was\nA. quick mouse\nB. slow\nanswer:"
    with torch.no_grad():
        logits = opened.model(torch.tensor([tokenizer(prompt)["input_ids"]])).logits[0, -1]
    letters = tokenizer.convert_tokens_to_ids(["ĠA", "ĠB"])
    torch.testing.assert_close(scores[1, :2], logits[letters], atol=1e-5, rtol=1e-5)
    assert scores.isneginf().tolist() == [[False, False, False, True], [False, False, True, True], [False] * 4]
    assert opened.readouts[0].settings["answer"] == " {letter}"


def test_the_question_survives_a_long_text(folders: Folders) -> None:
    readout = open_readouts(folders("gpt2"), [task_of(SENTIMENT)], max_length=9).readouts[0]
    (row,) = readout.encode(films(["slow " * 50]))
    assert row.length == 9
    assert readout.text.tokenizer.decode(row.inputs["input_ids"]).endswith("slow it is")


def test_an_appended_end_of_text_is_taken_off(folders: Folders) -> None:
    opened = open_readouts(folders("roberta"), [task_of(SENTIMENT)], readout="masked")
    from skillgraft.readouts.causal import Causal

    task = task_of(SENTIMENT)
    readout = Causal(task, task.prompts["causal"], opened.readouts[0].text, (5, 6))
    (row,) = readout.encode(films(["fine"]))
    assert readout.text.tokenizer.decode(row.inputs["input_ids"]) == "<s>fine it is"


def test_words_of_several_tokens(folders: Folders) -> None:
    task = task_of(SENTIMENT.replace('" terrible"', '" terrible bad"'))
    with pytest.raises(
        InputError, match=r"' terrible bad' is 2 tokens here \('Ġterrible', 'Ġbad'\).* use the choice readout"
    ):
        open_readouts(folders("gpt2"), [task], readout="causal")


def test_answers_that_are_not_letters(folders: Folders) -> None:
    task = task_of(GAPS.replace('" {letter}"', '" {choice}"'))
    with pytest.raises(InputError, match=r"the answers ' {choice}' are not single tokens .* use the choice readout"):
        open_readouts(folders("gpt2"), [task], readout="causal")
