"""Predictions about completions: the file gives back what was saved, and what is not such a file is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillgraft.errors import FormatError, InputError
from skillgraft.measure import METRICS, Bootstrap, Predictions, agreement, interval, relative_gain, share_kept, summary
from skillgraft.predictions.completions import Completions
from skillgraft.predictions.predictions import classes_of, load_predictions, same_rows


def made(losses: Any = (4.0, 1.0), tokens: Any = (4, 2), hits: Any = (1, 2), **more: Any) -> Completions:
    rows = len(tokens)
    given_too = {"prompts": [f"p{row}" for row in range(rows)], "references": [f"r{row}" for row in range(rows)]}
    return Completions(losses, tokens, hits, **{**given_too, "task": "facts", **more})


TEXTS = st.text(st.characters(codec="utf-8"), max_size=5)


@settings(deadline=None, max_examples=25)  # each writes and reads a file
@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(1, 9), TEXTS, TEXTS), min_size=1, max_size=5), st.booleans())
def test_the_file_gives_back_what_was_saved(tmp_path_factory: pytest.TempPathFactory, rows: Any, written: bool) -> None:
    losses, tokens, prompts, texts = zip(*rows, strict=True)
    found = made(
        losses, tokens, [0] * len(rows), prompts=prompts, texts=texts if written else (), made_by={"model": "base"}
    )
    file = found.save(tmp_path_factory.mktemp("saved") / "some.npz")
    assert Completions.load(file) == found == load_predictions(file)
    assert found != made(losses, tokens, [0] * len(rows), prompts=prompts, task="other")


def test_either_kind_is_read_as_what_it_is(tmp_path: Path) -> None:
    classes = Predictions([[1.0, 0.0]], [0], task="sst2")
    assert load_predictions(classes.save(tmp_path / "classes.npz")) == classes
    with pytest.raises(FormatError, match="expected the arrays cut, header, hits"):
        Completions.load(tmp_path / "classes.npz")
    (tmp_path / "none.npz").write_bytes(b"nothing")
    with pytest.raises(FormatError, match="not a readable predictions file"):
        load_predictions(tmp_path / "none.npz")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"losses": (np.nan, 1.0)}, "not finite"),
        ({"hits": (5, 0)}, "from 0 to all of them hit"),
        ({"tokens": (0, 2), "hits": (0, 0)}, "at least one token"),
        ({"losses": (1.0,)}, "as many of each as the 2 rows"),
        ({"texts": ("a",)}, "as many of each"),
        ({"prompts": (1, 2)}, "strings only"),
        ({"metric": "accuracy"}, "unknown metric of completions"),
        ({"task": ""}, "task must be a name"),
    ],
)
def test_what_is_wrong_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        made(**changed)


def test_metrics_worked_out_by_hand() -> None:
    found = made(texts=[" r0 ", "so r1 it is"])
    assert METRICS["nll"](found) == METRICS["score"](found) == pytest.approx(5 / 6)
    assert METRICS["merit"](found) == pytest.approx(-5 / 6)
    assert METRICS["perplexity"](found) == pytest.approx(np.exp(5 / 6))
    assert METRICS["token_accuracy"](found) == 0.5
    assert (METRICS["exact_match"](found), METRICS["contains"](found)) == (0.5, 1.0)
    assert METRICS["callable"](made(texts=["a", "b"], values=[1.0, 0.5], metric="callable")) == 0.75


def test_what_a_metric_is_not_about_is_refused() -> None:
    with pytest.raises(InputError, match="no classes"):
        METRICS["accuracy"](made())
    with pytest.raises(InputError, match="no classes"):
        classes_of(made())
    with pytest.raises(InputError, match="has classes"):
        METRICS["exact_match"](Predictions([[1.0, 0.0]], [0], task="sst2"))
    with pytest.raises(InputError, match="nothing was generated"):
        METRICS["contains"](made())
    with pytest.raises(InputError, match="not of the same rows"):
        same_rows(made(), Predictions([[1.0, 0.0]], [0], task="sst2"))
    with pytest.raises(InputError, match="references differ"):
        same_rows(made(), made(references=["r0", "x"]))


def test_a_loss_has_a_relative_gain_and_no_share_kept() -> None:
    base, tuned, graft = made((8.0, 4.0)), made((2.0, 1.0)), made((4.0, 2.0))
    assert relative_gain(graft, tuned, base=base).value == pytest.approx(2 / 3)
    kept = share_kept(graft, tuned)
    assert (kept.value, kept.reason) == (None, "nll is a loss, which has only a relative gain")
    none = relative_gain(graft, made((7.95, 4.0)), base=base)
    assert (none.value, "improves nll by 0.008" in none.reason) == (None, True)


def test_exact_match_has_a_share_kept() -> None:
    tuned, graft = made(texts=["r0", "r1"]), made(texts=["r0", "x"])
    assert share_kept(graft, tuned, metric="exact_match").value == 0.5
    assert agreement(graft, tuned).value == 0.5
    assert agreement(made(), tuned).reason == "nothing was generated"
    found = summary(graft, base=made(texts=["x", "y"]), tuned=tuned)
    assert found["exact_match_kept"]["value"] == 0.5
    assert found["share_kept"]["value"] is None
    assert found["tokens"] == 6


def test_an_interval_resamples_rows_with_their_tokens() -> None:
    found = made(np.arange(1.0, 21.0), [1, 9] * 10, [0] * 20)
    drawn = interval(found, metric="nll", bootstrap=Bootstrap(resamples=300))
    assert drawn.low is not None
    assert drawn.high is not None
    assert drawn.low < METRICS["nll"](found) < drawn.high
