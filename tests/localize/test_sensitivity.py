"""TaLoS's region: exact counts, rounds that matter only with damping, the model given back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from skillgraft.errors import InputError
from skillgraft.live import parameter_names, tensors_of
from skillgraft.localize.fisher import fisher_diagonal
from skillgraft.localize.sensitivity import least_sensitive, most_sensitive
from skillgraft.names import in_layers
from skillgraft.readouts import open_readouts
from tests.readouts import making


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


@pytest.mark.parametrize("settings", [{"density": 0.0}, {"damp": 2.0}, {"rounds": 0}])
def test_wrong_settings_are_refused(subject: Any, settings: Any) -> None:
    with pytest.raises(InputError, match=r"density and damp lie in \(0, 1\]"):
        least_sensitive(*subject, **settings)
