"""The Fisher diagonal against a brute-force loop, on every shape of transformer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from skillgraft.live import parameter_names
from skillgraft.localize import squares
from skillgraft.localize.fisher import fisher_diagonal
from skillgraft.localize.squares import Squares
from skillgraft.names import in_layers
from skillgraft.readouts import Opened, open_readouts
from skillgraft.readouts.readout import Encoded, Readout
from skillgraft.tasks import Examples
from tests.readouts import making


def brute(
    model: nn.Module, readout: Readout, rows: list[Encoded], parameters: dict[str, nn.Parameter], *, true: bool = False
) -> dict[str, Tensor]:
    """One example at a time, the expectation over labels in full: Σ_y p(y|x) (∂ log p(y|x)/∂θ)²; or the true label alone."""
    model.eval()
    result = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in parameters.items()}
    for row in rows:
        logs = torch.log_softmax(readout.scores(model, readout.collate([row])), -1)[0]
        for label in [row.label] if true else torch.isfinite(logs).nonzero().flatten().tolist():
            found = torch.autograd.grad(logs[label], list(parameters.values()), retain_graph=True, allow_unused=True)
            weight = 1.0 if true else logs[label].exp().detach()
            for name, gradient in zip(parameters, found, strict=True):
                if gradient is not None:
                    result[name] += weight * gradient.double().square()
    return {name: total / len(rows) for name, total in result.items()}


def albert(folder: Path) -> Path:
    config = transformers.AlbertConfig(
        vocab_size=len(making.word_pieces()), hidden_size=16, embedding_size=8, num_hidden_layers=3,
        num_attention_heads=2, intermediate_size=24, max_position_embeddings=64,
    )  # fmt: skip
    return making.save(folder, making.made("AlbertForMaskedLM", config), making.word_pieces())


CASES: dict[str, tuple[Any, str, Callable[[], Examples]]] = {
    "bert": (making.sentence_encoder, making.SENTIMENT, making.films),
    "gpt2": (making.gpt2, making.SENTIMENT, making.films),
    "llama": (making.llama, making.SENTIMENT, making.films),
    "t5": (making.t5, making.GAPS, making.gaps),
    "gpt2 choices": (making.gpt2, making.GAPS, making.gaps),
    "clip": (making.clip, making.DIGITS, making.digits),
    "albert": (albert, making.SENTIMENT, making.films),
}


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Opened, list[Encoded], dict[str, nn.Parameter]]:
    make, text, examples = CASES[request.param]
    opened = open_readouts(make(tmp_path / "model"), [making.task_of(text)], dtype=torch.float64)
    parameters = {name: p for name, p in parameter_names(opened.model).items() if in_layers(name)}
    return opened, opened.readouts[0].encode(examples()), parameters


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    largest = max(float(total.max()) for total in expected.values())
    assert largest > 0
    for name, total in expected.items():
        torch.testing.assert_close(found[name].double(), total, rtol=1e-5, atol=1e-9 * largest, msg=name)


def test_true_labels_equal_the_brute_force_loop(case: Any) -> None:
    opened, rows, parameters = case
    readout = opened.readouts[0]
    expected = brute(opened.model, readout, rows, parameters, true=True)
    assert_same(fisher_diagonal(opened.model, readout, rows, parameters, labels="true", batch_size=3), expected)


def test_the_mean_over_sampled_labels_approaches_the_full_expectation(tmp_path: Path) -> None:
    opened = open_readouts(making.sentence_encoder(tmp_path / "m"), [making.task_of(making.SENTIMENT)])
    readout = opened.readouts[0]
    rows = readout.encode(making.films())[:3]
    parameters = {name: p for name, p in parameter_names(opened.model).items() if in_layers(name)}
    expected = brute(opened.model, readout, rows, parameters)
    found = fisher_diagonal(opened.model, readout, rows, parameters, samples=300)
    name = max(expected, key=lambda each: float(expected[each].sum()))
    assert float(found[name].sum()) == pytest.approx(float(expected[name].sum()), rel=0.15)


def test_it_is_the_same_under_a_seed_whatever_the_batches(case: Any) -> None:
    opened, rows, parameters = case
    one = fisher_diagonal(opened.model, opened.readouts[0], rows, parameters, samples=2, seed=5, batch_size=1)
    many = fisher_diagonal(opened.model, opened.readouts[0], rows, parameters, samples=2, seed=5, batch_size=8)
    assert_same(many, {name: total.double() for name, total in one.items()})


def test_the_model_comes_back_as_it_was(tmp_path: Path) -> None:
    opened = open_readouts(making.sentence_encoder(tmp_path / "m"), [making.task_of(making.SENTIMENT)])
    parameters = {name: p for name, p in parameter_names(opened.model).items() if in_layers(name)}
    opened.model.train()
    before = {name: p.detach().clone() for name, p in opened.model.named_parameters()}
    fisher_diagonal(opened.model, opened.readouts[0], opened.readouts[0].encode(making.films()), parameters)
    assert opened.model.training
    assert all(p.requires_grad and p.grad is None for p in opened.model.parameters())
    assert all(torch.equal(p, before[name]) for name, p in opened.model.named_parameters())
    assert not any(module._forward_hooks for module in opened.model.modules())


def test_the_size_of_a_tile_does_not_change_the_result(case: Any, monkeypatch: Any) -> None:
    opened, rows, parameters = case
    whole = fisher_diagonal(opened.model, opened.readouts[0], rows, parameters, labels="true")
    monkeypatch.setattr(squares, "TILE_BYTES", 512)
    assert_same(
        fisher_diagonal(opened.model, opened.readouts[0], rows, parameters, labels="true"),
        {name: total.double() for name, total in whole.items()},
    )


def test_which_parameters_go_one_by_one(case: Any, request: pytest.FixtureRequest) -> None:
    """Known layers never do; T5's position bias does, and ALBERT's shared layers are found out on the way."""
    opened, _, parameters = case
    slow = Squares(opened.model, parameters).slow
    if "t5" in request.node.name:
        assert slow
        assert all("relative_attention_bias" in name for name in slow)
    else:
        assert slow == []
