"""The next token: the likeliest at temperature 0, else drawn by the shares that temperature and nucleus leave."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from skillgraft.serve.sampling import Sampler, Sampling, choose

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0])


def drawn(count: int, **settings: float) -> Counter[int]:
    sampler = Sampler(Sampling(seed=0, **settings))  # type: ignore[arg-type]
    return Counter(sampler.draw(LOGITS) for _ in range(count))


def test_temperature_zero_takes_the_likeliest() -> None:
    rows = torch.stack([LOGITS, LOGITS.flip(0)])
    assert [choice.token for choice in choose(rows, [Sampler(Sampling(temperature=0.0))] * 2)] == [0, 3]


def test_shares_are_those_of_the_softmax() -> None:
    found = drawn(4000)
    for token, share in enumerate(torch.softmax(LOGITS, 0).tolist()):
        assert found[token] / 4000 == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize(
    ("top_p", "tokens"), [(0.0, {0}), (0.6, {0}), (0.7, {0, 1}), (0.95, {0, 1, 2}), (1.0, {0, 1, 2, 3})]
)
def test_the_nucleus_is_the_smallest_that_holds_top_p(top_p: float, tokens: set[int]) -> None:
    assert set(drawn(500, top_p=top_p)) == tokens


def test_a_tiny_temperature_overflows_nothing() -> None:
    assert set(drawn(20, temperature=1e-300)) == {0}


def test_a_seed_draws_the_same_whatever_else_is_in_the_batch() -> None:
    rows = torch.randn(5, 50, generator=torch.Generator().manual_seed(1))
    alone, among = Sampler(Sampling(seed=9)), Sampler(Sampling(seed=9))
    others = [Sampler(Sampling(seed=n)) for n in range(4)]
    for _ in range(5):
        assert choose(rows[:1], [alone])[0] == choose(rows, [among, *others])[0]


def test_logprobs_are_of_the_model_before_temperature() -> None:
    (found,) = choose(LOGITS.unsqueeze(0), [Sampler(Sampling(temperature=0.1, seed=0, top_logprobs=2))])
    expected = torch.log_softmax(LOGITS, 0).tolist()
    assert found.logprob == pytest.approx(expected[found.token])
    assert [token for token, _ in found.top] == [0, 1]
