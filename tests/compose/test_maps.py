"""Disentanglement, function localisation, scale curves: every cell against full evaluations."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from skillgraft import Graft, Region, extract, total
from skillgraft.compose.maps import disentanglement_map, localisation_matrix, scale_curve
from skillgraft.compose.scales import Scaled, grid_search, weighted_sum
from skillgraft.errors import HeadConflict, InputError
from skillgraft.measure.evaluate import evaluate
from skillgraft.task_model import TaskModel
from skillgraft.tasks.data import Data
from skillgraft.training.finetune import finetune
from tests.compose.toy_tasks import QUICK
from tests.compose.two_skills import _one_thread, accuracies, brute, opened, pair, place, sampled, tasks  # noqa: F401

# pytest passes fixtures by their names, which are imported here
# ruff: noqa: F811


def test_disentanglement_map_by_brute_force(
    place: Path, tasks: list[Path], pair: dict[str, Graft], opened: TaskModel
) -> None:
    alphas = (-1.0, 0.0, 1.5)
    found = disentanglement_map(opened, pair, alphas=alphas)
    assert found.tasks == ("films", "animals")
    for (i, first), (j, second) in product(enumerate(alphas), repeat=2):
        together = brute(place, tasks, total([first * pair["films"], second * pair["animals"]]))
        error = 0.0
        for task, alpha in zip(pair, (first, second), strict=True):
            alone = sampled(opened, brute(place, tasks, alpha * pair[task])[task], task)
            error += float((alone.predicted != sampled(opened, together[task], task).predicted).mean())
        assert found.errors[i][j].value == pytest.approx(error), (first, second)
    assert found.errors[1][1].value == 0.0
    assert any(error.value for row in found.errors for error in row), "these skills do see each other"
    assert found.as_json()["alphas"] == [-1.0, 0.0, 1.5]
    with pytest.raises(InputError, match="about two tasks, found 1: films"):
        disentanglement_map(opened, {"films": pair["films"]})


def test_each_single_task_point_is_computed_once(
    pair: dict[str, Graft], opened: TaskModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    predict = TaskModel.predict
    monkeypatch.setattr(TaskModel, "predict", lambda *a, **k: calls.append(k["tasks"]) or predict(*a, **k))
    disentanglement_map(opened, pair, alphas=(0.5, 1.0, 2.0))
    assert sorted(map(len, calls)) == [1] * 6 + [2] * 9


def test_localisation_matrix_by_brute_force(
    place: Path, tasks: list[Path], pair: dict[str, Graft], opened: TaskModel
) -> None:
    base = accuracies(opened, brute(place, tasks, 0.0 * pair["films"]))
    for name, row in localisation_matrix(opened, pair).items():
        wanted = accuracies(opened, brute(place, tasks, pair[name]))
        for task, cell in row.items():
            assert cell.value == pytest.approx(wanted[task] / base[task])


def test_a_scale_curve_goes_from_base_to_tuned(pair: dict[str, Graft], opened: TaskModel) -> None:
    curve = scale_curve(opened, pair["films"], (0.0, 0.5, 1.0))
    base, tuned = opened.predict(), opened.predict(pair["films"])
    assert curve[0].predictions == base
    assert curve[2].predictions == tuned
    compared = curve[2].as_json(base=base)
    assert compared["scale"] == 1.0
    assert compared["tasks"]["films"]["gain"]["value"] > 0
    assert "gain" not in curve[2].as_json()["tasks"]["films"]


def test_a_linear_head_goes_with_its_graft(place: Path, tasks: list[Path], tmp_path: Path) -> None:
    asked = Data(shots=20, readout="linear")
    finetune(place / "masked", tasks[:1], out=tmp_path / "t", plan=QUICK.with_changes(steps=60), data=asked)
    skill = extract(place / "masked", tmp_path / "t")
    alone = TaskModel.open(place / "masked", tasks[:1], data=asked)
    curve = scale_curve(alone, skill, (0.0, 1.0))
    wanted = evaluate(place / "masked", tasks[:1], grafts={"g": skill}, split="validation", data=asked)["films"]["g"]
    assert curve[1].predictions["films"].scores.tolist() == pytest.approx(wanted.scores)
    heads_alone = skill & Region(skill.region.scope, {})
    assert curve[0].predictions == alone.predict(heads_alone)
    assert grid_search(Scaled(alone, (skill,)), points=3).best.accuracy["films"] > 0.8
    lacking = r"reads the head .*, but neither base nor graft has one; measure a graft on"
    for linear in (True, False):
        with pytest.raises(InputError, match=lacking):
            Scaled(alone, (skill.without_heads(),), linear=linear).predict(1.0)
    with pytest.raises(InputError, match=lacking):
        localisation_matrix(alone, {"g": skill.without_heads()})
    with pytest.raises(InputError, match="bring heads of their own; use a readout that needs none"):
        localisation_matrix(alone, {"g": skill})
    both = TaskModel.open(place / "masked", tasks[:2], data=asked)
    shapes = r"reads the head classifier.\w+ of shape \[4.*\], but the graft's is \[2"
    with pytest.raises(InputError, match=rf"readout of films, animals {shapes}"):
        Scaled(both, (skill,)).predict(1.0)
    other = Graft(
        skill.region, skill.before, skill.change, base_fingerprint=skill.base_fingerprint,
        heads={name: head + 1 for name, head in skill.heads.items()},
    )  # fmt: skip
    with pytest.raises(HeadConflict):
        weighted_sum([skill, other], [1.0, 1.0])
    assert weighted_sum([skill, other], [1.0, 1.0], head=skill).heads.keys() == skill.heads.keys()
