"""The learned region: the closed-form gradient is autograd's, the model comes back bit for bit, budgets are exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from skillgraft.errors import InputError
from skillgraft.live.grafted import parameter_names, tensors_of
from skillgraft.opening.runtime import Runtime
from skillgraft.regions.learned import START, MaskPlan, SoftMask, learn
from skillgraft.regions.methods import METHODS, method
from skillgraft.regions.problem import Problem
from skillgraft.regions.ranking import Ranking, starts_of
from skillgraft.values.region import Region, Scope
from tests.regions.toys import (
    BlendedLoss,
    a_problem,
    a_start,
    bert_loss,
    bert_pair,
    bert_steps,
    net_problem,
    nothing,
    tuned_bert,
)
from tests.training.toys import tiny_bert


@pytest.fixture(scope="module")
def pair() -> tuple[nn.Module, Any]:
    return bert_pair()


@pytest.mark.parametrize("reference", ["base", "zero"])
@pytest.mark.parametrize("init", ["constant", "uniform"])
def test_one_step_is_autograds_gradient_of_the_mask(pair: Any, reference: Any, init: Any) -> None:
    """P1 eq. 3 and 4 written out with autograd, beside one `descend`; the L1 term included."""
    problem = a_problem(pair, reference=reference)
    start = a_start(problem)
    with problem.borrowed():
        soft = SoftMask(problem, start, init=init)
        free = {name: (s + torch.randn_like(s)).requires_grad_() for name, s in soft.s.items()}
        soft.s = {name: s.detach().clone() for name, s in free.items()}
        soft.blend()
        problem.backward(0)
        soft.descend(lr=10.0, l1=0.01)
        flips = {name: torch.from_numpy(start.mask(name)).view(-1) for name in free}
        gammas = {n: torch.where(flips[n], 1 - torch.sigmoid(s), torch.sigmoid(s)) for n, s in free.items()}
        blended = {n: problem.numbers(n)[0] + gamma * problem.delta(n) for n, gamma in gammas.items()}
        total = BlendedLoss(problem).at(blended) + 0.01 * sum(torch.sigmoid(s).sum() for s in free.values())
        total.backward()
    for name, s in free.items():
        torch.testing.assert_close(soft.s[name], s.detach() - 10.0 * s.grad, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("entries", [1, 25, 300])
def test_the_first_step_moves_the_last_entry_that_is_asked_for_by_a_quarter(pair: Any, entries: int) -> None:
    """The learning rate that is found, against the moves of S themselves; P1's constant is taken as it is."""
    problem = a_problem(pair)
    found = learn(problem, nothing(problem), MaskPlan(steps=1, entries=entries))
    moved = np.concatenate([(s - START).abs().double().numpy().reshape(-1) for s in found.soft.s.values()])
    assert np.sort(moved)[-entries] == pytest.approx(0.25, rel=1e-4)
    assert learn(problem, nothing(problem), MaskPlan(steps=1, lr=1e7)).lr == 1e7


# Networks tuned by steps of very different sizes: P1's constant fits some of them.
TUNED: dict[str, Callable[[], Problem]] = {
    "AdamW": lambda: a_problem((tiny_bert(), tensors_of(tuned_bert()))),
    "AdamW, small steps": lambda: a_problem((tiny_bert(), tensors_of(tuned_bert(lr=1e-4)))),
    "SGD": lambda: a_problem((tiny_bert(), tensors_of(tuned_bert(torch.optim.SGD, lr=0.1)))),
    "another network": net_problem,
}


@pytest.mark.parametrize("candidates", [None, 0.5])
@pytest.mark.parametrize("tuned", TUNED)
def test_with_the_rate_that_is_found_the_mask_reaches_the_size_that_is_asked_for(
    tuned: str, candidates: float | None
) -> None:
    problem = TUNED[tuned]()
    entries = problem.scope.size // 10
    found = learn(problem, nothing(problem), MaskPlan(steps=40, entries=entries, candidates=candidates))
    assert len(found.region) >= entries, f"rate {found.lr:.3g}"


def test_p1s_rate_does_not_reach_it_on_every_model() -> None:
    problem = TUNED["SGD"]()
    assert len(learn(problem, nothing(problem), MaskPlan(steps=40, lr=1e7)).region) < problem.scope.size // 10


def test_a_rate_cannot_be_found_for_more_entries_than_have_a_slope(pair: Any) -> None:
    problem = a_problem(pair)
    still = replace(problem, after=problem.before)
    with pytest.raises(InputError, match=r"fewer than 5 entries have a slope .* or give a learning rate \(lr=1e7\)"):
        learn(still, nothing(still), MaskPlan(steps=1, entries=5))


