"""Post-hoc linearisation against central differences: one delta, scales, sums, choices, heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from skillgraft import Graft, Region, extract, grafted
from skillgraft.errors import InputError, WrongBase
from skillgraft.live.grafted import fingerprint_of, parameter_names, tensors_of
from skillgraft.measure.comparisons import distance_from_linear
from skillgraft.predictions.predict import predict
from skillgraft.predictions.predictions import Predictions
from skillgraft.tasks.data import Data
from skillgraft.training.finetune import finetune
from skillgraft.training.linearised import near_linearity, post_hoc, tangent
from skillgraft.values.region import Scope
from tests.readouts import making
from tests.readouts.making import Opened, open_readouts
from tests.training.test_finetune import QUICK

CASES: dict[str, Any] = {
    "bert": (making.sentence_encoder, making.SENTIMENT, making.films),
    "choices": (making.t5, making.GAPS, making.gaps),
}


@pytest.fixture(params=list(CASES))
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Opened, list[Any]]:
    make, text, examples = CASES[request.param]
    plain = open_readouts(make(tmp_path / "m"), [making.task_of(text)], dtype=torch.float64)
    opened = Opened(making.with_rows(plain.whole, examples()))
    return opened, list(opened.whole.rows.encoded(*opened.whole.tasks))


def a_graft(model: Any, seed: int, *, size: float = 0.01) -> Graft:
    """Every second entry of the layers, moved at random."""
    base = tensors_of(model)
    scope = Scope.select("layers", base.shapes)
    draw = np.random.default_rng(seed)
    region = Region(scope, {name: np.arange(seed % 2, np.prod(shape), 2) for name, shape in scope.shapes.items()})
    before = {name: base.flat(name)[at].copy() for name, at in region.sites.items()}
    after = {name: old + size * draw.normal(size=old.shape) for name, old in before.items()}
    return Graft(region, before, after, base_fingerprint=fingerprint_of(model))


def by_differences(opened: Opened, rows: list[Any], graft: Graft) -> Any:
    """f(θ0) + (f(θ0 + hδ) − f(θ0 − hδ)) / 2h, in float64."""
    readout, h = opened.readouts[0], 3e-3  # choices are scored in float32: a smaller step would drown in rounding
    batch = readout.collate(rows)

    def at(scale: float) -> Any:
        with torch.no_grad(), grafted(opened.model, scale * graft):
            return readout.scores(opened.model, batch)

    with torch.no_grad():
        base = readout.scores(opened.model, batch)
    slope = torch.where(torch.isneginf(base), 0.0, (at(h) - at(-h)) / (2 * h))
    return (base + slope).numpy()


def test_one_delta_a_scaled_one_and_a_sum(subject: Any) -> None:
    opened, rows = subject
    model, readout = opened.model, opened.readouts[0]
    g, h = a_graft(model, 0), a_graft(model, 2)
    for graft in (g, 0.3 * g, -g, 0.5 * g + h):
        found = predict(model, readout, rows, batch_size=2, scores=post_hoc(model, readout, graft)).scores
        np.testing.assert_allclose(found, by_differences(opened, rows, graft), rtol=1e-3, atol=1e-3)


def test_a_tangent_gives_every_scale_and_sum_without_a_model(subject: Any) -> None:
    opened, rows = subject
    model, readout = opened.model, opened.readouts[0]
    g, h = a_graft(model, 0), a_graft(model, 1)
    line = tangent(opened.whole, *opened.whole.tasks, {"g": g, "h": h}, batch_size=2)
    about = {"split": "validation", "readout": opened.name}
    assert line.at({}) == predict(model, readout, rows, batch_size=2, made_by=about)
    for scales in ({"g": 1.0}, {"h": -0.5}, {"g": 0.25, "h": 2.0}):
        moved = [scale * {"g": g, "h": h}[name] for name, scale in scales.items()]
        whole = moved[0] if len(moved) == 1 else moved[0] + moved[1]
        np.testing.assert_allclose(line.at(scales).scores, by_differences(opened, rows, whole), rtol=1e-3, atol=1e-3)
    with pytest.raises(InputError, match="no delta is called 'k'"):
        line.at({"k": 1.0})


def test_another_base_is_refused_and_the_model_is_left_alone(subject: Any) -> None:
    opened, _ = subject
    graft = a_graft(opened.model, 0)
    before = {name: array.copy() for name, array in tensors_of(opened.model).arrays.items()}
    post_hoc(opened.model, opened.readouts[0], graft)
    assert all((array == before[name]).all() for name, array in tensors_of(opened.model).arrays.items())
    name = next(iter(graft.region))
    with torch.no_grad():
        parameter_names(opened.model)[name].add_(1.0)
    with pytest.raises(WrongBase, match=f"in {name}"):
        post_hoc(opened.model, opened.readouts[0], graft)


def predictions(scores: Any) -> Predictions:
    return Predictions(scores, [0, 1], task="t")


def test_the_distance_by_hand() -> None:
    base = predictions([[0.0, 0.0], [0.0, 0.0]])
    own = predictions([[3.0, 0.0], [0.0, 4.0]])
    assert distance_from_linear(own, own, base=base).value == 0.0
    assert distance_from_linear(own, base, base=base).value == 1.0
    assert distance_from_linear(own, predictions([[3.0, 1.0], [0.0, 4.0]]), base=base).value == pytest.approx(1 / 5)
    nothing = distance_from_linear(base, base, base=base)
    assert nothing.value is None
    assert nothing.reason == "the delta changes no score"


def test_absent_choices_do_not_count() -> None:
    none = -np.inf
    base = predictions([[0.0, 0.0, none], [0.0, 0.0, 0.0]])
    own = predictions([[3.0, 0.0, none], [0.0, 4.0, 0.0]])
    assert distance_from_linear(own, base, base=base).value == 1.0


@pytest.mark.parametrize("readout", ["text-head", "linear"])
def test_near_linearity_of_a_fine_tune_shrinks_with_its_delta(readout: str, tmp_path: Path) -> None:
    """Halving the delta about halves the second-order rest relative to the first-order change."""
    base, task = making.sentence_encoder(tmp_path / "m"), making.write_films(tmp_path)
    plan, data = QUICK.with_changes(steps=20, lr=1e-3), Data(readout=readout, test_rows=20)
    finetune(base, [task], out=tmp_path / "tuned", plan=plan, data=data)
    graft = extract(base, tmp_path / "tuned")
    far, near = (near_linearity(base, scale * graft, task, data=data).value for scale in (1.0, 0.25))
    assert far is not None
    assert near is not None
    assert 0 < near < 0.5 * far
