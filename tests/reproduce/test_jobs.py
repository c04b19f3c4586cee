"""What the jobs make, against the library called by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skillgraft.checkpoint import Checkpoint
from skillgraft.errors import InputError
from skillgraft.extraction import extract
from skillgraft.graft_file import load, load_region
from skillgraft.measure.evaluate import evaluate
from skillgraft.measure.predictions import Predictions
from skillgraft.region import Region, Scope
from skillgraft.reproduce.jobs import saying
from skillgraft.reproduce.jobs.artefacts import GRAFT, MODEL, REGION, SAID, model_of, region_of
from skillgraft.reproduce.jobs.models import counted, cut, localize, nested, pick, tune
from skillgraft.reproduce.jobs.saying import say, ticket
from skillgraft.training.plan import Plan

DATA: dict[str, Any] = {"shots": 8, "seed": 0, "batch_size": 16, "max_length": 16}


@pytest.fixture(scope="module")
def tuned(studio: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tuning step, with a checkpoint after each second step."""
    out = tmp_path_factory.mktemp("tune")
    plan = Plan(lr=0.05, batch_size=8, steps=4).as_dict()
    films = [str(studio / "films.toml")]
    tune(out, {}, base=str(studio / "bert"), tasks=films, plan=plan, checkpoint_every=2, shots=8, max_length=16)
    return out


@pytest.fixture
def asked(studio: Path) -> dict[str, Any]:
    return {"base": str(studio / "bert"), "task": str(studio / "films.toml")}


def test_tune_leaves_a_model_and_its_checkpoints_and_is_done_once(tuned: Path, asked: dict[str, Any]) -> None:
    assert (tuned / MODEL / "model.safetensors").is_file()
    assert model_of(tuned, "step-000002").is_dir()
    before = (tuned / MODEL / "model.safetensors").stat().st_mtime_ns
    tune(tuned, {}, base=asked["base"], tasks=[asked["task"]], plan=Plan(steps=4).as_dict())
    assert (tuned / MODEL / "model.safetensors").stat().st_mtime_ns == before


def test_what_base_tuned_and_graft_say_is_what_evaluate_measures(
    tuned: Path, asked: dict[str, Any], tmp_path: Path
) -> None:
    cut(tmp_path, {"tuned": tuned}, base=asked["base"], budget=40)
    graft = load(tmp_path / GRAFT)
    rows = {"rows": 24, "max_length": 16}
    wanted = evaluate(
        asked["base"], [asked["task"]], tuned={"tuned": tuned / MODEL}, grafts={"graft": 0.5 * graft}, **rows
    ).said["films"]
    models: dict[str, tuple[dict[str, Path], dict[str, Any]]] = {
        "base": ({}, {}),
        "tuned": ({"tuned": tuned}, {}),
        "graft": ({"graft": tmp_path}, {"scale": 0.5}),
    }
    for name, (needs, options) in models.items():
        say(tmp_path, needs, **asked, **rows, **options)
        np.testing.assert_array_equal(Predictions.load(tmp_path / SAID).scores, wanted[name].scores)


def test_the_loaded_base_serves_the_next_question(
    asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saying._bench.cache_clear()
    saying._opened.cache_clear()
    from skillgraft.readouts import loading

    opened, really = [], loading.open_readouts
    monkeypatch.setattr(loading, "open_readouts", lambda *a, **k: opened.append(1) or really(*a, **k))
    for split in ("test", "test", "train"):
        more = {"shots": 4} if split == "train" else {"rows": 12}
        say(tmp_path, {}, **asked, split=split, max_length=16, **more)
    assert len(opened) == 1


def test_a_base_has_no_score_under_a_head_that_comes_with_tuning(asked: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="reads a head that comes with tuning"):
        say(tmp_path, {}, **asked, rows=8, readout="linear")


def test_a_ticket_is_tuned_inside_its_region_and_zero_elsewhere_in_the_scope(
    tuned: Path, asked: dict[str, Any]
) -> None:
    base, after = Checkpoint.open(asked["base"]), Checkpoint.open(tuned / MODEL)
    scope = Scope.select("layers", base.shapes)
    draw = np.random.default_rng(0)
    region = Region.from_masks(scope, {name: draw.random(shape) < 0.3 for name, shape in scope.shapes.items()})
    graft = ticket(extract(asked["base"], tuned / MODEL), region, base)
    for name in scope.shapes:
        mask = region.mask(name).reshape(-1)
        np.testing.assert_array_equal(graft.written(name), np.where(mask, after.flat(name), 0))
    assert len(graft) == scope.size


def test_a_lottery_search_leaves_its_region_alone(tuned: Path, asked: dict[str, Any], tmp_path: Path) -> None:
    options = {"data": DATA, "name": "movement", "budget": 0.5, "reference": "zero"}
    localize(tmp_path, {"tuned": tuned}, **asked, **options)
    assert not (tmp_path / GRAFT).exists()
    largest = region_of(tmp_path)
    after = Checkpoint.open(tuned / MODEL)
    every = np.sort(np.concatenate([abs(after.flat(name)) for name in largest.scope.shapes]))[::-1]
    inside = np.concatenate([abs(after.flat(name)[at]) for name, at in largest.sites.items()])
    np.testing.assert_array_equal(np.sort(inside)[::-1], every[: len(largest)])
    assert load_region(tmp_path / REGION) == largest


def test_nested_budgets_are_those_of_one_search(tuned: Path, asked: dict[str, Any], tmp_path: Path) -> None:
    budgets = [0.001, 0.01]
    nested(tmp_path, {"tuned": tuned}, **asked, data=DATA, budgets=budgets, start=1e-3, steps=3)
    found = []
    for budget in budgets:
        out = tmp_path / f"{budget:g}"
        out.mkdir()
        pick(out, {"nested": tmp_path}, budget=budget)
        alone = tmp_path / f"alone-{budget:g}"
        alone.mkdir()
        localize(alone, {"tuned": tuned}, **asked, data=DATA, budget=budget, start=1e-3, steps=3)
        assert region_of(out) == region_of(alone)
        found.append(region_of(out))
    assert found[1].coverage(of=found[0]) == 1.0


def test_all_rows_become_a_number_of_rows_with_a_twentieth_left_to_validate(asked: dict[str, Any]) -> None:
    assert counted(asked["task"], {"most": 50_000, "seed": 1}) == {"rows": 114, "seed": 1}  # 95 % of 120
    assert counted(asked["task"], {"most": 20}) == {"rows": 38}  # two classes
    assert counted(asked["task"], {"shots": 4}) == {"shots": 4}
