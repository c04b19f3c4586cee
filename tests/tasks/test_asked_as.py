"""One task's question about another's rows: what comes from which task, and what is refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skillgraft.errors import DataError, InputError
from skillgraft.papers.recipes.generalization import ELSEWHERE
from skillgraft.tasks import Task, asked_as, load_task, read_examples, training_split
from skillgraft.tasks.task_file import definition

from .making import CHOICES, make_task, write_lines, write_task
from .test_catalogue import needs_data

PAIRS = [(source, other) for source, others in ELSEWHERE.items() for other in others]
SOURCE = """
name = "films"
train = "train.jsonl"
text = "film"
labels = ["bad", "good"]
metric = "f1"
max_length = 40
[prompt.masked]
template = "{film} It was {mask}."
words = { bad = "terrible", good = "great" }
[prompt.causal]
template = "{film} It is"
words = { bad = " terrible", good = " great" }
[describe]
bad = "a bad film"
good = "a good film"
"""
OTHER = """
name = "meals"
train = "train.jsonl"
test = "train.jsonl"
text = "review"
label = "stars"
labels = [LABELS]
[prompt.masked]
template = "{review} The food was {mask}."
words = { WORDS }
[describe]
template = "a {label} meal"
"""


def meals(folder: Path, *labels: str, cells: tuple[Any, ...] = (), more: str = "") -> Task:
    """Restaurant reviews whose rows are called after their labels."""
    listed = ", ".join(f'"{label}"' for label in labels)
    words = ", ".join(f'"{label}" = "word{number}"' for number, label in enumerate(labels))
    text = (
        OTHER.replace("LABELS", listed)
        .replace("WORDS", words)
        .replace("[prompt.masked]", f"{more}\n[prompt.masked]", 1)
    )
    rows = [{"review": f"meal {number}", "stars": cell} for number, cell in enumerate(cells or labels)]
    write_lines(folder / "train.jsonl", rows)
    return load_task(write_task(folder, text, name="meals.toml"))


@pytest.fixture
def films(tmp_path: Path) -> Task:
    return load_task(write_task(tmp_path, SOURCE, name="films.toml"))


def test_the_question_is_the_sources_and_the_rows_are_the_others(tmp_path: Path, films: Task) -> None:
    asked = asked_as(meals(tmp_path, "good", "bad"), films, first_text=None)
    assert asked.name == "meals as films"
    assert (asked.question, films.question) == ("films", "films")
    kept = ("prompts", "describe", "labels", "metric", "max_length", "inputs", "label", "kind")
    assert {name: getattr(asked, name) for name in kept} == {name: getattr(films, name) for name in kept}
    examples = read_examples(asked, "test")
    assert [examples.row(number) for number in range(2)] == [{"film": "meal 0"}, {"film": "meal 1"}]
    assert examples.label_names == ("bad", "good")
    assert asked.prompts["masked"].render(examples.row(0), mask="<mask>") == "meal 0 It was <mask>."


@pytest.mark.parametrize(
    ("labels", "numbers"),
    [
        (("bad", "good"), [0, 1]),
        (("good", "bad"), [1, 0]),
        (("poor", "fine"), [0, 1]),
        (("good", "poor"), [1, 0]),
        (("fine", "bad"), [1, 0]),
        (("fine", "good"), [0, 1]),
    ],
)
def test_labels_go_by_name_and_the_rest_by_order(
    tmp_path: Path, films: Task, labels: tuple[str, ...], numbers: list[int]
) -> None:
    for cells in (labels, (0, 1), ("0", "1")):
        asked = asked_as(meals(tmp_path, *labels, cells=cells), films)
        assert read_examples(asked, "test").labels.tolist() == numbers


def test_some_of_the_sources_labels_are_enough() -> None:
    three = load_task("snli")
    two = replace(load_task("mnli_01"), labels=("contradiction", "entailment"))
    assert asked_as(two, three).data.meanings == {"contradiction": "contradiction", "entailment": "entailment"}


def test_what_the_other_task_leaves_out_stays_out(tmp_path: Path, films: Task) -> None:
    more = 'data_labels = ["poor", "unsure", "fine"]\nignore_labels = ["unsure", -1]'
    asked = asked_as(meals(tmp_path, "poor", "fine", cells=(2, 1, 0, -1, "fine", "unsure"), more=more), films)
    examples = read_examples(asked, "test")
    assert (examples.columns["film"], examples.labels.tolist()) == (("meal 0", "meal 2", "meal 4"), [1, 0, 1])
    assert examples.ignored == 3


def test_a_label_of_the_source_that_the_other_data_do_not_have_is_unknown(tmp_path: Path, films: Task) -> None:
    asked = asked_as(meals(tmp_path, "poor", "fine", cells=("poor", "good")), films)
    with pytest.raises(DataError, match="unknown label 'good'; expected poor, fine"):
        read_examples(asked, "test")


def test_renamed_columns_are_read_from_where_they_are(tmp_path: Path, films: Task) -> None:
    task = meals(tmp_path, "bad", "good", more='columns = { review = ["title", "body"], stars = "rating" }')
    write_lines(tmp_path / "train.jsonl", [{"title": "Oh", "body": "no.", "rating": "bad"}])
    examples = read_examples(asked_as(task, films), "train")
    assert (examples.row(0), examples.labels.tolist()) == ({"film": "Oh no."}, [0])


def test_the_rows_are_drawn_as_the_other_task_draws_them(tmp_path: Path, films: Task) -> None:
    task = meals(tmp_path, "bad", "good", cells=("bad", "good") * 20)
    asked = training_split(asked_as(task, films), shots=3, seed=2)
    assert asked.train.columns["film"] == training_split(task, shots=3, seed=2).train.columns["review"]


def test_pairs_correspond_in_order_and_a_hub_name_is_read_alike() -> None:
    asked = load_task("mnli_01 as qnli")
    assert asked.hub is not None
    assert asked.hub.columns == {"text_a": ("premise",), "text_b": ("hypothesis",), "label": ("label",)}
    assert asked.hub.meanings == asked.data.meanings == {"entailment": "entailment", "contradiction": "not_entailment"}
    assert asked.hub.data_labels == ("entailment", "neutral", "contradiction")
    assert asked.ignore_labels == {"neutral"}


def test_choices_are_asked_as_choices(tmp_path: Path) -> None:
    theirs = (
        CHOICES.replace('"question"', '"sentence"').replace('"gaps"', '"blanks"').replace('= "choices"', '= ["a", "b"]')
    )
    row = {"sentence": "s", "a": "x", "b": "y", "label": 1}
    task, source = make_task(tmp_path, theirs, train=[row]), load_task(write_task(tmp_path, CHOICES, name="gaps.toml"))
    examples = read_examples(asked_as(task, source), "train")
    assert (examples.row(0), examples.labels.tolist()) == ({"question": "s", "choices": ("x", "y")}, [1])


@pytest.mark.parametrize(
    ("task", "source", "message"),
    [
        ("trec", "sst2", "labels that correspond to negative, positive, found ABBR, ENTY, DESC, "),
        ("mnli", "qnli", "correspond to entailment, not_entailment, found entailment, neutral, contradiction;"),
        (
            "sst2",
            "qnli",
            r"expected text in 2 columns \(text_a, text_b\), found text in 1 column \(text\); choose a task",
        ),
        ("mnist", "sst2", r"expected text in 1 column \(text\), found image in 1 column \(image\)"),
        ("qasc", "sst2", r"expected text in 1 column \(text\), found choice in 2 columns"),
    ],
)
def test_rows_that_do_not_fit_the_question_are_refused(task: str, source: str, message: str) -> None:
    with pytest.raises(InputError, match=f"'{task}' cannot be asked as '{source}': .*{message}"):
        load_task(f"{task} as {source}")


def test_a_masked_prompt_takes_110_tokens_of_the_first_text() -> None:
    """P1's setting; a smaller limit stays, and other prompts and texts have none."""
    asked = load_task("imdb as sst2")
    assert asked.prompts["masked"].template.text == "{text|limit:110} It was {mask}."
    assert asked.prompts["masked"].max_length == 128
    assert asked.prompts["causal"] == load_task("sst2").prompts["causal"]
    pair = load_task("mnli_01 as qnli").prompts["masked"]
    assert pair.template.text == "{text_a|strip_punct|limit:110}? {mask}, {text_b|lower_first}"
    assert pair.max_length == 128
    shorter = asked_as(load_task("imdb"), load_task("sst2"), first_text=7).prompts["masked"]
    assert shorter.limited("text", 9).template.parts[0].limit == 7  # type: ignore[union-attr]


