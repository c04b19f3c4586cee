from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skillgraft.errors import FormatError, InputError, RunError
from skillgraft.measure import Predictions
from skillgraft.predictions.predictions import same_rows
from tests.measure.making import answering, predictions, random_predictions

FILES = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)


def header(**changes: Any) -> np.ndarray:
    words = {"format": "skillgraft-predictions-1", "task": "t", "metric": "accuracy", "label_names": [], "made_by": {}}
    return np.frombuffer(json.dumps({**words, **changes}).encode(), np.uint8)


def write_npz(path: Path, **changes: Any) -> Path:
    arrays = {"header": header(), "scores": np.zeros((2, 2), np.float32), "labels": np.zeros(2, np.int64), **changes}
    with path.open("wb") as file:
        np.savez(file, **{name: array for name, array in arrays.items() if array is not None})
    return path


def test_values_by_hand() -> None:
    answers = Predictions([[0.0, np.log(3.0)], [5.0, 5.0]], [1, 1], task="sst2")
    np.testing.assert_allclose(answers.probabilities, [[0.25, 0.75], [0.5, 0.5]], atol=1e-7)
    np.testing.assert_allclose(answers.log_probabilities, np.log(answers.probabilities))
    assert answers.predicted.tolist() == [1, 0]  # a tie goes to the first class
    np.testing.assert_allclose(answers.confidence, [0.75, 0.5], atol=1e-7)
    assert answers.hits.tolist() == [True, False]
    assert (len(answers), answers.classes, answers.scores.dtype, answers.labels.dtype) == (2, 2, np.float32, np.int64)


def test_a_missing_choice_has_no_probability_and_gives_no_nan() -> None:
    answers = Predictions([[0.0, 0.0, -np.inf], [1.0, -np.inf, -np.inf]], [1, 0], task="copa")
    np.testing.assert_allclose(answers.probabilities, [[0.5, 0.5, 0], [1, 0, 0]])
    assert answers.confidence.tolist() == [0.5, 1.0]


def test_huge_scores_do_not_overflow() -> None:
    answers = Predictions([[3e38, -3e38]], [1], task="toy")
    assert answers.probabilities.tolist() == [[1.0, 0.0]]
    assert np.isfinite(answers.log_probabilities).all()


def test_is_frozen_all_the_way_down() -> None:
    given_scores = np.zeros((1, 2), np.float32)
    answers = Predictions(given_scores, [0], task="toy", made_by={"model": "base"})
    given_scores[0, 0] = 9
    assert answers.scores[0, 0] == 0
    for array in (answers.scores, answers.labels, answers.probabilities, answers.predicted, answers.confidence):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(TypeError):
        answers.made_by["model"] = "tuned"  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        answers.task = "other"  # type: ignore[misc]


def test_equality_sees_every_field() -> None:
    answers = random_predictions(5, 2)
    changes: list[dict[str, Any]] = [
        {"scores": answers.scores + 1},
        {"labels": 1 - answers.labels},
        {"task": "other"},
        {"metric": "f1"},
        {"label_names": ("a", "b")},
        {"made_by": {"a": "b"}},
    ]
    assert answers == dataclasses.replace(answers)
    assert all(answers != dataclasses.replace(answers, **change) for change in changes)
    assert answers != "something else"


@pytest.mark.parametrize(
    ("scores", "labels", "words", "message"),
    [
        ([[0.0, np.nan], [0, 0]], [0, 0], {}, "1 of 2 rows have NaN.*row 0"),
        ([[0.0, 0], [0, np.inf]], [0, 0], {}, r"1 of 2 rows have a score of \+inf.*row 1"),
        ([[0.0, 1e300]], [0], {}, r"a score of \+inf"),
        ([[-np.inf, 0.0]], [1], {}, "padding stands at the end"),
        ([[-np.inf, -np.inf]], [0], {}, "label whose score is padding"),
        ([[0.0, -np.inf]], [1], {}, "label whose score is padding"),
        ([[0.0, 0], [0, 0], [0, 0]], [0, 2, -1], {}, "2 of 3 rows have a label outside 0 … 1 .*row 1"),
        ([[0.0, 0]], [0.0], {}, "labels must be whole numbers, found dtype float64"),
        ([[0.0, 0]], [0, 1], {}, r"labels must have the shape \(1,\)"),
        ([0.0, 1.0], [0, 1], {}, "rows ≥ 1, classes ≥ 2"),
        (np.zeros((0, 2)), np.zeros(0, int), {}, r"found \(0, 2\)"),
        ([[0.0]], [0], {}, r"found \(1, 1\)"),
        ([[0.0, 0]], [0], {"label_names": ("a",)}, "2 classes need as many label_names .*found 1"),
        ([[0.0, 0]], [0], {"label_names": ("a", "a")}, "label_names must differ"),
        ([[0.0, 0]], [0], {"metric": "acuracy"}, "did you mean 'accuracy'"),
        ([[0.0, 0, 0]], [0], {"metric": "f1"}, "metric f1 needs 2 classes .*found 3"),
        ([[0.0, 0]], [0], {"task": ""}, "task must be a name"),
        ([[0.0, 0]], [0], {"made_by": {"seed": 1}}, "strings only"),
    ],
)
def test_wrong_values_are_refused(scores: Any, labels: Any, words: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Predictions(scores, labels, **{"task": "toy", **words})


@FILES
@given(answers=predictions(padded=True))
def test_load_of_save_is_the_same(answers: Predictions, tmp_path: Path) -> None:
    path = tmp_path / "answers.npz"
    assert answers.save(path) == path
    assert Predictions.load(path) == answers
    assert os.listdir(tmp_path) == ["answers.npz"]


def test_same_predictions_give_the_same_bytes(tmp_path: Path) -> None:
    answers = random_predictions(20, 3, made_by={"a": "1", "b": "2"})
    other = dataclasses.replace(answers, made_by={"b": "2", "a": "1"})
    assert answers.save(tmp_path / "one").read_bytes() == other.save(tmp_path / "two").read_bytes()


def test_save_replaces_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = random_predictions(3, 2).save(tmp_path / "answers.npz")
    before = path.read_bytes()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"answers\.npz could not be written: the disk is full"):
        random_predictions(9, 2).save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["answers.npz"]


