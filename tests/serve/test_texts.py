"""Texts that grow token by token are the decoded tokens, cut before the first stop string."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from skillgraft.serve.texts import GrowingText
from tests.readouts.making import byte_pieces, word_pieces

BYTES = byte_pieces(wrapped=False)


def grown(tokenizer: object, ids: list[int], stop: tuple[str, ...] = (), context: tuple[int, ...] = ()) -> list[str]:
    text = GrowingText(tokenizer, stop, list(context))
    pieces = []
    for token in ids:
        pieces.append(text.add(token))
        if text.stopped:
            break
    return [*pieces, text.finish()]


@settings(deadline=None)
@given(st.text(max_size=30))
def test_characters_that_span_tokens_come_whole(text: str) -> None:
    ids = BYTES(text, add_special_tokens=False)["input_ids"]
    pieces = grown(BYTES, ids)
    assert "".join(pieces) == BYTES.decode(ids, clean_up_tokenization_spaces=False)
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


@settings(deadline=None)
@given(st.text("abc ", max_size=30), st.lists(st.text("abc ", min_size=1, max_size=4), max_size=3))
def test_nothing_of_a_stop_string_is_shown(text: str, stop: list[str]) -> None:
    ids = BYTES(text, add_special_tokens=False)["input_ids"]
    assert "".join(grown(BYTES, ids, tuple(stop))) == cut(ids, stop)


def cut(ids: list[int], stop: list[str]) -> str:
    """The text up to the stop string that is complete after the fewest tokens."""
    for count in range(1, len(ids) + 1):
        so_far = str(BYTES.decode(ids[:count], clean_up_tokenization_spaces=False))
        found = [at for at in (so_far.find(each) for each in stop) if at >= 0]
        if found:
            return so_far[: min(found)]
    return str(BYTES.decode(ids, clean_up_tokenization_spaces=False))


def test_the_space_between_prompt_and_answer_stays() -> None:
    """Word pieces are decoded with spaces between them and none before the first."""
    tokenizer = word_pieces()
    ids = tokenizer("the cat was fine", add_special_tokens=False)["input_ids"]
    assert "".join(grown(tokenizer, ids[2:])) == "was fine"
    assert "".join(grown(tokenizer, ids[2:], context=tuple(ids[:2]))) == " was fine"


def test_an_emoji_is_shown_when_its_last_byte_is_there() -> None:
    ids = BYTES("🦊", add_special_tokens=False)["input_ids"]
    assert grown(BYTES, ids) == [*[""] * (len(ids) - 1), "🦊", ""]


def test_bytes_that_are_no_character_end_as_signs_of_it() -> None:
    ids = BYTES("🦊", add_special_tokens=False)["input_ids"]
    assert set("".join(grown(BYTES, ids[:2]))) == {"\ufffd"}
