import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from skillgraft.tasks import Examples


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
