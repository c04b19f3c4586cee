"""Predicting leaves a model as it was: every module in its own mode."""

from __future__ import annotations

import pytest
from torch import nn

from skillgraft.predictions.predict import evaluating, predict
from tests.training.toys import ToyReadout, tiny_bert, toy_rows


def mixed_bert() -> nn.Module:
    """In training mode but for one layer, as people freeze dropout in a part of a model."""
    model = tiny_bert(dropout=0.5).train()
    model.encoder.layer[0].eval()
    return model


def modes(model: nn.Module) -> dict[str, bool]:
    return {name: module.training for name, module in model.named_modules()}


def test_every_module_gets_its_own_mode_back() -> None:
    model = mixed_bert()
    before = modes(model)
    assert set(before.values()) == {True, False}
    one, two = (predict(model, ToyReadout(), toy_rows(6)).scores.tolist() for _ in range(2))
    assert one == two, "no dropout while it predicts"
    assert modes(model) == before


def test_also_after_an_exception() -> None:
    model = mixed_bert()
    before = modes(model)

    def fail(*_: object) -> None:
        raise KeyError

    with pytest.raises(KeyError):
        predict(model, ToyReadout(), toy_rows(6), scores=fail)
    assert modes(model) == before


def test_inside_nothing_trains() -> None:
    model = mixed_bert()
    with evaluating(model):
        assert set(modes(model).values()) == {False}