def test_save_makes_the_folder_that_it_needs(tmp_path: Path) -> None:
    answers = random_predictions(3, 2)
    assert Predictions.load(answers.save(tmp_path / "new" / "answers.npz")) == answers


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"answers\.npz: expected a predictions file .*no such file"):
        Predictions.load(tmp_path / "answers.npz")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": np.array([[{}, {}]], dtype=object)}, "allow_pickle"),
        ({"scores": np.array([[0, np.nan], [0, 0]], np.float32)}, "NaN"),
        ({"scores": np.zeros((2, 2), np.float64)}, "array scores must have dtype float32, found float64"),
        ({"labels": np.zeros(2, np.int32)}, "array labels must have dtype int64, found int32"),
        ({"labels": np.array([0, 2], np.int64)}, "label outside 0 … 1"),
        ({"labels": np.zeros(3, np.int64)}, r"labels must have the shape \(2,\)"),
        ({"labels": None}, "expected the arrays header, labels, scores, found header, scores"),
        ({"extra": np.zeros(1)}, "found extra, header"),
        ({"header": np.frombuffer(b"{", np.uint8)}, "header is not JSON"),
        ({"header": np.frombuffer(b"[" * 100_000, np.uint8)}, "header is not JSON"),
        ({"header": np.frombuffer(b"[]", np.uint8)}, "header must have the keys"),
        ({"header": header(format="skillgraft-predictions-9")}, "format must be skillgraft-predictions-1"),
        ({"header": header(label_names="ab")}, "label_names must be a list"),
        ({"header": header(label_names=[["a"], ["b"]])}, "strings only"),
        ({"header": header(made_by=[])}, "made_by a mapping"),
        ({"header": header(metric=["f1"])}, "unknown task metric"),
        ({"header": header(task=None)}, "task must be a name"),
    ],
)
def test_corrupt_files_are_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write_npz(tmp_path / "bad.npz", **changes)
    with pytest.raises(FormatError, match=rf"bad\.npz: .*{message}"):
        Predictions.load(path)


def test_the_file_these_tests_corrupt_is_otherwise_sound(tmp_path: Path) -> None:
    assert Predictions.load(write_npz(tmp_path / "good.npz")).task == "t"


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"not an archive", b"\x80\x04K\x01."])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.npz"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"bad\.npz: not a readable predictions file"):
        Predictions.load(path)


def test_a_single_array_is_not_a_predictions_file(tmp_path: Path) -> None:
    with (tmp_path / "bad.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(FormatError, match="not a readable predictions file"):
        Predictions.load(tmp_path / "bad.npz")


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    whole = random_predictions(3, 2).save(tmp_path / "answers.npz").read_bytes()
    path = tmp_path / "cut.npz"
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(FormatError, match=r"cut\.npz"):
            Predictions.load(path)


@FILES
@given(place=st.floats(0, 1, exclude_max=True), change=st.integers(1, 255))
def test_an_altered_byte_is_refused_or_harmless(place: float, change: int, tmp_path: Path) -> None:
    answers = random_predictions(3, 2)
    path = answers.save(tmp_path / "answers.npz")
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= change
    path.write_bytes(bytes(content))
    with contextlib.suppress(FormatError):
        assert Predictions.load(path) == answers  # some bytes of an archive mean nothing, such as a file's date


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (answering([0, 1], [0, 0]), "1 of 2 labels differ, the first in row 1"),
        (answering([0, 1, 0], [0, 1, 0]), "found 2 and 3 rows"),
        (answering([0, 1], [0, 1], task="other"), "agree on task, found 'toy' and 'other'"),
        (answering([0, 1], [0, 1], metric="f1"), "agree on metric"),
        (answering([0, 1], [0, 1], label_names=("good", "bad")), "agree on label_names"),
    ],
)
def test_different_rows_are_refused(other: Predictions, message: str) -> None:
    first = answering([1, 1], [0, 1])
    same_rows(first, answering([0, 0], [0, 1]))
    with pytest.raises(InputError, match=message):
        same_rows(first, first, other)
