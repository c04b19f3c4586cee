"""The Fisher diagonal against a brute-force loop, on every shape of transformer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from skillgraft.errors import InputError, RunError
from skillgraft.live.grafted import parameter_names
from skillgraft.readouts.readout import Encoded, Readout
from skillgraft.regions import squares
from skillgraft.regions.fisher import fisher_diagonal
from skillgraft.regions.squares import Squares
from skillgraft.tasks import Examples
from skillgraft.values.names import in_layers
from tests.readouts import making
from tests.readouts.making import Opened, open_readouts


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
    next(iter(parameters.values())).grad = torch.ones_like(next(iter(parameters.values())))
    asleep = opened.model.get_submodule(
        next(name for name, _ in opened.model.named_modules() if "LayerNorm" in name)
    ).eval()
    before = {name: p.detach().clone() for name, p in opened.model.named_parameters()}
    fisher_diagonal(opened.model, opened.readouts[0], opened.readouts[0].encode(making.films()), parameters)
    assert [module for module in opened.model.modules() if not module.training] == [asleep]
    assert all(p.requires_grad for p in opened.model.parameters())
    assert [float(p.grad.mean()) for p in opened.model.parameters() if p.grad is not None] == [1.0]
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


def in_precision(folder: Path, case: str, dtype: torch.dtype) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """In a model of low precision, and in float32 with the same (rounded) weights."""
    make, text, examples = CASES[case]
    make(folder)
    low, high = (open_readouts(folder, [making.task_of(text)], dtype=each) for each in (dtype, torch.float32))
    high.model.load_state_dict({name: tensor.float() for name, tensor in low.model.state_dict().items()})
    found = []
    for opened in (low, high):
        parameters = {name: p for name, p in parameter_names(opened.model).items() if in_layers(name)}
        rows = opened.readouts[0].encode(examples())
        found.append(fisher_diagonal(opened.model, opened.readouts[0], rows, parameters, labels="true"))
    return found[0], found[1]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.1), (torch.float16, 0.02)], ids=str)
@pytest.mark.parametrize("case", [case for case in CASES if case != "t5"])
def test_low_precision_is_float32_of_the_same_weights_within_its_rounding(
    case: str, dtype: torch.dtype, tolerance: float, tmp_path: Path
) -> None:
    """Off by a tenth of a tensor's sensitivity in bfloat16 and a fiftieth in float16: activations are rounded at each layer.

    Key biases, whose true gradients are 0, stay far below all others. (T5's products without a scale lose more: see below.)
    """
    low, high = in_precision(tmp_path / "m", case, dtype)
    largest = max(float(total.mean()) for total in high.values())
    for name, total in high.items():
        assert low[name].dtype == torch.float32
        off = float((low[name] - total).abs().mean())
        assert off <= tolerance * float(total.mean()) + 1e-5 * largest, name


def test_t5_in_bfloat16_keeps_the_sensitivity_of_the_whole(tmp_path: Path) -> None:
    low, high = in_precision(tmp_path / "m", "t5", torch.bfloat16)
    off = sum(float((low[name] - total).abs().sum()) for name, total in high.items())
    assert off <= 0.2 * sum(float(total.sum()) for total in high.values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_products_and_sums_are_taken_in_float32(dtype: torch.dtype) -> None:
    """A thousand equal examples add up to a thousand times one: in bfloat16 a sum would stop growing at 256 times."""
    layer = nn.Linear(4, 4).to(dtype)
    entered, delta = (torch.linspace(0.1, 1, 4).repeat(1000, 1, 1).to(dtype) for _ in range(2))
    sums = {key: torch.zeros_like(p, dtype=torch.float32) for key, p in layer.named_parameters()}
    squares.LINEAR.add(layer, entered, delta, 1000, sums, {key: slice(None) for key in sums})
    one = delta[0].float().T @ entered[0].float()
    torch.testing.assert_close(sums["weight"], 1000 * one.square(), rtol=1e-4, atol=0.0)
    torch.testing.assert_close(sums["bias"], 1000 * delta[0, 0].float().square(), rtol=1e-4, atol=0.0)


def test_gradients_that_overflow_are_refused(tmp_path: Path) -> None:
    folder = making.sentence_encoder(tmp_path / "m")
    opened = open_readouts(folder, [making.task_of(making.SENTIMENT)], dtype=torch.float16)
    parameters = {name: p for name, p in parameter_names(opened.model).items() if in_layers(name)}
    with torch.no_grad():
        parameters["encoder.layer.1.output.LayerNorm.weight"].fill_(1e-3)
        parameters["encoder.layer.0.output.LayerNorm.weight"].fill_(3e4)
    rows = opened.readouts[0].encode(making.films())
    with pytest.raises(RunError, match=r"expected finite gradients.*torch.float16.*float32 or bfloat16"):
        fisher_diagonal(opened.model, opened.readouts[0], rows, parameters)


def test_no_rows_are_refused(tmp_path: Path) -> None:
    opened = open_readouts(making.sentence_encoder(tmp_path / "m"), [making.task_of(making.SENTIMENT)])
    with pytest.raises(InputError, match="'films': there are no rows"):
        fisher_diagonal(opened.model, opened.readouts[0], [], parameter_names(opened.model))


def test_a_scope_that_the_scores_do_not_run_has_no_sensitivity(tmp_path: Path) -> None:
    """The text tower of CLIP, whose text head is frozen."""
    opened = open_readouts(making.clip(tmp_path / "m"), [making.task_of(making.DIGITS)])
    parameters = {name: p for name, p in parameter_names(opened.model).items() if name.startswith("text_model.encoder")}
    found = fisher_diagonal(opened.model, opened.readouts[0], opened.readouts[0].encode(making.digits()), parameters)
    assert found
    assert not any(total.any() for total in found.values())


def test_which_parameters_go_one_by_one(case: Any, request: pytest.FixtureRequest) -> None:
    """Known layers never do; T5's position bias does, and ALBERT's shared layers are found out on the way."""
    opened, _, parameters = case
    slow = Squares(opened.model, parameters).slow
    if "t5" in request.node.name:
        assert slow
        assert all("relative_attention_bias" in name for name in slow)
    else:
        assert slow == []
