"""Label words as single tokens."""

from typing import Any

import pytest

from skillgraft.errors import InputError
from skillgraft.readouts.words import causal_ids, continuations, is_byte_level, masked_ids
from tests.readouts.making import byte_pieces, sentence_pieces, word_pieces


@pytest.mark.parametrize(("make", "expected"), [(byte_pieces, True), (word_pieces, False), (sentence_pieces, False)])
def test_byte_level_is_recognised(make: Any, expected: bool) -> None:
    assert is_byte_level(make()) is expected


def test_masked_words_begin_a_word() -> None:
    assert byte_pieces().convert_ids_to_tokens(masked_ids(byte_pieces(), ["great", "bad"], task="t")) == [
        "Ġgreat",
        "Ġbad",
    ]
    assert word_pieces().convert_ids_to_tokens(masked_ids(word_pieces(), ["great", "bad"], task="t")) == [
        "great",
        "bad",
    ]
    assert sentence_pieces().convert_ids_to_tokens(masked_ids(sentence_pieces(), ["cat"], task="t")) == ["▁cat"]


def test_punctuation_stands_alone() -> None:
    assert byte_pieces().convert_ids_to_tokens(masked_ids(byte_pieces(), ["?", "!"], task="t")) == ["?", "!"]


def test_several_tokens_are_shown() -> None:
    with pytest.raises(
        InputError, match=r"task 't', masked prompt: the word 'dog-cat' is \d tokens here \('Ġdog', '-', 'c"
    ):
        masked_ids(byte_pieces(), ["dog-cat", "dog"], task="t")


def test_a_near_spelling_is_suggested() -> None:
    with pytest.raises(InputError, match=r"the word 'GREAT' .* take ' great', which is one token|take 'great'"):
        masked_ids(byte_pieces(), ["GREAT", "bad"], task="t")
    with pytest.raises(
        InputError, match=r"causal prompt: the word 'great' .* take ' great', .*, or use the choice readout"
    ):
        causal_ids(byte_pieces(wrapped=False), ["great", " bad"], after="it is", task="t")


def test_unknown_word() -> None:
    with pytest.raises(InputError, match="'zebra' is not in the vocabulary; choose a word that is one token"):
        masked_ids(sentence_pieces(), ["zebra"], task="t")


def test_same_token_twice() -> None:
    with pytest.raises(InputError, match="' cat', 'cat' are one and the same token"):
        masked_ids(word_pieces(), [" cat", "cat"], task="t")


def test_continuations_are_what_a_text_adds() -> None:
    tokenizer = byte_pieces(wrapped=False)
    added = continuations(tokenizer, "it is", [" great", " red house", " q"])
    for text, ids in zip((" great", " red house", " q"), added, strict=True):
        whole = tokenizer("it is" + text)["input_ids"]
        assert tokenizer("it is")["input_ids"] + ids == whole


def test_sentencepiece_continues_without_a_second_space() -> None:
    (ids,) = continuations(sentence_pieces(), "it is", [" great"])
    assert sentence_pieces().convert_ids_to_tokens(ids) == ["▁great"]
