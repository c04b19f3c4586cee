from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillgraft.errors import InputError
from skillgraft.tasks import Examples, Task, training_split
from skillgraft.tasks import data as splits

from .making import CHOICES, REVIEWS, make_task


def rows(*counts: int, prefix: str = "row") -> list[dict[str, Any]]:
    """Different texts, `counts[label]` of each label, mixed."""
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    order = np.random.default_rng(7).permutation(len(labels))
    return [{"text": f"{prefix} {i}", "label": labels[i]} for i in order]


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return make_task(tmp_path, train=rows(20, 30), test=rows(40, 60))


def texts(examples: Examples) -> set[str]:
    return set(examples.columns["text"])


@given(shots=st.integers(1, 20), seed=st.integers(0, 2**40))
def test_law_k_shot(tmp_path_factory: pytest.TempPathFactory, shots: int, seed: int) -> None:
    task = _shared(tmp_path_factory)
    split = training_split(task, shots=shots, seed=seed)
    again = training_split(task, shots=shots, seed=seed)
    assert split.train.class_counts == {"bad": shots, "good": shots}
    assert split.validation.class_counts == {"bad": min(shots, 20 - shots), "good": min(shots, 30 - shots)}
    assert not texts(split.train) & texts(split.validation)
    assert (split.train.digest, split.validation.digest) == (again.train.digest, again.validation.digest)
    if shots > 1:
        assert texts(training_split(task, shots=shots - 1, seed=seed).train) < texts(split.train)


def _shared(factory: pytest.TempPathFactory) -> Task:
    folder = factory.getbasetemp() / "shared-k-shot"
    folder.mkdir(exist_ok=True)
    return make_task(folder, train=rows(20, 30))


@given(sizes=st.lists(st.integers(0, 500), min_size=1, max_size=6), part=st.floats(0, 1))
def test_law_proportional(sizes: list[int], part: float) -> None:
    total = int(sum(sizes) * part)
    shares = splits._proportional(np.array(sizes, dtype=np.int64), total)
    assert shares.sum() == total
    for size, share in zip(sizes, shares.tolist(), strict=True):
        assert share <= size
        assert abs(share - size * total / max(1, sum(sizes))) < 1


def test_seeds_differ(task: Task) -> None:
    assert texts(training_split(task, shots=5, seed=0).train) != texts(training_split(task, shots=5, seed=1).train)


def test_a_sample_keeps_the_proportions(task: Task) -> None:
    split = training_split(task, rows=10, seed=3)
    assert split.train.class_counts == {"bad": 4, "good": 6}
    assert split.validation.class_counts == {"bad": 4, "good": 6}
    assert not texts(split.train) & texts(split.validation)


def test_a_samples_validation_is_what_is_left(task: Task) -> None:
    split = training_split(task, rows=45)
    assert (len(split.train), len(split.validation)) == (45, 5)
    assert len(training_split(task, rows=50).validation) == 0


def test_a_samples_validation_has_at_most_a_thousand_rows(tmp_path: Path) -> None:
    split = training_split(make_task(tmp_path, train=rows(1500, 1500)), rows=1200)
    assert (len(split.train), len(split.validation)) == (1200, 1000)


def test_all_rows_and_a_tenth_validates(task: Task) -> None:
    split = training_split(task)
    assert split.train.class_counts == {"bad": 18, "good": 27}
    assert split.validation.class_counts == {"bad": 2, "good": 3}


@pytest.mark.parametrize(("most", "expected"), [(5_000, 7), (3, 3)])
def test_a_tenth_is_exact_and_capped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, expected: int) -> None:
    monkeypatch.setattr(splits, "VALIDATION_MOST", most)  # 70 × 0.1 is above 7 in floating point
    split = training_split(make_task(tmp_path, train=rows(35, 35)))
    assert (len(split.train), len(split.validation)) == (70 - expected, expected)


def test_one_row_trains(tmp_path: Path) -> None:
    split = training_split(make_task(tmp_path, train=rows(1, 0)))
    assert (len(split.train), len(split.validation)) == (1, 0)


WITH_VALIDATION = REVIEWS + 'validation = "validation.jsonl"\n'


