"""`skillgraft localize` as a user runs it, on a tiny sentence encoder and on a linear head."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skillgraft import extract, grafted, load, load_region, save_region
from skillgraft.errors import InputError
from skillgraft.localize.skill import Rows, localize_skill
from skillgraft.measure.evaluate import evaluate
from skillgraft.readouts.loading import open_readouts
from skillgraft.tasks import load_task
from skillgraft.training.finetune import finetune
from tests.training.test_finetune import QUICK, place, run  # noqa: F401

STEPS: dict[str, Any] = {"steps": 6, "lr": 1e5}


@pytest.fixture(scope="module")
def tuned(place: Path) -> Path:  # noqa: F811
    finetune(place / "encoder", [place / "films.toml"], place / "skilled", plan=QUICK.with_changes(steps=100))
    return place / "skilled"


def test_localize_writes_a_graft_with_its_scores(run: Callable[..., Any], place: Path, tuned: Path) -> None:  # noqa: F811
    words = ("localize", "encoder", tuned.name, "--task", "films.toml", "--budget", 0.02, "--steps", 6, "--lr", 1e5)
    code, out, err = run(*words, "--curve", "-o", "cut.safetensors", "--json")
    assert code == 0, err
    facts = json.loads(out)
    graft = load(place / "cut.safetensors")
    assert facts["entries"] == len(graft) == round(0.02 * graft.region.scope.size)
    scores = graft.info["scores"]["validation"]
    assert set(scores) == {"base", "tuned", "graft"}
    assert scores["tuned"]["accuracy"]["value"] > scores["base"]["accuracy"]["value"]
    assert {"share_kept", "relative_gain", "agreement", "ece"} <= scores["graft"].keys()
    assert graft.info["method"] == "learned"
    assert graft.info["recipe"]["steps"] == 6
    assert [point["density"] for point in facts["curve"]][:2] == [1e-5, 3e-5]
    code, text, err = run(*words, "-o", "again.safetensors")
    assert code == 0, err
    assert "share kept" in text
    assert "█" in text
    first, second = load(place / "cut.safetensors"), load(place / "again.safetensors")
    assert first.digest == second.digest


def test_the_graft_does_live_what_its_scores_say(place: Path, tuned: Path) -> None:  # noqa: F811
    located = localize_skill(place / "encoder", tuned, place / "films.toml", budget=0.05, **STEPS)
    said = evaluate(place / "encoder", [place / "films.toml"], grafts={"g": located.graft}, split="validation").said[
        "films"
    ]
    told = located.graft.info["scores"]["validation"]
    assert float((said["g"].predicted == said["g"].labels).mean()) == told["graft"]["accuracy"]["value"]
    assert float((said["base"].predicted == said["base"].labels).mean()) == told["base"]["accuracy"]["value"]


def test_keep_finds_a_small_region_that_keeps_the_share(place: Path, tuned: Path) -> None:  # noqa: F811
    located = localize_skill(place / "encoder", tuned, place / "films.toml", keep=0.7, name="movement")
    told = located.graft.info["scores"]["validation"]["graft"]
    assert told["share_kept"]["value"] >= 0.7
    assert len(located.graft) < 0.1 * located.graft.region.scope.size


def test_a_linear_head_is_on_while_its_region_is_learned(place: Path, tmp_path: Path) -> None:  # noqa: F811
    finetune(
        place / "masked", [place / "films.toml"], tmp_path / "t", plan=QUICK.with_changes(steps=100), readout="linear"
    )
    located = localize_skill(
        place / "masked", tmp_path / "t", place / "films.toml", budget=0.5, data=Rows(readout="linear"), **STEPS
    )
    assert "classifier.weight" in located.graft.heads
    assert located.graft.info["scores"]["validation"]["tuned"]["accuracy"]["value"] > 0.9
    opened = open_readouts(place / "masked", [load_task(place / "films.toml")], readout="linear")
    with grafted(opened.model, located.graft):
        assert opened.model is not None


def test_start_from_a_file_or_from_nothing(place: Path, tuned: Path, tmp_path: Path) -> None:  # noqa: F811
    movement = localize_skill(place / "encoder", tuned, place / "films.toml", budget=30, name="movement").graft
    save_region(movement.region, tmp_path / "start.safetensors")
    found = localize_skill(
        place / "encoder",
        tuned,
        place / "films.toml",
        start=tmp_path / "start.safetensors",
        budget=30,
        steps=1,
        lr=1e-9,
    )
    assert found.graft.region == movement.region, "a mask that is hardly moved is still its start"
    empty = localize_skill(place / "encoder", tuned, place / "films.toml", start="empty", budget=30, **STEPS)
    assert len(empty.graft) == 30
    tuned_labels = localize_skill(
        place / "encoder", tuned, place / "films.toml", budget=30, data=Rows(labels="tuned"), **STEPS
    )
    assert len(tuned_labels.graft) == 30


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": 5, "keep": 0.9}, "not both"),
        ({"keep": 1.5}, "between 0 and 1"),
        ({"name": "movement"}, "does not say how many"),
        ({"name": "lerned", "budget": 5}, "did you mean 'learned'"),
    ],
)
def test_wrong_questions_are_refused(settings: dict[str, Any], message: str, place: Path, tuned: Path) -> None:  # noqa: F811
    with pytest.raises(InputError, match=message):
        localize_skill(place / "encoder", tuned, place / "films.toml", **settings)


def test_labels_are_checked_first() -> None:
    with pytest.raises(InputError, match="'true' or 'tuned'"):
        Rows(labels="false")


def test_a_region_of_the_base_to_train_in(run: Callable[..., Any], place: Path) -> None:  # noqa: F811
    words = ("localize", "encoder", "--task", "films.toml", "--rows", 20, "--method", "lowest-fisher", "--budget", 0.1)
    code, out, err = run(*words, "--rounds", 2, "-o", "quiet.safetensors", "--json")
    assert code == 0, err
    facts = json.loads(out)
    region = load_region(place / "quiet.safetensors")
    assert facts["entries"] == len(region) == round(0.1 * region.scope.size)
    assert facts["rounds"] == 2
    code, _, err = run(
        "finetune", "encoder", "--task", "films.toml", "--only", "quiet.safetensors", "--steps", 3, "-o", "quietly"
    )
    assert code == 0, err
    assert len(extract(place / "encoder", place / "quietly").region - region) == 0
    code, _, err = run(*words[:2], "skilled", *words[2:], "-o", "x.safetensors")
    assert code == 2
    assert "looks at BASE alone" in err
    code, _, err = run("localize", "encoder", "--task", "films.toml", "--budget", 5, "-o", "x.safetensors")
    assert code == 2
    assert "give the fine-tuned folder as well" in err
