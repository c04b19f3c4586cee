"""What a model answered about every row of a split: `Predictions`, the value that all measuring starts from.

A model runs once; every metric, comparison, interval and picture is a function of what is kept here.

    >>> predictions = Predictions([[2.0, 0.0], [0.0, 1.0]], [0, 0], task="sst2", label_names=("bad", "good"))
    >>> predictions.predicted.tolist(), [round(float(c), 3) for c in predictions.confidence]
    ([0, 1], [0.881, 0.731])

The file is an .npz of three arrays, `scores`, `labels` and `header` (JSON as bytes), never pickled, written to a
temporary file and renamed. Law: `Predictions.load(p.save(path)) == p`. Refused: NaN, +inf, a row or a label without a
score, a label outside the classes, names that do not fit the classes, and any file that is not all of this.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from skillgraft.errors import InputError, did_you_mean
from skillgraft.predictions.completions import Completions
from skillgraft.predictions.files import Spec, arrays_of, read_arrays, write_arrays

FloatArray = npt.NDArray[np.float64]
_Array = TypeVar("_Array", bound=npt.NDArray[Any])

TASK_METRICS = ("accuracy", "f1")
SPEC = Spec(
    "skillgraft-predictions-1",
    {"scores": np.dtype("<f4"), "labels": np.dtype("<i8")},
    ("label_names", "task", "metric", "made_by"),
)


@dataclass(frozen=True, eq=False)
class Predictions:
    """One split's scores (logits, float32, rows × classes) and its true labels (int64).

    Rows of a choice task that have fewer choices than others are padded at the end with −inf. `made_by` says in plain
    strings what made the scores (model, graft, split, seed …). The arrays are read-only.
    """

    scores: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    task: str = field(kw_only=True)
    metric: str = field(default="accuracy", kw_only=True)
    label_names: tuple[str, ...] = field(default=(), kw_only=True)
    made_by: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        with np.errstate(over="ignore"):  # a score too large for float32 turns into inf and is refused below
            scores = np.array(self.scores, dtype=np.float32)
        if np.asarray(self.labels).dtype.kind not in "iu":
            raise InputError(f"labels must be whole numbers, found dtype {np.asarray(self.labels).dtype}")
        labels = np.array(self.labels, dtype=np.int64)
        for name, array in (("scores", scores), ("labels", labels)):
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        object.__setattr__(self, "label_names", tuple(self.label_names))
        object.__setattr__(self, "made_by", MappingProxyType(dict(self.made_by)))
        _check_words(self)
        _check_shapes(self)
        _check_numbers(self)

    def __len__(self) -> int:
        return len(self.labels)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Predictions):
            return NotImplemented
        return (
            np.array_equal(self.scores, other.scores)
            and np.array_equal(self.labels, other.labels)
            and _words(self) == _words(other)
        )

    # Arrays have no cheap hash, and nothing needs predictions as keys.
    __hash__ = None  # type: ignore[assignment]

    @property
    def classes(self) -> int:
        """The number of classes, or of choices in the longest row."""
        return int(self.scores.shape[1])

    @cached_property
    def log_probabilities(self) -> FloatArray:
        """The float64 log-softmax of each row; −inf where a choice is missing."""
        return _read_only(self._shifted - np.log(np.exp(self._shifted).sum(axis=1, keepdims=True)))

    @cached_property
    def probabilities(self) -> FloatArray:
        """The float64 softmax of each row; exactly 0 where a choice is missing."""
        # Dividing, unlike exp(log p), puts equal scores exactly on the edge of a confidence bin.
        weights = np.exp(self._shifted)
        return _read_only(weights / weights.sum(axis=1, keepdims=True))

    @cached_property
    def predicted(self) -> npt.NDArray[np.int64]:
        """The class with the highest score; the first of them on a tie."""
        return _read_only(self.scores.argmax(axis=1).astype(np.int64))

    @cached_property
    def confidence(self) -> FloatArray:
        """The probability of the predicted class."""
        return _read_only(self.probabilities.max(axis=1))

    @cached_property
    def hits(self) -> npt.NDArray[np.bool_]:
        """Which rows are predicted rightly."""
        return _read_only(self.predicted == self.labels)

    @property
    def _shifted(self) -> FloatArray:
        """Scores less their row's largest, so that exp cannot overflow."""
        shifted: FloatArray = self.scores.astype(np.float64)
        shifted -= shifted.max(axis=1, keepdims=True)
        return shifted

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the file whole or not at all, and return its path as given (nothing is added to the name)."""
        return write_arrays(path, SPEC, {"scores": self.scores, "labels": self.labels}, _words(self))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Predictions:
        """Read what `save` wrote; everything is checked before any of it is used."""
        return read_arrays(path, SPEC, cls)


AnyPredictions = Predictions | Completions
# Kind of predictions → what must be equal in two of the same rows, besides the task and its metric.
_SAME: Mapping[type, tuple[str, ...]] = {Predictions: ("labels",), Completions: ("tokens", "references")}


def load_predictions(path: str | os.PathLike[str]) -> AnyPredictions:
    """A file of either kind."""
    is_completions = "losses" in arrays_of(Path(path))
    return Completions.load(path) if is_completions else Predictions.load(path)


def classes_of(predictions: AnyPredictions) -> Predictions:
    """Predictions of classes; completions, which have none, are refused."""
    if isinstance(predictions, Completions):
        raise InputError(
            f"task {predictions.task!r} has prompts that are completed and no classes: ask for a score of completions "
            "(nll, perplexity, token_accuracy, exact_match, contains)"
        )
    return predictions


def same_rows(first: AnyPredictions, *others: AnyPredictions) -> None:
    """Refuse predictions that are not about the same rows: a comparison row by row would mean nothing."""
    for other in others:
        if type(first) is not type(other):
            raise InputError("predictions of classes and of completions are not of the same rows")
        for what in ("task", "metric", *(("label_names",) if isinstance(first, Predictions) else ())):
            one, two = getattr(first, what), getattr(other, what)
            if one != two:
                raise InputError(f"predictions of the same rows must agree on {what}, found {one!r} and {two!r}")
        if len(first) != len(other):
            raise InputError(f"predictions must be of the same rows, found {len(first)} and {len(other)} rows")
        for what in _SAME[type(first)]:
            differ = np.asarray(getattr(first, what)) != np.asarray(getattr(other, what))
            if differ.any():
                found = f"{int(differ.sum())} of {len(differ)} {what} differ, the first in row {int(differ.argmax())}"
                raise InputError(
                    f"predictions must be of the same rows in the same order, but {found}; same split and seed?"
                )


def _read_only(array: _Array) -> _Array:
    array.flags.writeable = False
    return array


def _words(predictions: Predictions) -> dict[str, Any]:
    """Everything but the arrays, as the file's header holds it."""
    return {
        "task": predictions.task,
        "metric": predictions.metric,
        "label_names": list(predictions.label_names),
        "made_by": dict(predictions.made_by),
    }


