"""The learned region: the closed-form gradient is autograd's, the model comes back bit for bit, budgets are exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from skillgraft.errors import InputError
from skillgraft.live import parameter_names, tensors_of
from skillgraft.localize.learned import START, SoftMask, learn
from skillgraft.localize.methods import METHODS, method
from skillgraft.localize.problem import Problem, Step
from skillgraft.localize.ranking import Ranking
from skillgraft.localize.smallest import smallest_budget
from skillgraft.readouts.readout import Batch
from skillgraft.region import Region, Scope
from tests.training.toys import ToyReadout, tiny_bert, toy_rows

READOUT = ToyReadout()


def loss(model: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.cross_entropy(READOUT.scores(model, batch), batch["labels"])


def steps(_number: int) -> Step:
    rows = toy_rows(24)
    return [(READOUT.collate(rows[:8]), 8 / 24), (READOUT.collate(rows[8:]), 16 / 24)]


def tuned_bert() -> nn.Module:
    """A few hundred steps of plain training: enough that a region is worth something."""
    tuned = tiny_bert()
    optimizer = torch.optim.AdamW(tuned.parameters(), lr=3e-3)
    batch = READOUT.collate(toy_rows(24))
    for _ in range(60):
        optimizer.zero_grad()
        loss(tuned, batch).backward()
        optimizer.step()
    return tuned


@pytest.fixture(scope="module")
def pair() -> tuple[nn.Module, Any]:
    return tiny_bert(), tensors_of(tuned_bert())


def a_problem(pair: tuple[nn.Module, Any], **settings: Any) -> Problem:
    return Problem.between(pair[0], pair[1], steps=steps, loss=loss, **settings)


def a_start(problem: Problem, count: int = 20) -> Region:
    names = list(problem.scope.shapes)[:4]
    return Region(problem.scope, {name: np.arange(0, 2 * (count // 4), 2) for name in names})


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
        flips = {name: torch.from_numpy(start.mask(name)) for name in free}
        gammas = {n: torch.where(flips[n], 1 - torch.sigmoid(s), torch.sigmoid(s)) for n, s in free.items()}
        blended = {n: problem.reference[n] + gamma * problem.delta[n] for n, gamma in gammas.items()}
        real = {id(p): n for n, p in pair[0].named_parameters()}
        named = {real[id(problem.parameters[n])]: tensor for n, tensor in blended.items()}

        class Whole(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = pair[0]

            def forward(self, batch: Batch) -> Tensor:
                return loss(self.model, batch)

        inside = {f"model.{name}": tensor for name, tensor in named.items()}
        total = sum(torch.func.functional_call(Whole(), inside, (batch,)) * share for batch, share in steps(0))
        total = total + 0.01 * sum(torch.sigmoid(s).sum() for s in free.values())
        total.backward()
    for name, s in free.items():
        torch.testing.assert_close(soft.s[name], s.detach() - 10.0 * s.grad, rtol=1e-4, atol=1e-5, msg=name)


def test_the_bases_numbers_are_neither_copied_nor_written_to(pair: Any) -> None:
    """They are the reference, and may lie in a mapped file; a borrowed model has others in their place."""
    problem = a_problem(pair)
    before = {name: parameter.detach().clone() for name, parameter in problem.parameters.items()}
    with problem.borrowed():
        problem.put_on(Region.full(problem.scope))
        for name, parameter in problem.parameters.items():
            assert not torch.equal(parameter, before[name])
            assert torch.equal(problem.reference[name], before[name])
    for name, parameter in problem.parameters.items():
        assert parameter.data_ptr() == problem.reference[name].data_ptr()


@pytest.mark.parametrize("reference", ["base", "zero"])
def test_the_model_is_given_back_bit_for_bit(pair: Any, reference: Any) -> None:
    before = {name: array.copy() for name, array in tensors_of(pair[0]).arrays.items()}
    wanted = {name: p.requires_grad for name, p in pair[0].named_parameters()}
    problem = a_problem(pair, reference=reference)
    learn(problem, a_start(problem), steps=3)

    class Stop(Exception):
        pass

    def stop(*_: Any) -> None:
        raise Stop

    with pytest.raises(Stop):
        learn(problem, a_start(problem), steps=3, on_step=stop)
    after = tensors_of(pair[0]).arrays
    assert all(after[name].tobytes() == array.tobytes() for name, array in before.items())
    assert {name: p.requires_grad for name, p in pair[0].named_parameters()} == wanted
    assert all(p.grad is None for p in pair[0].parameters())


def test_learning_lowers_the_loss_and_rounds_to_a_region_that_does(pair: Any) -> None:
    problem = a_problem(pair)
    start = METHODS["movement"](problem, a_start(problem), most=20).ranking.top(20)
    found = learn(problem, start, steps=40, lr=1e5)
    assert found.losses[-1] < found.losses[0]
    with problem.borrowed():
        problem.put_on(found.region)
        grafted_loss = problem.backward(0)
        problem.put_on(Region(problem.scope, {}))
        assert grafted_loss < problem.backward(0)


def test_steps_are_compared_on_the_rounded_region(pair: Any) -> None:
    problem = a_problem(pair)
    given = iter([0.1, 0.9, 0.3, 0.2, 0.2])
    found = learn(problem, a_start(problem), steps=10, lr=1e5, score=lambda: next(given), look_every=2)
    assert [look[0] for look in found.looks] == [2, 4, 6, 8, 10]
    assert len(found.region) == found.looks[1][1]
    stale = iter([0.9, 0.1, 0.1, 0.1])
    stopped = learn(problem, a_start(problem), steps=50, score=lambda: next(stale), look_every=2, patience=2)
    assert len(stopped.losses) == 6


def test_budget_order_survivors_then_growth_then_movement(pair: Any) -> None:
    problem = a_problem(pair)
    start = a_start(problem, 20)
    soft = SoftMask(problem, start)
    name = next(iter(start.sites))
    soft.s[name].view(-1)[0] = 5.0  # a member of γ_base that was dropped: γ = 1 − σ(5)
    other = list(problem.scope.shapes)[6]
    soft.s[other].view(-1)[3] = -1.0  # grew much
    soft.s[other].view(-1)[5] = -2.0  # grew less
    ranking = soft.ranking(most=problem.scope.size)
    survivors = ranking.top(19)
    assert survivors == Region(problem.scope, {**start.sites, name: start.sites[name][1:]})
    assert (ranking.top(20) - survivors).sites[other].tolist() == [3]
    assert (ranking.top(21) - ranking.top(20)).sites[other].tolist() == [5]
    moved = ranking.top(22) - ranking.top(21)  # nobody else grew: the largest |delta| comes next
    (place, at), *_ = moved.sites.items()
    rest = {n: problem.delta[n].abs().clone().view(-1) for n in problem.delta}
    for n, sites in ranking.top(21).sites.items():
        rest[n][torch.from_numpy(np.array(sites, np.int64))] = -1.0
    rest[name][0] = -1.0  # the dropped one is last of all
    assert float(rest[place][int(at[0])]) == max(float(tensor.max()) for tensor in rest.values())
    assert int(ranking.order[-1]) == int(ranking.starts[ranking.names.index(name)])


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
    flat = np.concatenate([problem.delta[n].abs().numpy().reshape(-1) for n in problem.scope.shapes])
    chosen = np.concatenate([problem.delta[n].abs().numpy().reshape(-1)[at] for n, at in region.sites.items()])
    assert sorted(chosen) == sorted(np.sort(flat)[-50:])


def test_attributions_add_up_to_the_loss_that_goes_away(pair: Any) -> None:
    """Completeness: the sum over all entries is loss(base) − loss(tuned), to the precision of the path's points."""
    problem = a_problem(pair, scope="all")
    ranking_scores: dict[str, np.ndarray] = {}

    class Spy(Ranking):
        def __init__(self, scope: Scope, scores: Any, movements: Any, *, most: int) -> None:
            ranking_scores.update(scores)
            super().__init__(scope, scores, movements, most=most)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skillgraft.localize.methods.Ranking", Spy)
        METHODS["attribution"](problem, a_start(problem), most=5, points=64)
    with problem.borrowed():
        problem.put_on(Region(problem.scope, {}))
        at_base = problem.backward(0)
        problem.put_on(Region.full(problem.scope))
        at_tuned = problem.backward(0)
    assert sum(float(s.sum()) for s in ranking_scores.values()) == pytest.approx(at_base - at_tuned, rel=0.02)


