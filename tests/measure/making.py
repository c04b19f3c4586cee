"""Predictions for the tests: with chosen probabilities, chosen answers, or anything that hypothesis can think of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from skillgraft.measure import Predictions


def with_probabilities(rows: Sequence[Sequence[float]], labels: Sequence[int], **words: object) -> Predictions:
    """Predictions whose softmax is close to these rows (scores are float32)."""
    return Predictions(np.log(np.array(rows)), labels, **{"task": "toy", **words})


def answering(answers: Sequence[int], labels: Sequence[int], *, classes: int = 2, **words: object) -> Predictions:
    """Predictions that answer these classes."""
    return Predictions(3.0 * np.eye(classes)[list(answers)], labels, **{"task": "toy", **words})


def random_predictions(rows: int, classes: int, *, seed: int = 0, **words: object) -> Predictions:
    """Scores that know something about the labels."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(classes, size=rows)
    scores = generator.normal(size=(rows, classes)) + 1.5 * np.eye(classes)[labels]
    return Predictions(scores, labels, **{"task": "toy", **words})


@st.composite
def predictions(draw: st.DrawFn, *, classes: int | None = None, padded: bool = False) -> Predictions:
    """Any predictions of 1–30 rows and 2–5 classes; with `padded`, rows may lack their last choices."""
    size = classes or draw(st.integers(2, 5))
    finite = st.floats(-50, 50, width=32)
    rows, labels = [], []
    for _ in range(draw(st.integers(1, 30))):
        kept = draw(st.integers(1, size)) if padded else size
        rows.append([draw(finite) for _ in range(kept)] + [-np.inf] * (size - kept))
        labels.append(draw(st.integers(0, kept - 1)))
    metric = draw(st.sampled_from(["accuracy", "f1"])) if size == 2 else "accuracy"
    names = draw(st.sampled_from([(), tuple(f"label {i}" for i in range(size))]))
    made_by = draw(st.dictionaries(st.text(), st.text(), max_size=3))
    return Predictions(rows, labels, task=draw(st.text(min_size=1)), metric=metric, label_names=names, made_by=made_by)
