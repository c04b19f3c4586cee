"""The starter tasks: rows written for this project, whose test rows cannot be answered from the words of the training rows."""

import re
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import skillgraft
from skillgraft.tasks import load_task, read_examples
from skillgraft.tasks.task import SplitName

STARTER = ("questions", "reviews", "tickets", "urgency")
SPLITS: tuple[SplitName, ...] = ("train", "test")
FEWEST_ROWS, FEWEST_TEST_ROWS = 300, 100
WORDS_LEAST, WORDS_MOST = 5, 30
SHARED_MOST = 0.2  # of a class's content words in the test rows, those that its training rows have too
BAG_OF_WORDS_MOST = 0.6  # accuracy
ALIKE_MOST = 0.7  # Jaccard similarity of two rows' words
PACKAGE = Path(skillgraft.__file__).parent
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


@cache
def rows(name: str, split: SplitName) -> tuple[tuple[str, str], ...]:
    """(text, label name) of each row."""
    examples = read_examples(load_task(name), split)
    names = [examples.label_names[label] for label in examples.labels]
    return tuple(zip((row["text"] for row in examples.rows()), names, strict=True))


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", re.sub(r"['’]", "", text.lower()))


def content_words(name: str, split: SplitName, label: str) -> set[str]:
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    every = {word for text, its in rows(name, split) if its == label for word in words(text)}
    return every.difference(ENGLISH_STOP_WORDS)


def similarity(a: set[str], b: set[str]) -> float:
    return len(a & b) / len(a | b)


@pytest.fixture(autouse=True)
def no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The starter tasks need nothing but the package."""
    monkeypatch.delenv("SKILLGRAFT_DATA", raising=False)


@pytest.mark.parametrize("name", STARTER)
def test_all_of_it_lies_in_the_package(name: str) -> None:
    task = load_task(name)
    assert task.hub is None
    assert {"masked", "causal"} <= set(task.prompts)
    sources = [Path(source) for split in SPLITS for source in task.data.sources(split)]
    folder = PACKAGE / "tasks" / "catalogue" / "starter"
    assert sources == [folder / f"{name}-{split}.jsonl" for split in SPLITS]


@pytest.mark.parametrize("name", STARTER)
def test_enough_rows_of_every_label_in_equal_numbers(name: str) -> None:
    assert len(rows(name, "train")) + len(rows(name, "test")) >= FEWEST_ROWS
    assert len(rows(name, "test")) >= FEWEST_TEST_ROWS
    for split in SPLITS:
        counts = Counter(label for _, label in rows(name, split))
        assert set(counts) == set(load_task(name).labels)
        assert len(set(counts.values())) == 1, counts


@pytest.mark.parametrize("name", STARTER)
def test_texts_are_short_sentences(name: str) -> None:
    for text, _ in (*rows(name, "train"), *rows(name, "test")):
        assert WORDS_LEAST <= len(text.split()) <= WORDS_MOST, text
        assert text == " ".join(text.split()), text
        assert text[0].isupper(), text


@pytest.mark.parametrize("name", STARTER)
def test_no_text_twice(name: str) -> None:
    texts = Counter(" ".join(words(text)) for split in SPLITS for text, _ in rows(name, split))
    assert [text for text, count in texts.items() if count > 1] == []


@pytest.mark.parametrize("name", STARTER)
def test_no_test_row_is_close_to_a_training_row(name: str) -> None:
    seen = [(text, set(words(text))) for text, _ in rows(name, "train")]
    close = [
        (text, other)
        for text, _ in rows(name, "test")
        for other, its in seen
        if similarity(set(words(text)), its) > ALIKE_MOST
    ]
    assert close == []


@pytest.mark.parametrize("name", STARTER)
def test_few_content_words_of_a_class_are_in_both_splits(name: str) -> None:
    for label in load_task(name).labels:
        train, test = (content_words(name, split, label) for split in SPLITS)
        share = len(train & test) / len(test)
        assert share <= SHARED_MOST, f"{label}: {share:.2f}, {sorted(train & test)}"


@pytest.mark.parametrize("name", STARTER)
def test_a_bag_of_words_does_not_solve_it(name: str) -> None:
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    (train, train_labels), (test, test_labels) = (zip(*rows(name, split), strict=True) for split in SPLITS)
    model = make_pipeline(CountVectorizer(), LogisticRegression(max_iter=1000)).fit(train, train_labels)
    assert model.score(test, test_labels) <= BAG_OF_WORDS_MOST


def test_end_marks_do_not_give_the_kind_of_message_away() -> None:
    assert [text for split in SPLITS for text, _ in rows("questions", split) if text[-1] in ".?!"] == []


@pytest.mark.skipif(not PYPROJECT.exists(), reason="an installed package has no pyproject.toml")
def test_the_files_are_declared_as_package_data() -> None:
    patterns = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["tool"]["setuptools"]["package-data"]["skillgraft"]
    declared = {path for pattern in patterns for path in PACKAGE.glob(pattern)}
    there = {path for path in (PACKAGE / "tasks" / "catalogue").rglob("*") if path.is_file()}
    assert there <= declared
