"""The Fisher diagonal of models whose rows do not stand first: brute force is the truth, whatever the layers do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from skillgraft.live.grafted import parameter_names
from skillgraft.readouts.readout import Encoded, Readout
from skillgraft.regions import fisher
from skillgraft.regions import fisher as row_check
from skillgraft.regions.fisher import Agreement, agreements, drop_disagreeing, fisher_diagonal
from skillgraft.regions.squares import Squares
from tests.readouts import making
from tests.readouts.making import open_readouts
from tests.regions.batch_layouts import (
    EVEN,
    ODD,
    TOYS,
    TRANSFORMERS,
    ChoicesFirst,
    Experts,
    OnlyForSome,
    Plain,
    RowsFirst,
    RowsSecond,
    SharedPositions,
    Shuffled,
    Toy,
    TwiceForSome,
    pixel_rows,
    token_rows,
)
from tests.regions.test_fisher import CASES, assert_same, brute


def built(make: Callable[[], nn.Module], dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return make().to(dtype).eval()


def checked(model: nn.Module, readout: Readout, rows: Sequence[Encoded]) -> Squares:
    """What is left to the rules after two rows were compared."""
    squares = Squares(model, dict(model.named_parameters()))
    with fisher._evaluating(model):
        drop_disagreeing(
            lambda some: readout.scores(model, readout.collate(some)), fisher._to_compare(rows, 4), squares
        )
    return squares


@pytest.mark.parametrize("lengths", [ODD, EVEN, (5,), (4, 4)], ids=str)
@pytest.mark.parametrize("toy", TOYS)
def test_toys_equal_the_brute_force_loop(toy: type[Toy], lengths: tuple[int, ...]) -> None:
    model, rows = built(toy), token_rows(lengths)
    parameters = dict(model.named_parameters())
    expected = brute(model, Plain(), rows, parameters, true=True)
    for batch_size in (1, 2, 4, 8):
        found = fisher_diagonal(model, Plain(), rows, parameters, labels="true", batch_size=batch_size)
        assert_same(found, expected)


@pytest.mark.parametrize("lengths", [ODD, EVEN], ids=["odd", "even"])
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers_equal_the_brute_force_loop(name: str, lengths: tuple[int, ...]) -> None:
    """In float32: experts do not run in float64."""
    model = built(TRANSFORMERS[name], torch.float32)
    rows = pixel_rows() if name == "swin" else token_rows(lengths)
    readout, parameters = Plain(left=name == "xlnet"), dict(model.named_parameters())
    found = fisher_diagonal(model, readout, rows, parameters, labels="true", batch_size=4)
    expected = brute(model, readout, rows, parameters, true=True)
    largest = max(float(total.max()) for total in expected.values())
    for key, total in expected.items():
        torch.testing.assert_close(found[key].double(), total, rtol=1e-3, atol=1e-6 * largest, msg=key)


@pytest.mark.parametrize(
    ("toy", "layer"),
    [(RowsSecond, "odd"), (Shuffled, "odd"), (Experts, "odd"), (SharedPositions, "odd"), (ChoicesFirst, "odd")],
)
def test_only_the_layer_that_is_odd_goes_one_by_one(toy: type[Toy], layer: str) -> None:
    slow = checked(built(toy), Plain(), token_rows(EVEN)).slow
    assert {name.split(".")[0] for name in slow} == {"words", layer}


def test_shapes_that_fit_prove_nothing() -> None:
    """Rows second, as many places as rows twice over: only the numbers tell."""
    model, rows = built(RowsSecond), fisher._to_compare(token_rows(EVEN), 4)
    squares = Squares(model, dict(model.named_parameters()))
    with fisher._evaluating(model):
        found = list(agreements(lambda some: Plain().scores(model, Plain().collate(some)), rows, squares))
    assert model.odd in [site.module for site in squares.sites]
    for site, agreement in found:
        assert agreement.holds == (site.module is not model.odd)


def test_what_is_in_order_stays_fast() -> None:
    """Choices side by side, flattened tokens, windows of an image, routers, the layers around positions and experts."""
    assert checked(built(RowsFirst), Plain(), token_rows()).slow == ["words.weight"]
    swin = checked(built(TRANSFORMERS["swin"]), Plain(), pixel_rows()).slow
    assert all("embeddings" in name or "relative_position_bias_table" in name for name in swin)
    deberta = checked(built(TRANSFORMERS["deberta-v2"]), Plain(), token_rows()).slow
    assert not any("attention.output" in name or "intermediate" in name for name in deberta)
    mixtral = checked(built(TRANSFORMERS["mixtral"], torch.float32), Plain(), token_rows()).slow
    assert all("experts" in name or "gate" in name or "embed" in name for name in mixtral)
    gemma = checked(built(TRANSFORMERS["gemma"], torch.float32), Plain(), token_rows()).slow
    assert all("embed" in name for name in gemma)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_no_layer_is_dropped_for_its_rounding(case: str, dtype: torch.dtype, tmp_path: Any) -> None:
    make, text, examples = CASES[case]
    opened = open_readouts(make(tmp_path / "m"), [making.task_of(text)], dtype=dtype)
    readout, parameters = opened.readouts[0], parameter_names(opened.model)
    squares = Squares(opened.model, parameters)
    rows = fisher._to_compare(readout.encode(examples()), 4)
    with fisher._evaluating(opened.model):
        found = list(agreements(lambda some: readout.scores(opened.model, readout.collate(some)), rows, squares))
    assert all(agreement.holds for _, agreement in found)
    assert squares.sites or case == "albert"


@pytest.mark.parametrize("seed", range(25))
def test_experts_are_right_whatever_they_get(seed: int) -> None:
    """Equally many tokens from each row, now and then: the flattened tokens are still not taken for rows."""
    torch.manual_seed(seed)
    model, rows = Experts().double(), token_rows((3, 2, 2, 1, 2, 3))
    parameters = dict(model.named_parameters())
    found = fisher_diagonal(model, Plain(), rows, parameters, labels="true", batch_size=3)
    assert_same(found, brute(model, Plain(), rows, parameters, true=True))


@pytest.mark.parametrize("toy", [TwiceForSome, OnlyForSome])
def test_a_layer_that_turns_out_to_be_odd_later_starts_again(toy: type[Toy]) -> None:
    """The rows that are compared do not show it, and batches before the one that does were added up."""
    model, rows = built(toy), token_rows((6, 6, 4, 4, 3, 2))
    assert "odd.weight" not in checked(model, Plain(), rows).slow
    parameters = dict(model.named_parameters())
    found = fisher_diagonal(model, Plain(), rows, parameters, labels="true", batch_size=2)
    assert_same(found, brute(model, Plain(), rows, parameters, true=True))


def test_the_check_is_what_makes_it_right(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = built(RowsSecond), token_rows((4, 4, 4, 4))
    parameters = dict(model.named_parameters())
    expected = brute(model, Plain(), rows, parameters, true=True)
    monkeypatch.setattr(row_check.Agreement, "holds", True)
    found = fisher_diagonal(model, Plain(), rows, parameters, labels="true")
    off = (found["odd.weight"] - expected["odd.weight"]).abs().sum() / expected["odd.weight"].sum()
    assert off > 0.1


def test_an_agreement_by_hand() -> None:
    assert Agreement(difference=0.1, size=1.0, tolerance=0.1, rounding=0.0).holds
    assert not Agreement(difference=0.11, size=1.0, tolerance=0.1, rounding=0.0).holds
    assert Agreement(difference=0.11, size=1.0, tolerance=0.1, rounding=0.01).holds
    assert not Agreement(difference=float("nan"), size=1.0, tolerance=0.1, rounding=0.0).holds
    assert not Agreement(difference=1.0, size=0.0, tolerance=0.1, rounding=0.0).is_empty