def test_two_tasks_are_named_in_one_word(tmp_path: Path, films: Task) -> None:
    meals(tmp_path, "bad", "good")
    spelled = load_task(f"{tmp_path / 'meals.toml'} as {tmp_path / 'films.toml'}")
    assert spelled == asked_as(load_task(tmp_path / "meals.toml"), films)
    (tmp_path / "bad as good.toml").write_text(SOURCE, encoding="utf-8")
    assert load_task(tmp_path / "bad as good.toml").name == "films"
    with pytest.raises(InputError, match="no task 'sst': did you mean 'sst2'"):
        load_task("imdb as sst")


def test_other_tasks_have_the_definition_that_they_had() -> None:
    assert not {"asked_as", "meanings"} & {*definition(load_task("sst2")), *definition(load_task("sst2"))["data"]}
    assert definition(load_task("imdb as sst2"))["asked_as"] == "sst2"
    assert definition(load_task("imdb as sst2")) != definition(load_task("imdb as mpqa"))


@needs_data
@pytest.mark.parametrize(("source", "other"), PAIRS)
def test_every_pair_of_the_paper_asks_the_sources_question_with_the_right_labels(source: str, other: str) -> None:
    """Row by row: the texts are the other task's, and a label means what it meant there."""
    means = {
        "entailment": "entailment",
        "contradiction": "not_entailment",
        "negative": "negative",
        "positive": "positive",
    }
    own, theirs, asked = load_task(source), load_task(other), load_task(f"{other} as {source}")
    rows, before = read_examples(asked, "test"), read_examples(theirs, "test")
    assert len(rows) == len(before) > 200
    assert list(rows.columns.values()) == list(before.columns.values())
    named = [rows.label_names[label] for label in rows.labels]
    assert named == [means[before.label_names[label]] for label in before.labels]
    assert len(Counter(named)) == 2
    assert asked.describe == own.describe
    assert [prompt.words for prompt in asked.prompts.values()] == [prompt.words for prompt in own.prompts.values()]
