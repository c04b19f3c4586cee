"""A bench that reads linearised scores: the library's post-hoc scores, linear in the scale, the base left alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from skillgraft import Graft, Region
from skillgraft.compose.bench import Workbench, weighted_sum
from skillgraft.compose.scales import search_scale
from skillgraft.errors import InputError
from skillgraft.measure.predict import predict
from skillgraft.training.linearised import Tangent, post_hoc
from tests.compose.two_skills import _one_thread, bench, bits, pair, place, tasks  # noqa: F401

# pytest passes fixtures by their names, which are imported here
# ruff: noqa: F811


def test_a_linearised_bench_says_what_post_hoc_scores_say(pair: dict[str, Graft], bench: Workbench) -> None:
    linear = replace(bench, linear=True)
    before = bits(bench)
    both = weighted_sum(list(pair.values()), (0.5, -1.0))
    model = bench.opened.model
    alike = linear.along(*pair.values()).said(0.5, -1.0)
    for readout, rows, (task, said) in zip(bench.opened.readouts, bench.rows, linear.said(both).items(), strict=True):
        wanted = predict(model, readout, rows, scores=post_hoc(model, readout, both.without_heads()))
        np.testing.assert_allclose(said.scores, wanted.scores, atol=1e-5)
        np.testing.assert_allclose(alike[task].scores, wanted.scores, atol=1e-5)
        assert task == readout.task.name
    assert bits(bench) == before
    nothing = both & Region(both.region.scope, {})
    assert linear.said() == linear.said(nothing) == linear.along(*pair.values()).said(0.0, 0.0) == bench.said()


def test_its_scores_are_linear_in_the_scale(pair: dict[str, Graft], bench: Workbench) -> None:
    linear = replace(bench, linear=True)
    base, half, whole = (linear.said(scale * pair["films"])["films"].scores for scale in (0.0, 0.5, 1.0))
    np.testing.assert_allclose(half - base, 0.5 * (whole - base), atol=1e-4)
    assert not np.allclose(bench.said(pair["films"])["films"].scores, whole, atol=1e-2), (
        "the model itself is not linear"
    )


def test_a_way_passes_over_each_task_once_whatever_the_number_of_scales(
    pair: dict[str, Graft], bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[str] = []
    tangent = Workbench.tangent

    def counted(self: Workbench, task: str, grafts: Sequence[Graft], *, head: Graft | None = None) -> Tangent:
        passes.append(task)
        return tangent(self, task, grafts, head=head)

    monkeypatch.setattr(Workbench, "tangent", counted)
    found = search_scale(replace(bench, linear=True), pair["films"])
    assert len(found.points) == 21
    assert passes == list(bench.tasks)


@pytest.mark.parametrize("linear", [True, False])
def test_a_way_takes_one_scale_for_each_graft(linear: bool, pair: dict[str, Graft], bench: Workbench) -> None:
    with pytest.raises(InputError, match="along 1 grafts takes one scale for each, found 2"):
        replace(bench, linear=linear).along(pair["films"]).said(0.5, 0.5)


def test_the_model_itself_says_along_a_way_what_it_says_with_the_sum_on_it(
    pair: dict[str, Graft], bench: Workbench
) -> None:
    both = weighted_sum(list(pair.values()), (0.5, -1.0))
    assert bench.along(*pair.values()).said(0.5, -1.0, tasks=["films"]) == bench.said(both, tasks=["films"])