def test_ties_go_to_movement_then_name_then_index() -> None:
    scope = Scope.of("all", {"a": (3,), "b": (3,)})
    scores = {name: np.zeros(3, np.float32) for name in scope.shapes}
    movements = {"a": np.array([1, 2, 1], np.float32), "b": np.array([2, 1, 1], np.float32)}
    ranking = Ranking(scope, scores, movements, most=6)
    order = [next((n, int(at[0])) for n, at in (ranking.top(k + 1) - ranking.top(k)).sites.items()) for k in range(6)]
    assert order == [("a", 1), ("b", 0), ("a", 0), ("a", 2), ("b", 1), ("b", 2)]


@pytest.mark.parametrize("true", [1, 2, 3, 17, 100, 999])
def test_the_smallest_budget_is_found_to_its_precision(true: int) -> None:
    asked = []

    def score(count: int) -> float:
        asked.append(count)
        return float(count >= true)

    found = smallest_budget(score, target=1.0, most=1000)
    assert true <= found <= max(true + 1, 1.06 * true)
    assert len(asked) <= 25


def test_a_share_that_no_budget_keeps_is_an_error() -> None:
    with pytest.raises(InputError, match=r"even 64 entries reach only 0\.5000 of the 0\.9000"):
        smallest_budget(lambda _count: 0.5, target=0.9, most=64)


