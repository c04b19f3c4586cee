"""Grafts and predictions of a model that is not on the CPU: the same bits as there, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import skillgraft
from skillgraft.errors import AlreadyApplied, WrongBase
from skillgraft.live.grafted import fingerprint_of, graft_between, live_model, tensors_of
from skillgraft.predictions.predict import predict
from skillgraft.tasks import Examples
from skillgraft.training.linearised import post_hoc, tangent
from skillgraft.values.region import Region, Scope
from tests.devices.models import batch_for, built, moved
from tests.devices.running import aligned, bits, is_whole_on
from tests.live.test_grafted import BIAS, FORMATS, HEAD, OUTPUT, QUERY, Tiny, graft_on
from tests.readouts import making
from tests.readouts.making import open_readouts
from tests.training.toys import ToyReadout, opened_toy, tiny_bert, toy_rows

Where = torch.device
TOKENS = torch.tensor([[1, 2, 3]])


def a_graft(model: nn.Module, **rest: Any) -> skillgraft.Graft:
    return graft_on(model, {QUERY: [0, 1, 8], BIAS: [2], OUTPUT: [4]}, **rest)


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_graft_goes_on_and_comes_off_bit_for_bit(device: Where, dtype: torch.dtype) -> None:
    ours, theirs = Tiny().to(dtype), Tiny().to(dtype)
    graft, base = a_graft(theirs), bits(theirs)
    ours.to(device)
    for _ in range(2):
        with skillgraft.grafted(theirs, graft), skillgraft.grafted(ours, graft):
            assert bits(ours) == bits(theirs) != base
            assert torch.equal(ours(TOKENS.to(device)).cpu(), theirs(TOKENS))
        assert bits(ours) == base
    assert is_whole_on(ours, device)


def test_it_comes_off_after_an_exception_and_in_inference_mode(device: Where) -> None:
    graft, model = a_graft(Tiny()), Tiny().to(device)
    base = bits(model)
    with pytest.raises(ZeroDivisionError), torch.inference_mode(), skillgraft.grafted(model, graft):
        _ = 1 / 0
    assert bits(model) == base


def test_heads_and_switching(device: Where) -> None:
    head = {HEAD: np.full((2, 3), 7, np.float32)}
    first, second = graft_on(Tiny(), {QUERY: [0]}, heads=head), 2.0 * a_graft(Tiny())
    model = Tiny().to(device)
    base, live = bits(model), live_model(model)
    live.switch(first)
    assert model.classifier.weight.eq(7).all()
    live.switch(second)
    expected = Tiny()
    with skillgraft.grafted(expected, second):
        assert bits(model) == bits(expected)
    live.switch(None)
    assert bits(model) == base


@pytest.mark.parametrize("there", [True, False], ids=["to the device", "to the CPU"])
def test_a_model_may_move_while_a_graft_is_on(device: Where, there: bool) -> None:
    start, end = (torch.device("cpu"), device) if there else (device, torch.device("cpu"))
    model, graft = Tiny().to(start), a_graft(Tiny())
    base = bits(model)
    with skillgraft.grafted(model, graft):
        model.to(end)
    assert bits(model) == base
    with skillgraft.grafted(model, graft):
        assert bits(model) != base
    assert is_whole_on(model, end)


def test_wrong_bases_are_refused_there_too(device: Where) -> None:
    model, graft = Tiny().to(device), a_graft(Tiny())
    with skillgraft.grafted(model, graft), pytest.raises(AlreadyApplied):
        live_model(model).put_on(graft.with_info(task="the same numbers"))
    with torch.no_grad():
        model.bert["encoder"]["layer"][0]["query"].weight[0, 0] += 1
    with pytest.raises(WrongBase, match="1 of 3 sites hold other numbers"):
        live_model(model).put_on(graft)


def test_backward_through_a_graph_from_before_the_graft_raises(device: Where) -> None:
    model, graft = Tiny().to(device), a_graft(Tiny())
    loss = model(TOKENS.to(device)).square().sum()
    with skillgraft.grafted(model, graft), pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5"])
def test_grafts_between_models_on_the_device(device: Where, name: str) -> None:
    """Tied parameters included: names, fingerprint and graft are those of the same models on the CPU."""
    base, tuned = built(name), built(name)
    with torch.no_grad():
        for parameter in tuned.parameters():
            parameter.add_(0.01)
    scope = Scope.select("layers", tensors_of(base).shapes)
    expected = graft_between(base, tuned, Region.full(scope))
    logits = tuned(**batch_for(name)).logits
    base.to(device), tuned.to(device)
    assert fingerprint_of(base) == expected.base_fingerprint
    assert graft_between(base, tuned, Region.full(scope)) == expected
    whole = graft_between(base, tuned, Region.full(Scope.select("all", tensors_of(base).shapes)))
    with skillgraft.grafted(base, whole):
        assert torch.equal(base(**moved(batch_for(name), device)).logits.cpu(), logits)


def test_predictions(device: Where) -> None:
    rows = toy_rows(13)
    expected = predict(tiny_bert(), ToyReadout(), rows, batch_size=4).scores
    assert predict(tiny_bert().to(device), ToyReadout(), rows, batch_size=4).scores.tobytes() == expected.tobytes()


Maker = Callable[[Path], Path]
READOUTS: dict[str, tuple[Maker, str, Callable[[], Examples], str]] = {
    "masked": (making.bert, making.SENTIMENT, making.films, "masked"),
    "masked pairs": (making.roberta, making.PAIRS, making.pairs, "masked"),
    "causal": (making.gpt2, making.SENTIMENT, making.films, "causal"),
    "causal choices": (making.llama, making.GAPS, making.gaps, "causal"),
    "choice": (making.gpt2, making.SENTIMENT, making.films, "choice"),
    "choice seq2seq": (making.t5, making.GAPS, making.gaps, "choice"),
    "linear": (making.bert, making.SENTIMENT, making.films, "linear"),
    "linear images": (making.vit, making.DIGITS, making.digits, "linear"),
    "text-head": (making.sentence_encoder, making.SENTIMENT, making.films, "text-head"),
    "text-head choices": (making.sentence_encoder, making.GAPS, making.gaps, "text-head"),
    "text-head images": (making.clip, making.DIGITS, making.digits, "text-head"),
}


@pytest.mark.parametrize("name", READOUTS)
def test_every_readout(device: Where, name: str, tmp_path: Path) -> None:
    """Rows encoded by the model on the device are those of the CPU, and so are the scores."""
    make, text, examples, readout = READOUTS[name]
    opened = open_readouts(make(tmp_path / "model"), [making.task_of(text)], readout=readout)
    model, read = aligned(opened.model), opened.readouts[0]
    expected = predict(model, read, read.encode(examples()), batch_size=2).scores
    model.to(device)
    assert predict(model, read, read.encode(examples()), batch_size=2).scores.tobytes() == expected.tobytes()


def test_the_linearised_model(device: Where) -> None:
    ours, theirs, rows = tiny_bert().to(device), tiny_bert(), toy_rows(7)
    graft = graft_on(theirs, {"encoder.layer.0.attention.self.query.weight": [0, 5, 77]}, step=0.5)
    read = ToyReadout()
    for model in (theirs, ours):
        found = predict(model, read, rows, scores=post_hoc(model, read, graft)).scores
        slopes = tangent(opened_toy(model, rows), "toy", {"graft": graft}).slopes["graft"]
        if model is theirs:
            expected = (found, slopes)
    assert found.tobytes() == expected[0].tobytes()
    assert slopes.tobytes() == expected[1].tobytes()
    assert slopes.any()
