from pathlib import Path

import pytest

from skillgraft.errors import InputError
from skillgraft.tasks import load_task

from .making import CHOICES, REVIEWS, write_task

PROMPT = '[prompt]\ntemplate = "{text} It was {mask}."\nwords = { good = "great", bad = "terrible" }\n'


def test_words_go_by_label_never_by_position(tmp_path: Path) -> None:
    task = load_task(write_task(tmp_path, REVIEWS + PROMPT))
    assert task.labels == ("bad", "good")
    assert task.prompts["masked"].words == ("terrible", "great")


def test_a_plain_prompt_without_mask_is_causal(tmp_path: Path) -> None:
    task = load_task(write_task(tmp_path, REVIEWS + PROMPT.replace(" {mask}", "")))
    assert list(task.prompts) == ["causal"]


def test_defaults_and_paths_beside_the_file(tmp_path: Path) -> None:
    task = load_task(write_task(tmp_path, REVIEWS.replace('"test.jsonl"', '["a.csv", "hf:o/n:test", "data:x.npz"]')))
    assert (task.kind, task.metric, task.max_length, task.label) == ("text", "accuracy", 128, "label")
    assert task.data.test == (str(tmp_path / "a.csv"), "hf:o/n:test", "data:x.npz")
    assert task.data.data_labels == task.labels


def test_a_prompts_own_length(tmp_path: Path) -> None:
    task = load_task(write_task(tmp_path, "max_length = 40\n" + REVIEWS + PROMPT))
    longer = load_task(write_task(tmp_path, "max_length = 40\n" + REVIEWS + PROMPT + "max_length = 99\n"))
    assert (task.prompts["masked"].max_length, longer.prompts["masked"].max_length) == (40, 99)


def test_descriptions(tmp_path: Path) -> None:
    described = '[describe]\ninput = "Review: {text}"\ngood = "praise"\nbad = "blame"\n'
    describe = load_task(write_task(tmp_path, REVIEWS + described)).describe
    assert describe is not None
    assert describe.input is not None
    assert describe.input.render({"text": "x"}) == "Review: x"
    assert (describe.label_texts("bad"), describe.label_texts("good")) == (("blame",), ("praise",))


def test_described_choices(tmp_path: Path) -> None:
    describe = load_task(write_task(tmp_path, CHOICES + '[describe]\nchoice = "{question} {choice}!"\n')).describe
    assert describe is not None
    assert describe.choice_texts({"question": "Q", "choices": ("x", "y")}) == ("Q x!", "Q y!")


def test_image_template_and_description_are_averaged(tmp_path: Path) -> None:
    text = REVIEWS.replace("text =", "image =") + '[describe]\ntemplate = "a {label}."\ngood = "g"\nbad = "b"\n'
    describe = load_task(write_task(tmp_path, text)).describe
    assert describe is not None
    assert describe.input is None
    assert describe.label_texts("bad") == ("a bad.", "b")
    several = load_task(write_task(tmp_path, text.replace('"a {label}."', '["a {label}.", "one {label}!"]'))).describe
    assert several is not None
    assert several.label_texts("bad") == ("a bad.", "one bad!", "b")
    assert describe.choice_texts({}) == ()


def test_unknown_name() -> None:
    with pytest.raises(InputError, match=r"no task 'sst3': did you mean 'sst2'\?"):
        load_task("sst3")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such task file"):
        load_task(tmp_path / "none.toml")


