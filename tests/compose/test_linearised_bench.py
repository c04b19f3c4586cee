"""A bench that reads linearised scores: the library's post-hoc scores, linear in the scale, the base left alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from skillgraft import Graft, Region
from skillgraft.compose.bench import Workbench, weighted_sum
from skillgraft.measure.predict import predict
from skillgraft.training.linearised import post_hoc
from tests.compose.two_skills import _one_thread, bench, bits, pair, place, tasks  # noqa: F401

# pytest passes fixtures by their names, which are imported here
# ruff: noqa: F811


def test_a_linearised_bench_says_what_post_hoc_scores_say(pair: dict[str, Graft], bench: Workbench) -> None:
    linear = replace(bench, scorer=post_hoc)
    before = bits(bench)
    both = weighted_sum(list(pair.values()), (0.5, -1.0))
    model = bench.opened.model
    for readout, rows, (task, said) in zip(bench.opened.readouts, bench.rows, linear.said(both).items(), strict=True):
        wanted = predict(model, readout, rows, scores=post_hoc(model, readout, both.without_heads()))
        np.testing.assert_array_equal(said.scores, wanted.scores)
        assert task == readout.task.name
    assert bits(bench) == before
    nothing = both & Region(both.region.scope, {})
    assert linear.said() == linear.said(nothing) == bench.said()


def test_its_scores_are_linear_in_the_scale(pair: dict[str, Graft], bench: Workbench) -> None:
    linear = replace(bench, scorer=post_hoc)
    base, half, whole = (linear.said(scale * pair["films"])["films"].scores for scale in (0.0, 0.5, 1.0))
    np.testing.assert_allclose(half - base, 0.5 * (whole - base), atol=1e-4)
    assert not np.allclose(bench.said(pair["films"])["films"].scores, whole, atol=1e-2), (
        "the model itself is not linear"
    )