def _check_words(predictions: Predictions) -> None:
    if not isinstance(predictions.task, str) or not predictions.task:
        raise InputError(f"task must be a name, found {predictions.task!r}")
    if predictions.metric not in TASK_METRICS:
        raise InputError(
            f"unknown task metric {predictions.metric!r}; {did_you_mean(str(predictions.metric), TASK_METRICS)}"
        )
    texts = [*predictions.label_names, *predictions.made_by, *predictions.made_by.values()]
    if not all(isinstance(text, str) for text in texts):
        raise InputError("label_names and made_by hold strings only; write numbers as text")
    if len(set(predictions.label_names)) != len(predictions.label_names):
        raise InputError(f"label_names must differ from each other, found {list(predictions.label_names)}")


def _check_shapes(predictions: Predictions) -> None:
    scores, labels = predictions.scores.shape, predictions.labels.shape
    if len(scores) != 2 or scores[0] < 1 or scores[1] < 2:
        raise InputError(f"scores must have the shape (rows ≥ 1, classes ≥ 2), found {scores}")
    if labels != scores[:1]:
        raise InputError(f"labels must have the shape ({scores[0]},), one for each row of scores, found {labels}")
    if predictions.label_names and len(predictions.label_names) != scores[1]:
        raise InputError(
            f"{scores[1]} classes need as many label_names (or none), found {len(predictions.label_names)}"
        )
    if predictions.metric == "f1" and scores[1] != 2:
        raise InputError(f"metric f1 needs 2 classes (it is the F1 of label 1), found {scores[1]}")


def _check_numbers(predictions: Predictions) -> None:
    scores, labels = predictions.scores, predictions.labels
    missing = np.isneginf(scores)
    _refuse_rows(np.isnan(scores).any(axis=1), "NaN among the scores; the model that made them diverged")
    _refuse_rows(np.isposinf(scores).any(axis=1), "a score of +inf; scores must fit into float32")
    _refuse_rows(
        (missing[:, :-1] & ~missing[:, 1:]).any(axis=1), "−inf before a finite score; padding stands at the end"
    )
    _refuse_rows((labels < 0) | (labels >= predictions.classes), f"a label outside 0 … {predictions.classes - 1}")
    _refuse_rows(missing[np.arange(len(labels)), labels], "a label whose score is padding (−inf)")


def _refuse_rows(bad: npt.ArrayLike, fault: str) -> None:
    rows = np.flatnonzero(bad)
    if len(rows):
        raise InputError(f"{len(rows)} of {np.size(bad)} rows have {fault} (the first is row {rows[0]})")
