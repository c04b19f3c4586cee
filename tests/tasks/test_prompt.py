import pytest

from skillgraft.errors import InputError
from skillgraft.tasks.prompt import Prompt, Template


def parse(text: str) -> Template:
    return Template.parse(text, texts=("a", "b"), lists=("choices",))


def render(text: str, mask: str = "<mask>", **row: object) -> str:
    return parse(text).render({"a": "", "b": "", **row}, mask=mask)


def test_p1_pair_prompt() -> None:
    filled = render("{a|strip_punct}? {mask}, {b|lower_first}", a="A man sleeps.", b="He rests.")
    assert filled == "A man sleeps? <mask>, he rests."


@pytest.mark.parametrize(
    ("spelling", "value", "expected"),
    [
        ("strip_punct", "uh yes", "uh yes"),  # P1's code would eat the s
        ("strip_punct", "why?!", "why?"),  # one character, as P1
        ("strip_punct", "so it goes . ", "so it goes"),
        ("strip_punct", "", ""),
        ("lower_first", "ABC", "aBC"),
        ("lower", "ABC", "abc"),
        ("strip_end:.?!", "really ?!", "really"),
        ("remove:*", "gave *him* it", "gave him it"),
        ("before:_____", "refract _____ light", "refract "),
        ("after:_____", "refract _____ light", " light"),
        ("after:_____", "no gap", ""),
        ("strip_punct|lower", "AB.", "ab"),
        ("limit:1", "all of it", "all of it"),  # tokens are counted by `fit`
    ],
)
def test_text_filters(spelling: str, value: str, expected: str) -> None:
    assert render(f"{{a|{spelling}}}", a=value) == expected


def test_list_filters() -> None:
    assert render("{choices|join: or }", choices=("more", "less")) == "more or less"
    assert render("{choices|lettered}", choices=("more", "less")) == "A. more\nB. less"
    assert render("{choices|join:, |lower}", choices=("A", "B")) == "a, b"


def test_doubled_braces_are_braces() -> None:
    assert render("{{{a}}} {{mask}}", a="x") == "{x} {mask}"


def test_a_mask_in_the_data_is_not_a_second_mask() -> None:
    assert render("{a} {mask}", a="one <ma<mask>sk>two") == "one two <mask>"
    assert render("{a}", mask="", a="<mask>") == "<mask>"


def test_fields_and_masks() -> None:
    template = parse("{mask}: {b} {a} {b|lower}")
    assert (template.fields, template.masks) == (("b", "a"), 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{c}", "no field 'c'"),
        ("{choice|join: or }", "did you mean 'choices'?"),
        ("{a|lower_frist}", "did you mean 'lower_first'?"),
        ("{a|limit:many}", "limit takes a number of tokens"),
        ("{a|limit:0}", "limit takes a number of tokens"),
        ("{a|remove}", "'remove' needs an argument"),
        ("{a|lower:x}", "'lower' takes no argument"),
        ("{choices}", "this field is a list"),
        ("{choices|lower}", "'lower' does not read a list"),
        ("{a|join:, }", "'join' does not read text"),
        ("{choices|join:, |lettered}", "'lettered' does not read text"),
        ("{mask|lower}", "no field 'mask'"),
        ("half {a", "a lone '{'"),
        ("half a}", "a lone '}'"),
    ],
)
def test_a_wrong_template_is_refused_when_parsed(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(text)
    assert message in str(caught.value)


def test_answers_are_words_or_come_from_the_row() -> None:
    fixed = Prompt(parse("{a}"), 10, words=("No", "Yes"))
    assert fixed.answers({"a": ""}) == ("No", "Yes")
    own = Prompt(parse("{a}"), 10, answer=Template.parse(" {letter}: {choice}", texts=("letter", "choice")))
    assert own.answers({"choices": ("more", "less")}) == (" A: more", " B: less")


def test_a_blank_takes_the_other_template() -> None:
    prompt = Prompt(
        template=parse("{a} {choices|join: or }?"),
        max_length=10,
        blank="__",
        template_blank=parse("{a|before:__}{choices|join: or }{a|after:__}?"),
    )
    assert prompt.render({"a": "It grows", "choices": ("big", "small")}) == "It grows big or small?"
    assert prompt.render({"a": "It gets __ then", "choices": ("big", "small")}) == "It gets big or small then?"


def test_more_choices_than_letters() -> None:
    with pytest.raises(InputError, match="more than 26 choices"):
        render("{choices|lettered}", choices=("x",) * 27)
