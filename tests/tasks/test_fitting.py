import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillgraft.errors import InputError
from skillgraft.tasks.prompt import Template, cut_to

from .making import tokenizer, word_tokenizer

PAIR = Template.parse("First: {a}? {mask}, {b}", texts=("a", "b"))
OPTIONS = Template.parse("{a} among {choices|join:; }", texts=("a",), lists=("choices",))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def test_the_longest_field_gives_way_first() -> None:
    row = {"a": "one two three four five", "b": "six seven"}
    # First : … ? <mask> , … are 5 tokens of template; 5 are left for 7 words
    assert PAIR.fit(row, word_tokenizer(), 10, mask="<mask>") == "First: one two three? <mask>, six seven"
    assert PAIR.fit(row, word_tokenizer(), 7, mask="<mask>") == "First: one? <mask>, six"
    assert PAIR.fit(row, word_tokenizer(), 12, mask="<mask>") == PAIR.render(row, mask="<mask>")


def test_choices_give_way_last() -> None:
    row = {"a": "one two three", "choices": ("red", "green", "blue")}
    assert OPTIONS.fit(row, word_tokenizer(), 7) == "one among red; green; blue"
    assert OPTIONS.fit(row, word_tokenizer(), 4) == " among red; green"


def test_limit_cuts_one_field() -> None:
    template = Template.parse("{a|lower|limit:2} It was {mask}.", texts=("a",))
    assert template.fit({"a": "A fine film ."}, word_tokenizer(), 99, mask="<mask>") == "a fine It was <mask>."


def test_special_tokens_count() -> None:
    template = Template.parse("{a}", texts=("a",))
    assert template.fit({"a": "abcdef"}, tokenizer(), 5) == "abc"  # <s> a b c </s>


def test_a_character_of_several_tokens_goes_whole() -> None:
    assert cut_to("ab🙂", tokenizer(), 4) == "ab"
    assert cut_to("🙂", tokenizer(), 1) == ""


@given(a=texts, b=texts, max_length=st.integers(24, 80))
def test_law_short_enough_mask_present_template_intact(a: str, b: str, max_length: int) -> None:
    filled = PAIR.fit({"a": a, "b": b}, tokenizer(), max_length, mask="<mask>")
    assert len(tokenizer()(filled)["input_ids"]) <= max_length
    assert tokenizer()(filled)["input_ids"].count(tokenizer().mask_token_id) == 1
    assert filled.startswith("First: ")
    first, second = filled.removeprefix("First: ").split("? <mask>, ")
    assert a.startswith(first)
    assert b.startswith(second)


@given(a=texts, b=texts)
def test_law_what_fits_is_not_touched(a: str, b: str) -> None:
    row = {"a": a, "b": b}
    assert PAIR.fit(row, tokenizer(), 1000, mask="<mask>") == PAIR.render(row, mask="<mask>")


def test_a_template_that_never_fits() -> None:
    with pytest.raises(InputError, match="the template alone takes 14 tokens, but max_length is 8"):
        PAIR.fit({"a": "x" * 50, "b": "y"}, tokenizer(), 8, mask="<mask>")


def test_a_slow_tokenizer_is_refused_only_when_a_text_must_be_cut() -> None:
    class Slow:
        is_fast = False

        def __call__(self, text: str, /, **_: object) -> dict[str, list[str]]:
            return {"input_ids": text.split()}

    template = Template.parse("{a}", texts=("a",))
    assert template.fit({"a": "one two"}, Slow(), 2) == "one two"
    with pytest.raises(InputError, match="use a fast tokenizer"):
        template.fit({"a": "one two three"}, Slow(), 2)
