from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillgraft.errors import DataError, InputError
from skillgraft.tasks import Examples, load_task, read_examples

from .making import CHOICES, REVIEWS, make_task, write_task


def make(texts: list[str], labels: list[int] | None = None) -> Examples:
    numbers = np.array(labels or [0] * len(texts), dtype=np.int64)
    return Examples("t", {"text": tuple(texts)}, numbers, ("bad", "good"))


def test_rows_and_selection() -> None:
    examples = make(["a", "b", "c"], [0, 1, 1])
    chosen = examples.select([2, 0])
    assert (len(examples), len(chosen)) == (3, 2)
    assert list(chosen.rows()) == [{"text": "c"}, {"text": "a"}]
    assert chosen.labels.tolist() == [1, 0]
    assert len(examples.select([])) == 0


def test_class_counts_name_empty_classes() -> None:
    assert make(["a", "b"], [0, 0]).class_counts == {"bad": 2, "good": 0}


def test_class_counts_of_multiple_choice() -> None:
    examples = Examples("t", {"question": ("p", "q")}, np.array([2, 0]))
    assert examples.class_counts == {"choice 0": 1, "choice 1": 0, "choice 2": 1}


def test_images_are_selected_as_one_array() -> None:
    images = np.arange(8, dtype=np.uint8).reshape(2, 2, 2)
    chosen = Examples("t", {"image": images}, np.array([0, 1]), ("x", "y")).select([1])
    assert np.array_equal(chosen.columns["image"], images[1:])


def test_digest_is_of_content_not_of_column_order() -> None:
    labels = np.array([0])
    one = Examples("t", {"a": ("x",), "b": ("y",)}, labels)
    assert one.digest == Examples("t", {"b": ("y",), "a": ("x",)}, labels.copy()).digest
    assert one.digest != Examples("t", {"a": ("y",), "b": ("x",)}, labels).digest
    assert one.digest != Examples("t", {"a": ("x",), "b": ("y",)}, np.array([1])).digest


def test_digest_sees_image_shape() -> None:
    flat = np.zeros((1, 2, 3), np.uint8)
    digests = {Examples("t", {"image": image}, np.array([0])).digest for image in (flat, flat.reshape(1, 3, 2))}
    assert len(digests) == 2


@given(st.lists(st.text(max_size=4), max_size=4), st.lists(st.text(max_size=4), max_size=4))
def test_law_equal_digest_means_equal_texts(one: list[str], two: list[str]) -> None:
    try:
        "".join(one + two).encode()
    except UnicodeEncodeError:
        return
    assert (make(one).digest == make(two).digest) == (one == two)


@pytest.mark.parametrize("cells", [["bad", "good"], [0, 1], ["0", "1"], [False, True], [0.0, 1.0]])
def test_a_label_is_a_name_or_a_number(tmp_path: Path, cells: list[Any]) -> None:
    task = make_task(tmp_path, train=[{"text": "a", "label": cell} for cell in cells])
    assert read_examples(task, "train").labels.tolist() == [0, 1]


def test_a_name_that_is_a_digit_beats_a_position(tmp_path: Path) -> None:
    text = REVIEWS.replace('["bad", "good"]', '["1", "0"]')
    task = make_task(tmp_path, text, train=[{"text": "a", "label": cell} for cell in ("1", "0", 1)])
    assert read_examples(task, "train").labels.tolist() == [0, 1, 1]


def test_ignored_labels_are_dropped_and_counted(tmp_path: Path) -> None:
    text = REVIEWS + 'data_labels = ["good", "meh", "bad"]\nignore_labels = ["meh", -1]\n'
    rows = [{"text": str(i), "label": label} for i, label in enumerate([0, 1, 2, -1, "meh", "bad"])]
    examples = read_examples(make_task(tmp_path, text, train=rows), "train")
    assert (examples.columns["text"], examples.labels.tolist()) == (("0", "2", "5"), [1, 0, 0])
    assert examples.ignored == 3


def test_nothing_left(tmp_path: Path) -> None:
    task = make_task(tmp_path, REVIEWS + "ignore_labels = [-1]\n", train=[{"text": "a", "label": -1}])
    with pytest.raises(DataError, match="all 1 rows have labels in 'ignore_labels'"):
        read_examples(task, "train")


def test_several_sources_are_concatenated(tmp_path: Path) -> None:
    text = REVIEWS.replace('"train.jsonl"', '["train.jsonl", "test.jsonl"]')
    task = make_task(tmp_path, text, train=[{"text": "a", "label": 0}], test=[{"text": "b", "label": 1}])
    examples = read_examples(task, "train")
    assert (examples.columns["text"], examples.labels.tolist()) == (("a", "b"), [0, 1])


def test_several_image_sources(tmp_path: Path) -> None:
    for name, size in (("a", 2), ("b", 2), ("c", 3)):
        np.savez(tmp_path / f"{name}.npz", images=np.zeros((1, size, size), np.uint8), labels=np.zeros(1, int))
    text = REVIEWS.replace('text = "text"', 'image = "image"').replace('"train.jsonl"', '["a.npz", "b.npz"]')
    same = read_examples(load_task(write_task(tmp_path, text)), "train")
    assert same.columns["image"].shape == (2, 2, 2)  # type: ignore[union-attr]
    mixed = read_examples(load_task(write_task(tmp_path, text.replace("b.npz", "c.npz"))), "train")
    assert [image.shape for image in mixed.columns["image"]] == [(2, 2), (3, 3)]


def test_renamed_and_joined_columns(tmp_path: Path) -> None:
    text = REVIEWS + 'columns = { text = ["title", "body"], label = "stars" }\n'
    task = make_task(tmp_path, text, train=[{"title": "Oh", "body": "no.", "stars": "bad"}])
    assert read_examples(task, "train").row(0) == {"text": "Oh no."}


def test_no_such_split(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="task 'reviews' has no 'validation' source"):
        read_examples(make_task(tmp_path), "validation")


def test_choices_in_one_column(tmp_path: Path) -> None:
    task = make_task(tmp_path, CHOICES, train=[{"question": "q", "choices": ["x", "y", "z"], "label": 2}])
    examples = read_examples(task, "train")
    assert (examples.row(0), examples.labels.tolist()) == ({"question": "q", "choices": ("x", "y", "z")}, [2])


def test_choices_in_several_columns_with_lettered_labels(tmp_path: Path) -> None:
    text = CHOICES.replace('"choices"', '["one", "two"]') + 'data_labels = ["1", "2"]\n'
    task = make_task(tmp_path, text, train=[{"question": "q", "one": "x", "two": "y", "label": "2"}])
    examples = read_examples(task, "train")
    assert (examples.row(0)["choices"], examples.labels.tolist()) == (("x", "y"), [1])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"choices": ["x"], "label": 0}, "column 'choices': expected a list of at least two texts; found ['x']"),
        ({"choices": "xy", "label": 0}, "expected a list of at least two texts"),
        ({"choices": ["x", 1], "label": 0}, "expected a list of at least two texts"),
        ({"choices": ["x", "\ud800"], "label": 0}, "line 2, column 'choices': half a character"),
        ({"choices": ["x", "y"], "label": 2}, "line 2, column 'label': the label says choice number 2 (from 0), but"),
        ({"choices": ["x", "y"], "label": 3}, "line 2, column 'label': unknown label 3"),
    ],
)
def test_wrong_choices(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    first = {"question": "p", "choices": ["x", "y", "z"], "label": 0}
    with pytest.raises(DataError) as caught:
        read_examples(make_task(tmp_path, CHOICES, train=[first, {"question": "q", **row}]), "train")
    assert message in str(caught.value)
