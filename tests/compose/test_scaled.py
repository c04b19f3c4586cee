"""base + Σ scale · graft: the model itself with the sum on it, or its linearisation, which is the library's post-hoc scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from skillgraft import Graft, Region
from skillgraft.compose import scales as scaled
from skillgraft.compose.scales import Scaled, grid_search, weighted_sum
from skillgraft.errors import InputError
from skillgraft.predictions.predict import predict
from skillgraft.task_model import TaskModel
from skillgraft.training.linearised import Tangent, post_hoc
from tests.compose.two_skills import _one_thread, bits, opened, pair, place, tasks  # noqa: F401

# pytest passes fixtures by their names, which are imported here
# ruff: noqa: F811


def test_linearised_scores_are_the_post_hoc_scores(pair: dict[str, Graft], opened: TaskModel) -> None:
    before = bits(opened)
    both = weighted_sum(list(pair.values()), (0.5, -1.0))
    along = Scaled(opened, tuple(pair.values()), linear=True)
    of_the_sum, of_the_parts = Scaled(opened, (both,), linear=True).predict(1.0), along.predict(0.5, -1.0)
    assert list(of_the_sum) == list(of_the_parts) == list(opened.tasks)
    for task in opened.tasks:
        readout, rows = opened.rows.readout(task), opened.rows.encoded(task)
        wanted = predict(opened.model, readout, rows, scores=post_hoc(opened.model, readout, both.without_heads()))
        np.testing.assert_allclose(of_the_sum[task].scores, wanted.scores, atol=1e-5)
        np.testing.assert_allclose(of_the_parts[task].scores, wanted.scores, atol=1e-5)
    assert bits(opened) == before
    nothing = both & Region(both.region.scope, {})
    assert Scaled(opened, (nothing,), linear=True).predict(1.0) == along.predict(0.0, 0.0) == opened.predict()


def test_linearised_scores_are_linear_in_the_scale(pair: dict[str, Graft], opened: TaskModel) -> None:
    def scores(scale: float) -> Any:
        return Scaled(opened, (scale * pair["films"],), linear=True).predict(1.0)["films"].scores

    base, half, whole = scores(0.0), scores(0.5), scores(1.0)
    np.testing.assert_allclose(half - base, 0.5 * (whole - base), atol=1e-4)
    assert not np.allclose(opened.predict(pair["films"])["films"].scores, whole, atol=1e-2), (
        "the model itself is not linear"
    )


def test_one_pass_over_each_task_whatever_the_number_of_scales(
    pair: dict[str, Graft], opened: TaskModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[str] = []
    tangent = scaled.tangent

    def counted(model: TaskModel, task: str, grafts: Mapping[str, Graft], **rest: Any) -> Tangent:
        passes.append(task)
        return tangent(model, task, grafts, **rest)

    monkeypatch.setattr(scaled, "tangent", counted)
    found = grid_search(Scaled(opened, (pair["films"],), linear=True))
    assert len(found.points) == 21
    assert passes == list(opened.tasks)


@pytest.mark.parametrize("linear", [True, False])
def test_every_graft_takes_one_scale(linear: bool, pair: dict[str, Graft], opened: TaskModel) -> None:
    with pytest.raises(InputError, match="1 grafts take one scale each, found 2 scales"):
        Scaled(opened, (pair["films"],), linear=linear).predict(0.5, 0.5)


def test_the_model_itself_answers_as_with_the_sum_on_it(pair: dict[str, Graft], opened: TaskModel) -> None:
    both = weighted_sum(list(pair.values()), (0.5, -1.0))
    along = Scaled(opened, tuple(pair.values()))
    assert along.predict(0.5, -1.0, tasks=["films"]) == opened.predict(both, tasks=["films"])