@pytest.mark.parametrize("reference", ["base", "zero"])
def test_the_model_is_given_back_bit_for_bit(pair: Any, reference: Any) -> None:
    before = {name: array.copy() for name, array in tensors_of(pair[0]).arrays.items()}
    wanted = {name: p.requires_grad for name, p in pair[0].named_parameters()}
    problem = a_problem(pair, reference=reference)
    learn(problem, a_start(problem), MaskPlan(steps=3))

    class Stop(Exception):
        pass

    def stop(*_: Any) -> None:
        raise Stop

    with pytest.raises(Stop):
        learn(problem, a_start(problem), MaskPlan(steps=3), runtime=Runtime(progress=stop))
    after = tensors_of(pair[0]).arrays
    assert all(after[name].tobytes() == array.tobytes() for name, array in before.items())
    assert {name: p.requires_grad for name, p in pair[0].named_parameters()} == wanted
    assert all(p.grad is None for p in pair[0].parameters())


def test_learning_lowers_the_loss_and_rounds_to_a_region_that_does(pair: Any) -> None:
    problem = a_problem(pair)
    start = METHODS["movement"](problem, a_start(problem), most=20).ranking.top(20)
    found = learn(problem, start, MaskPlan(steps=40, lr=1e5))
    assert found.losses[-1] < found.losses[0]
    with problem.borrowed():
        problem.put_on(found.region)
        grafted_loss = problem.backward(0)
        problem.put_on(Region(problem.scope, {}))
        assert grafted_loss < problem.backward(0)


def test_steps_are_compared_on_the_rounded_region(pair: Any) -> None:
    problem = a_problem(pair)
    given = iter([0.1, 0.9, 0.3, 0.2, 0.2])
    found = learn(problem, a_start(problem), MaskPlan(steps=10, lr=1e5, look_every=2), score=lambda: next(given))
    assert [look[0] for look in found.looks] == [2, 4, 6, 8, 10]
    assert len(found.region) == found.looks[1][1]
    stale = iter([0.9, 0.1, 0.1, 0.1])
    stopped = learn(problem, a_start(problem), MaskPlan(steps=50, look_every=2, patience=2), score=lambda: next(stale))
    assert len(stopped.losses) == 6


def test_budget_order_survivors_then_growth_then_movement(pair: Any) -> None:
    problem = a_problem(pair)
    start = a_start(problem, 20)
    soft = SoftMask(problem, start)
    name = next(iter(start.sites))
    soft.s[name][0] = 5.0  # a member of γ_base that was dropped: γ = 1 − σ(5)
    other = list(problem.scope.shapes)[6]
    soft.s[other][3] = -1.0  # grew much
    soft.s[other][5] = -2.0  # grew less
    ranking = soft.ranking(most=problem.scope.size)
    survivors = ranking.top(19)
    assert survivors == Region(problem.scope, {**start.sites, name: start.sites[name][1:]})
    assert (ranking.top(20) - survivors).sites[other].tolist() == [3]
    assert (ranking.top(21) - ranking.top(20)).sites[other].tolist() == [5]
    moved = ranking.top(22) - ranking.top(21)  # nobody else grew: the largest |delta| comes next
    (found, at), *_ = moved.sites.items()
    rest = {n: problem.delta(n).abs() for n in problem.slots}
    for n, sites in ranking.top(21).sites.items():
        rest[n][torch.from_numpy(np.array(sites, np.int64))] = -1.0
    rest[name][0] = -1.0  # the dropped one is last of all
    assert float(rest[found][int(at[0])]) == max(float(tensor.max()) for tensor in rest.values())
    assert int(ranking.order[-1]) == starts_of(problem.scope)[list(problem.scope.shapes).index(name)]


def test_every_method_gives_exactly_its_budget_and_nested_regions(pair: Any) -> None:
    problem = a_problem(pair)
    for name, search in METHODS.items():
        options = {"steps": 2} if name == "learned" else {}
        ranking = search(problem, a_start(problem), most=500, **options).ranking
        for budget in (1, 7, 500):
            assert len(ranking.top(budget)) == budget, name
        assert len(ranking.top(7) - ranking.top(500)) == 0, name


def test_movement_is_the_largest_change(pair: Any) -> None:
    problem = a_problem(pair)
    region = METHODS["movement"](problem, a_start(problem), most=50).ranking.top(50)
    flat = np.concatenate([problem.delta(n).abs().numpy() for n in problem.scope.shapes])
    chosen = np.concatenate([problem.delta(n).abs().numpy()[at] for n, at in region.sites.items()])
    assert sorted(chosen) == sorted(np.sort(flat)[-50:])