WRONG_REVIEWS = [
    ("lables = 1\n" + REVIEWS, "unknown key 'lables': did you mean 'labels'? Known: name, train"),
    (REVIEWS + PROMPT + "wrods = 1\n", "[prompt]: unknown key 'wrods': did you mean 'words'? Known: template"),
    (REVIEWS + '[hub]\ntrian = "x"\n', "[hub]: unknown key 'trian': did you mean 'train'?"),
    (REVIEWS + '[describe]\ngod = "x"\n', "[describe]: unknown key 'god': did you mean 'good'?"),
    (REVIEWS + "[prompt.maskd]\n", "[prompt]: unknown key 'maskd': did you mean 'masked'?"),
    (REVIEWS + PROMPT.replace("good", "fine"), "[prompt.words]: unknown key 'fine'"),
    (REVIEWS + PROMPT.replace('good = "great", ', ""), "[prompt.words]: nothing for the label good"),
    (REVIEWS + PROMPT.replace("great", "terrible"), "'words' must be different"),
    (REVIEWS + '[describe]\ngood = "x"\n', "[describe]: nothing for the label bad"),
    (REVIEWS + '[describe]\ninput = "x"\n', "every label needs a description"),
    (REVIEWS + "[describe]\ntemplate = []\n", "[describe]: 'template' is an empty list; give a text with {label}"),
    (
        REVIEWS + '[describe]\ntemplate = ["a {label}", "a {labl}"]\n',
        "'template': {labl}: no field 'labl': did you mean 'label'?",
    ),
    (
        REVIEWS + '[describe]\ntemplate = ["a {label}", 7]\n',
        "[describe]: 'template' must be a list of strings; found 7",
    ),
    (REVIEWS + '[describe]\ngood = "x"\nbad = "y"\nchoice = "{choice}"\n', "'choice' is for multiple choice"),
    (REVIEWS + PROMPT.replace("{text}", "{txt}"), "'template': {txt}: no field 'txt': did you mean 'text'?"),
    (REVIEWS + PROMPT.replace("{text}", "{mask}"), "'template' needs at most one {mask}; found 2"),
    (REVIEWS + PROMPT.replace("[prompt]", "[prompt.causal]"), "'template' needs no {mask}; found 1"),
    (
        REVIEWS + PROMPT.replace("[prompt]", "[prompt.masked]").replace("{mask}", ""),
        "[prompt.masked]: 'template' needs exactly one {mask}; found 0",
    ),
    (REVIEWS + PROMPT + 'blank = "_"\n', "'blank' and 'template_blank' belong together"),
    (REVIEWS + PROMPT + 'answer = "{choice}"\n', "'answer' is for multiple choice"),
    (REVIEWS + "[prompt]\nwords = { good = 'a', bad = 'b' }\n", "the key 'template' is missing"),
    (REVIEWS.replace('name = "reviews"', ""), "the key 'name' is missing"),
    (REVIEWS.replace('text = "text"', ""), "exactly one of 'text'"),
    (REVIEWS + 'image = "x"\n', "exactly one of 'text'"),
    (REVIEWS.replace('text = "text"', 'image = ["x", "y"]'), "an image task has one 'image' column"),
    (REVIEWS.replace('text = "text"', 'image = "x"') + PROMPT, "an image task has no prompt"),
    (REVIEWS.replace('["bad", "good"]', '["bad"]'), "'labels' must list at least two names"),
    (REVIEWS.replace('["bad", "good"]', '["bad", "bad"]'), "names a label twice"),
    (REVIEWS.replace('["bad", "good"]', '["bad", 1]'), "'labels' must be a list of strings; found 1"),
    (REVIEWS.replace('text = "text"', 'text = "mask"'), "a column cannot be called 'mask'"),
    (REVIEWS.replace('text = "text"', 'text = "label"'), "a column has two roles"),
    (REVIEWS + 'metric = "acuracy"\n', "did you mean 'accuracy'?"),
    (REVIEWS.replace('"good"]', '"good", "fair"]') + 'metric = "f1"\n', "metric 'f1' is of label 1 of two labels"),
    (REVIEWS + "max_length = 0\n", "'max_length' must be a whole number above 0; found 0"),
    (REVIEWS + "max_length = '9'\n", "'max_length' must be a whole number; found '9'"),
    (REVIEWS + 'data_labels = ["bad"]\n', "'data_labels' lacks good"),
    (REVIEWS + 'data_labels = ["bad", "good", "meh"]\n', "'data_labels' has meh: neither in"),
    (REVIEWS + 'ignore_labels = "meh"\n', "'ignore_labels' must be a list"),
    (REVIEWS + 'columns = { txt = "review" }\n', "'columns' renames to 'txt', which is no field: did you mean 'text'?"),
    (REVIEWS + 'columns = { label = ["x", "y"] }\n', "'columns': 'label' needs one column; found ['x', 'y']"),
    (REVIEWS + "columns = { text = [] }\n", "'columns': 'text' needs one column; found []"),
    (REVIEWS + "columns = 3\n", "'columns' must be a table; found 3"),
    (REVIEWS.replace("train =", "validation =").replace("test =", "#"), "neither 'train' nor 'test' names a source"),
    (REVIEWS + 'choices = "c"\n', "'labels' and 'choices' exclude each other"),
    (CHOICES.replace('"choices"', "[]"), "'choices' names no column"),
    (CHOICES + PROMPT.replace("{text}", "{question}"), "multiple choice has no 'words'"),
    (CHOICES + '[prompt]\ntemplate = "{question}"\n', "the key 'answer' is missing"),
    (CHOICES + '[prompt]\ntemplate = "{question} {choices}"\nanswer = "{choice}"\n', "this field is a list"),
    ("name = ", "cannot be read as TOML"),
]


@pytest.mark.parametrize(("text", "message"), WRONG_REVIEWS)
def test_what_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = write_task(tmp_path, text)
    with pytest.raises(InputError) as caught:
        load_task(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "task.toml"
    path.write_bytes(b'name = "caf\xe9"')
    with pytest.raises(InputError, match="cannot be read as TOML"):
        load_task(path)