def test_a_validation_source_is_always_used(tmp_path: Path) -> None:
    task = make_task(tmp_path, WITH_VALIDATION, train=rows(9, 9), validation=rows(3, 8, prefix="other"))
    few = training_split(task, shots=5)
    assert few.validation.class_counts == {"bad": 3, "good": 5}
    assert all(text.startswith("other") for text in texts(few.validation))
    every = training_split(task)
    assert (len(every.train), len(every.validation)) == (18, 11)
    some = training_split(task, rows=6)
    assert (len(some.train), len(some.validation)) == (6, 6)


def test_the_same_text_never_trains_and_validates(tmp_path: Path) -> None:
    train = [{"text": "Same  text", "label": 0}, {"text": "other", "label": 1}]
    validation = [{"text": "same text ", "label": 0}, {"text": "new", "label": 0}, {"text": "fresh", "label": 1}]
    split = training_split(make_task(tmp_path, WITH_VALIDATION, train=train, validation=validation))
    assert texts(split.validation) == {"new", "fresh"}
    assert split.duplicates == 1


def test_duplicates_within_the_training_rows(tmp_path: Path) -> None:
    train = [{"text": f"text {i % 10}", "label": i % 2} for i in range(40)]  # every text four times
    split = training_split(make_task(tmp_path, train=train), shots=3)
    assert not texts(split.train) & texts(split.validation)
    assert split.duplicates > 0
    assert max(Counter(split.train.labels.tolist()).values()) == 3


def test_of_merged_sources_none_trains_on_what_another_tests_on(tmp_path: Path) -> None:
    """One source's own rows are left as they are: whoever made it decided."""
    train, test = [{"text": f"text {i}", "label": i % 2} for i in range(8)], [{"text": "TEXT 3", "label": 1}]
    alone = make_task(tmp_path, train=train, test=test)
    merged = make_task(tmp_path, REVIEWS.replace('"train.jsonl"', '["train.jsonl", "more.jsonl"]'), more=rows(2, 2))
    assert len(splits.training_pool(alone)) == 8
    assert "text 3" in texts(splits.training_pool(alone))
    assert len(splits.training_pool(merged)) == 8 + 4 - 1
    assert "text 3" not in texts(splits.training_pool(merged))


def test_equal_images_count_as_duplicates() -> None:
    image = np.ones((1, 2, 2), np.uint8)
    pool = Examples("t", {"image": np.concatenate([image, 1 - image])}, np.array([0, 1]), ("x", "y"))
    assert splits._without_shared(pool, pool.select([0])).labels.tolist() == [1]


def test_multiple_choice_has_no_classes(tmp_path: Path) -> None:
    train = [{"question": f"q{i}", "choices": ["x", "y"], "label": i % 2} for i in range(10)]
    task = make_task(tmp_path, CHOICES, train=train)
    split = training_split(task, shots=7)
    assert (len(split.train), len(split.validation)) == (7, 3)
    with pytest.raises(InputError, match="shots=11, but the training split of task 'gaps' has 10 rows"):
        training_split(task, shots=11)


def test_test_rows(task: Task) -> None:
    assert len(splits.test_split(task)) == 100
    sample = splits.test_split(task, rows=10, seed=4)
    assert sample.class_counts == {"bad": 4, "good": 6}
    assert sample.digest == splits.test_split(task, rows=10, seed=4).digest
    assert splits.test_split(task, rows=1000).digest == splits.test_split(task).digest


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            {"shots": 21},
            "shots=21, but the class 'bad' of task 'reviews' has 20 rows; the largest usable number of shots is 20",
        ),
        ({"shots": 0}, "shots must be at least 1; found 0"),
        ({"rows": 51}, "task 'reviews' has 50 training rows; rows=51 is more than that"),
        ({"rows": -1}, "rows must be at least 1; found -1"),
        ({"seed": -1}, "seed must be at least 0; found -1"),
        ({"shots": 1, "rows": 1}, "exclude each other"),
    ],
)
def test_what_is_refused(task: Task, request_: dict[str, int], message: str) -> None:
    with pytest.raises(InputError) as caught:
        training_split(task, **request_)
    assert message in str(caught.value)
