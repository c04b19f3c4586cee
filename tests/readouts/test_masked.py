"""The masked readout against the full LM head."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from skillgraft.errors import InputError
from tests.readouts.making import (
    PAIRS,
    SENTIMENT,
    assert_gradients_flow,
    assert_padding_is_invisible,
    films,
    open_readouts,
    pairs,
    scored,
    task_of,
)

Folders = Callable[[str], Path]


WORDS = {"bert": ("terrible", "great"), "roberta": ("Ġterrible", "Ġgreat")}


@pytest.mark.parametrize("model", WORDS)
def test_scores_are_the_words_logits_at_the_mask(folders: Folders, model: str) -> None:
    opened = open_readouts(folders(model), [task_of(SENTIMENT)], readout="masked")
    tokenizer, scores = opened.source.tokenizer, scored(opened, films())
    ids = tokenizer.convert_tokens_to_ids(WORDS[model])
    for row, text in enumerate(films().columns["text"]):
        prompt = f"{text} it was {tokenizer.mask_token} ."
        encoded = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
        with torch.no_grad():
            logits = opened.model(**encoded).logits
        (at_mask,) = logits[0][encoded["input_ids"][0] == tokenizer.mask_token_id]
        torch.testing.assert_close(scores[row], at_mask[ids], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("model", ["bert", "roberta"])
def test_padding_and_gradients(folders: Folders, model: str) -> None:
    opened = open_readouts(folders(model), [task_of(SENTIMENT), task_of(PAIRS)])
    for place, examples in enumerate((films(), pairs())):
        assert_padding_is_invisible(opened, examples, place)
        assert_gradients_flow(opened, examples, place)


def test_long_texts_keep_their_one_mask(folders: Folders) -> None:
    readout = open_readouts(folders("roberta"), [task_of(SENTIMENT)], max_length=12).readouts[0]
    rows = readout.encode(films(["slow " * 50, "a <mask> in the text <mask>", "fine"]))
    mask = readout.text.tokenizer.mask_token_id
    assert [row.inputs["input_ids"].count(mask) for row in rows] == [1, 1, 1]
    assert [row.inputs["input_ids"][row.inputs["positions"][0]] for row in rows] == [mask] * 3
    assert rows[0].length == 12
    assert all(row.length == len(row.inputs["input_ids"]) for row in rows)


def test_settings_say_how_it_was_asked(folders: Folders) -> None:
    (readout,) = open_readouts(folders("bert"), [task_of(SENTIMENT)], max_length=16).readouts
    assert readout.settings == {
        "readout": "masked",
        "template": "{text} it was {mask} .",
        "words": {"bad": "terrible", "good": "great"},
        "max_length": 16,
    }


def test_no_masked_prompt(folders: Folders) -> None:
    task = task_of(SENTIMENT.split("[prompt.masked]")[0])
    with pytest.raises(
        InputError, match=r"'films': the masked readout needs \[prompt.masked\]; its file has no prompt"
    ):
        open_readouts(folders("bert"), [task], readout="masked")


def test_no_mask_token(folders: Folders) -> None:
    with pytest.raises(InputError, match="tokenizer has no mask token"):
        open_readouts(folders("gpt2"), [task_of(SENTIMENT)], readout="masked")
