"""TaLoS's region: exact counts, rounds that matter only with damping, the model given back."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from skillgraft.errors import InputError
from skillgraft.live.grafted import as_numpy, parameter_names, tensors_of
from skillgraft.regions.fisher import fisher_diagonal
from skillgraft.regions.sensitivity import least_sensitive, lowest, most_sensitive, multiplied
from skillgraft.values.names import in_layers
from skillgraft.values.region import Region, Scope
from tests.readouts import making
from tests.readouts.making import open_readouts


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("subject") / "m"
    opened = open_readouts(making.sentence_encoder(folder), [making.task_of(making.SENTIMENT)])
    return opened.model, opened.readouts[0], opened.readouts[0].encode(making.films())


def flat(model: Any, readout: Any, rows: Any, **settings: Any) -> tuple[np.ndarray, list[str]]:
    parameters = {name: p for name, p in parameter_names(model).items() if in_layers(name)}
    fisher = fisher_diagonal(model, readout, rows, parameters, **settings)
    names = sorted(fisher)
    return np.concatenate([fisher[name].numpy().reshape(-1) for name in names]), names


def test_one_round_is_the_plain_bottom_of_the_ranking(subject: Any) -> None:
    scores, names = flat(*subject)
    found = least_sensitive(*subject, damp=1.0, rounds=4)
    assert found.facts["rounds"] == 1
    count = round(0.1 * len(scores))
    assert len(found.region) == count
    chosen = np.concatenate([found.region.mask(name).reshape(-1) for name in names])
    assert np.array_equal(np.flatnonzero(chosen), np.sort(np.argsort(scores, kind="stable")[:count]))


def test_rounds_with_damping_are_a_sequential_search(subject: Any) -> None:
    """Written out by hand: score, drop, damp what was dropped, score again."""
    model, readout, rows = subject
    parameters = {name: p for name, p in parameter_names(model).items() if in_layers(name)}
    saved = {name: p.detach().clone() for name, p in parameters.items()}
    kept = {name: np.ones(p.shape, bool) for name, p in parameters.items()}
    size = sum(mask.size for mask in kept.values())
    for number in range(1, 4):
        with torch.no_grad():
            for name, p in parameters.items():
                p.copy_(torch.where(torch.from_numpy(kept[name]), saved[name], saved[name] * 0.1))
        fisher = fisher_diagonal(model, readout, rows, parameters)
        with torch.no_grad():
            for name, p in parameters.items():
                p.copy_(saved[name])
        names = sorted(parameters)
        scores = np.concatenate([np.where(kept[n], fisher[n].numpy(), np.inf).reshape(-1) for n in names])
        lowest = np.argsort(scores, kind="stable")[: round(0.1 ** (number / 3) * size)]
        joined = np.zeros(size, bool)
        joined[lowest] = True
        low = 0
        for n in names:
            kept[n] = joined[low : low + kept[n].size].reshape(kept[n].shape)
            low += kept[n].size
    found = least_sensitive(model, readout, rows, rounds=3, damp=0.1)
    for name, mask in kept.items():
        assert np.array_equal(found.region.mask(name), mask), name


def test_damping_changes_the_choice(subject: Any) -> None:
    plain, damped = (least_sensitive(*subject, damp=damp).region for damp in (1.0, 0.1))
    assert len(plain) == len(damped)
    assert plain.jaccard(damped) < 1.0


def test_key_biases_are_insensitive_and_are_reported(subject: Any) -> None:
    """Softmax ignores what is added to every key alike: their gradient is zero up to rounding."""
    found = least_sensitive(*subject, damp=1.0)
    biases = [name for name in found.region.scope.shapes if name.endswith("key.bias")]
    assert all(len(found.region.sites[name]) == found.region.mask(name).size for name in biases)
    assert 0 <= found.facts["insensitive_share"] < 1


def test_the_model_is_given_back_and_a_seed_decides(subject: Any) -> None:
    before = {name: array.copy() for name, array in tensors_of(subject[0]).arrays.items()}
    first, second = (least_sensitive(*subject, rounds=2, seed=3).region for _ in range(2))
    assert first == second
    assert all((array == before[name]).all() for name, array in tensors_of(subject[0]).arrays.items())


def test_the_most_sensitive_are_the_top(subject: Any) -> None:
    scores, names = flat(*subject)
    region = most_sensitive(*subject, density=0.05).region
    chosen = np.concatenate([region.mask(name).reshape(-1) for name in names])
    assert scores[chosen].min() >= scores[~chosen].max()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"density": 0.0}, r"a density lies in \(0, 1\], found 0.0"),
        ({"damp": 2.0}, r"damp lies in \(0, 1\].* found 2.0, 4"),
        ({"rounds": 0}, r"rounds are at least 1; found 0.1, 0"),
    ],
)
def test_wrong_settings_are_refused(subject: Any, settings: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        least_sensitive(*subject, **settings)


def test_a_density_above_one_is_refused_everywhere(subject: Any) -> None:
    with pytest.raises(InputError, match=r"a density lies in \(0, 1\], found 1.5"):
        most_sensitive(*subject, density=1.5)


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0, 2.0]), st.booleans()), min_size=2, max_size=20), st.data())
def test_the_lowest_are_a_stable_sort_of_what_is_kept(entries: list[tuple[float, bool]], data: st.DataObject) -> None:
    scores, half = np.array([score for score, _ in entries], np.float32), len(entries) // 2
    scope = Scope.of("all", {"a": (half,), "b": (len(entries) - half,)})
    there = np.array([kept for _, kept in entries])
    there[data.draw(st.integers(0, len(entries) - 1))] = True
    kept = Region.from_masks(scope, {"a": there[:half], "b": there[half:]})
    count = data.draw(st.integers(1, len(kept)))
    found = lowest({"a": torch.from_numpy(scores[:half]), "b": torch.from_numpy(scores[half:])}, kept, count)
    expected = np.sort(np.argsort(np.where(there, scores, np.inf), kind="stable")[:count])
    assert np.flatnonzero(np.concatenate([found.mask("a"), found.mask("b")])).tolist() == expected.tolist()


NUMBERS = [0.1, -0.0, 1e-40, 3.0, float("inf"), float("nan"), -65504.0, 6e-8, 1.0]


@pytest.mark.parametrize("factor", [0.1, 0.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_multiplied_entries_come_back_exactly_also_after_an_exception(dtype: torch.dtype, factor: float) -> None:
    numbers = torch.tensor([NUMBERS, NUMBERS]).to(dtype)
    parameters = {"v": nn.Parameter(numbers[0].clone()), "w": nn.Parameter(numbers.clone())}
    masks = {"v": np.zeros(9, bool), "w": np.tile([[True], [False]], 9)}

    def fail() -> None:
        with multiplied(parameters, masks.__getitem__, factor):
            torch.testing.assert_close(parameters["w"][0], numbers[0] * factor, rtol=0, atol=0, equal_nan=True)
            assert same_bits(parameters["w"][1], numbers[1])
            assert same_bits(parameters["v"], numbers[0])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert same_bits(parameters["w"], numbers)
    assert parameters["w"].requires_grad


def same_bits(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return as_numpy(found).tobytes() == as_numpy(expected).tobytes()


def test_what_was_multiplied_comes_back_if_another_tensor_fails() -> None:
    parameters = {"a": nn.Parameter(torch.ones(2)), "b": nn.Parameter(torch.ones(2))}
    masks = {"a": np.ones(2, bool), "b": np.ones(3, bool)}
    with pytest.raises(IndexError), multiplied(parameters, masks.__getitem__, 0.5):
        pass
    assert parameters["a"].tolist() == [1.0, 1.0]


def test_no_mask_is_held_while_entries_are_multiplied() -> None:
    alive: list[weakref.ref[np.ndarray]] = []

    def mask_of(_name: str) -> np.ndarray:
        made = np.array([True, False])
        alive.append(weakref.ref(made))
        return made

    with multiplied({name: nn.Parameter(torch.ones(2)) for name in "abc"}, mask_of, 0.5):
        assert alive
        assert all(mask() is None for mask in alive)