def test_wrong_problems_are_refused(pair: Any) -> None:
    with pytest.raises(InputError, match="did you mean 'movement'"):
        method("movment")
    small = Problem.between
    other = tensors_of(nn.Linear(3, 3))
    with pytest.raises(InputError, match="tuned is not of this model"):
        small(pair[0], other, steps=steps, loss=loss)


def test_the_start_is_nearly_nothing() -> None:
    assert 1 / (1 + np.exp(-START)) == pytest.approx(7.5e-5, rel=0.01)
    assert len(parameter_names(tiny_bert())) > 20


def test_a_rounded_mask_is_gamma_above_one_half(pair: Any) -> None:
    problem = a_problem(pair)
    soft = SoftMask(problem, a_start(problem))
    generator = torch.Generator().manual_seed(0)
    soft.s = {name: torch.randn(s.shape, generator=generator) for name, s in soft.s.items()}
    masks = {name: (soft.gamma(name) > 0.5).numpy() for name in soft.s}
    assert soft.rounded() == Region.from_masks(problem.scope, masks)


def test_the_authors_start_is_drawn_again_and_not_kept(pair: Any) -> None:
    problem = a_problem(pair)
    soft = SoftMask(problem, a_start(problem), init="uniform", seed=3)
    for name, s in soft.s.items():
        assert torch.equal(soft.initial(name), s)
        assert -10.0 <= float(s.min()) <= float(s.max()) <= -9.0
    first, second = list(soft.s.values())[:2]
    assert not torch.equal(first.view(-1)[:5], second.view(-1)[:5])
    assert not torch.equal(
        SoftMask(problem, a_start(problem), init="uniform", seed=4).initial(next(iter(soft.s))), first
    )


@pytest.mark.parametrize("block", [7, 1 << 19])
def test_blocks_do_not_change_the_numbers(pair: Any, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = a_problem(pair)
    whole = learn(problem, a_start(problem), steps=3, lr=1e5)
    monkeypatch.setattr("skillgraft.localize.learned._BLOCK", block)
    parts = learn(problem, a_start(problem), steps=3, lr=1e5)
    for name, s in whole.soft.s.items():
        torch.testing.assert_close(parts.soft.s[name], s, rtol=1e-4, atol=1e-4)