def test_attributions_add_up_to_the_loss_that_goes_away(pair: Any) -> None:
    """Completeness: the sum over all entries is loss(base) − loss(tuned), to the precision of the path's points."""
    problem = a_problem(pair, scope="all")
    ranking_scores: dict[str, np.ndarray] = {}

    class Spy(Ranking):
        def __init__(self, scope: Scope, scores: Any, movements: Any, **options: Any) -> None:
            ranking_scores.update(scores)
            super().__init__(scope, scores, movements, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skillgraft.regions.problem.Ranking", Spy)
        METHODS["attribution"](problem, a_start(problem), most=5, points=64)
    with problem.borrowed():
        problem.put_on(Region(problem.scope, {}))
        at_base = problem.backward(0)
        problem.put_on(Region.full(problem.scope))
        at_tuned = problem.backward(0)
    assert sum(float(s.sum()) for s in ranking_scores.values()) == pytest.approx(at_base - at_tuned, rel=0.02)


def test_wrong_problems_are_refused(pair: Any) -> None:
    with pytest.raises(InputError, match="did you mean 'movement'"):
        method("movment")
    other = tensors_of(nn.Linear(3, 3))
    with pytest.raises(InputError, match="tuned is not of this model"):
        Problem.between(pair[0], other, steps=bert_steps, loss=bert_loss)


def test_the_start_is_nearly_nothing() -> None:
    assert 1 / (1 + np.exp(-START)) == pytest.approx(7.5e-5, rel=0.01)
    assert len(parameter_names(tiny_bert())) > 20


def test_a_rounded_mask_is_gamma_above_one_half(pair: Any) -> None:
    problem = a_problem(pair)
    soft = SoftMask(problem, a_start(problem))
    generator = torch.Generator().manual_seed(0)
    soft.s = {name: torch.randn(s.shape, generator=generator) for name, s in soft.s.items()}
    masks = {n: (soft.gamma(n) > 0.5).numpy().reshape(shape) for n, shape in problem.scope.shapes.items()}
    assert soft.rounded() == Region.from_masks(problem.scope, masks)


def test_the_authors_start_is_drawn_again_and_not_kept(pair: Any) -> None:
    problem = a_problem(pair)
    soft = SoftMask(problem, a_start(problem), init="uniform", seed=3)
    for name, s in soft.s.items():
        assert torch.equal(soft.initial(name), s)
        assert -10.0 <= float(s.min()) <= float(s.max()) <= -9.0
    first, second = list(soft.s.values())[:2]
    assert not torch.equal(first[:5], second[:5])
    assert not torch.equal(
        SoftMask(problem, a_start(problem), init="uniform", seed=4).initial(next(iter(soft.s))), first
    )


@pytest.mark.parametrize("block", [7, 1 << 19])
def test_blocks_do_not_change_the_numbers(pair: Any, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = a_problem(pair)
    whole = learn(problem, a_start(problem), MaskPlan(steps=3, lr=1e5))
    monkeypatch.setattr("skillgraft.regions.problem._BLOCK", block)
    parts = learn(problem, a_start(problem), MaskPlan(steps=3, lr=1e5))
    for name, s in whole.soft.s.items():
        torch.testing.assert_close(parts.soft.s[name], s, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("reference", ["base", "zero"])
def test_among_all_candidates_the_mask_is_the_full_one(pair: Any, reference: Any) -> None:
    """With every entry a candidate nothing may differ but the order of sums."""
    problem = a_problem(pair, reference=reference)
    start = a_start(problem)
    full = learn(problem, start, MaskPlan(steps=5, lr=1e5, l1=0.01))
    few = learn(problem, start, MaskPlan(steps=5, lr=1e5, l1=0.01, candidates=1.0))
    assert few.losses == pytest.approx(full.losses, rel=1e-4)
    for name, s in full.soft.s.items():
        torch.testing.assert_close(few.soft.s[name], s, rtol=1e-3, atol=1e-3)
    assert few.region.jaccard(full.region) > 0.95
    assert few.soft.ranking(most=50).top(50).jaccard(full.soft.ranking(most=50).top(50)) > 0.9


def test_among_few_candidates_only_they_are_touched_and_the_model_comes_back(pair: Any) -> None:
    problem = a_problem(pair)
    start = a_start(problem)
    before = {name: array.copy() for name, array in tensors_of(pair[0]).arrays.items()}
    seen: list[int] = []

    def score() -> float:
        seen.append(sum(int((tensors_of(pair[0]).arrays[n] != a).sum()) for n, a in before.items()))
        return float(len(seen))

    found = learn(problem, start, MaskPlan(steps=4, candidates=0.02, entries=30, look_every=2), score=score)
    moved = METHODS["movement"](problem, start, most=round(0.02 * problem.scope.size)).ranking
    allowed = moved.top(round(0.02 * problem.scope.size)) | start
    assert len(found.region - allowed) == 0
    assert len(found.soft.among) == len(allowed)
    assert seen[-1] <= len(found.region), "a look is at the rounded region, its graft's numbers and no others"
    after = tensors_of(pair[0]).arrays
    assert all(after[name].tobytes() == array.tobytes() for name, array in before.items())
