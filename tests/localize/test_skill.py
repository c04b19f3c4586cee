"""`skillgraft localize` as a user runs it, on a tiny sentence encoder and on a linear head."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skillgraft import extract, grafted, load, load_region, save_region
from skillgraft.cli.localize import METHODS as METHODS_HELP
from skillgraft.errors import InputError
from skillgraft.localize.from_base import BASE_METHODS
from skillgraft.localize.methods import METHODS
from skillgraft.localize.skill import Rows, localize_skill
from skillgraft.localize.workplace import open_workplace
from skillgraft.measure.evaluate import evaluate
from skillgraft.measure.metrics import METRICS
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


@pytest.mark.parametrize(("given", "taken"), [({}, 24), ({"batch_size": 5}, 5)])
def test_small_steps_take_few_rows(place: Path, tuned: Path, given: dict[str, int], taken: int) -> None:  # noqa: F811
    asked: dict[str, Any] = {"name": "budgeted", "budget": 0.02, "steps": 3, "data": Rows(**given)}
    located = localize_skill(place / "encoder", tuned, place / "films.toml", **asked)
    assert located.graft.info["recipe"]["batch_size"] == taken


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
        ({"name": "movement", "budget": 5, "steps": 3}, "the method 'movement' takes no 'steps'; it has no settings"),
        ({"budget": 5, "stepps": 3}, "the method 'learned' takes no 'stepps'; did you mean 'steps'"),
        ({"budget": 5, "lr": -1.0}, "learning rate must be a number above 0, found -1.0"),
        ({"budget": 5, "lr": float("nan")}, "learning rate must be a number above 0, found nan"),
        ({"budget": 5, "l1": -1e-3}, "L1 term must be a number of at least 0, found -0.001"),
        ({"budget": 5, "curve": "papier"}, "unknown curve 'papier'; did you mean 'paper'"),
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


def test_a_method_without_data_needs_no_task(run: Callable[..., Any], place: Path) -> None:  # noqa: F811
    code, out, err = run(
        "localize", "encoder", "--method", "highest-magnitude", "--budget", 0.01, "-o", "big.safetensors", "--json"
    )
    assert code == 0, err
    assert json.loads(out)["entries"] == len(load_region(place / "big.safetensors"))
    code, _, err = run("localize", "encoder", "skilled", "--budget", 5, "-o", "x.safetensors")
    assert code == 2
    assert "give --task" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--damp", 0.3, "skilled"), "the method 'learned' takes no 'damp'"),
        (("--method", "movement", "--start", "empty", "skilled"), "'movement' takes no 'start'; leave out --start"),
        (("--method", "lowest-fisher", "--steps", 5), "the method 'lowest-fisher' takes no 'steps'"),
        (("--method", "highest-fisher", "--keep", 0.9), "'highest-fisher' takes no 'keep'; leave out --keep"),
        (("--method", "random-region", "--curve"), "'random-region' takes no 'curve'; leave out --curve"),
        (("--method", "lowest-fisher", "--batch-size", 4), "takes no 'batch_size'; leave out --batch-size"),
    ],
)
def test_an_option_of_another_method_is_not_passed_over(
    words: tuple[Any, ...],
    message: str,
    run: Callable[..., Any],  # noqa: F811
    place: Path,  # noqa: F811
) -> None:
    code, _, err = run("localize", "encoder", *words, "--task", "films.toml", "-o", "x.safetensors")
    assert code == 2
    assert message in err
    assert not (place / "x.safetensors").exists()


def test_the_help_lists_every_method() -> None:
    named = set(re.findall(r"[a-z-]+", METHODS_HELP))
    assert METHODS.keys() | BASE_METHODS.keys() <= named


def test_the_curve_says_which_one_it_is(run: Callable[..., Any], place: Path, tuned: Path) -> None:  # noqa: F811
    words = ("localize", "encoder", tuned.name, "--task", "films.toml", "--steps", 4, "--lr", 1e5)
    words = (*words, "--look-every", 2, "--patience", 1, "--l1", 1e-9)
    code, text, err = run(*words, "--paper-curve", "-o", "paper.safetensors")
    assert code == 0, err
    assert "curve: a search of its own from γ_base = the most moved entries of each density (P1)" in text
    assert "base → tuned" in text
    recipe = load(place / "paper.safetensors").info["recipe"]
    assert (recipe["l1"], recipe["patience"], recipe["look_every"]) == (1e-9, 1, 2)
    code, out, err = run(*words, "--curve", "-o", "nested.safetensors", "--json")
    assert code == 0, err
    facts = json.loads(out)
    assert facts["curve_kind"] == "nested"
    size = load(place / "nested.safetensors").region.scope.size
    assert [point["entries"] for point in facts["curve"]] == [
        max(1, round(point["density"] * size)) for point in facts["curve"]
    ]
    code, _, err = run(*words, "--curve", "--paper-curve", "-o", "x.safetensors")
    assert code == 2
    assert "one at a time" in err
    code, _, err = run(*words[:5], "--method", "movement", "--budget", 9, "--paper-curve", "-o", "x.safetensors")
    assert code == 2
    assert "ask for the nested curve" in err


def test_each_point_of_the_papers_curve_is_a_search_of_its_own(place: Path, tuned: Path) -> None:  # noqa: F811
    three = (place / "encoder", tuned, place / "films.toml")
    found = localize_skill(*three, densities=(0.01, 0.1), curve="paper", **STEPS)
    for point in found.curve:
        alone = localize_skill(*three, start=point["density"], **STEPS).graft
        assert point["entries"] == len(alone)
        assert point["accuracy"] == alone.info["scores"]["validation"]["graft"]["accuracy"]


@pytest.mark.parametrize("settings", [{"scope": "biases"}, {"reference": "zero"}, {"scope": "*.attention.*"}])
def test_base_and_tuned_are_told_as_they_are(settings: dict[str, Any], place: Path, tuned: Path) -> None:  # noqa: F811
    """Whatever the scope leaves out and the reference sets to 0: base's and tuned's scores are those of the folders."""
    located = localize_skill(
        place / "encoder", tuned, place / "films.toml", budget=9, **{"name": "movement", **settings}
    )
    told = located.graft.info["scores"]["validation"]
    said = evaluate(place / "encoder", [place / "films.toml"], tuned={"t": tuned}, split="validation").said["films"]
    for model, name in (("base", "base"), ("tuned", "t")):
        assert told[model]["accuracy"]["value"] == float((said[name].predicted == said[name].labels).mean())
        nll = METRICS["nll"](said[name])
        assert told[model]["nll"]["value"] == pytest.approx(nll, rel=1e-5)
    left_out = located.graft.info.get("outside_scope") or {}
    assert bool(left_out) == ("scope" in settings), "what the scope leaves out is counted"


def test_learning_from_tuned_s_labels_tells_the_true_scores(place: Path, tuned: Path) -> None:  # noqa: F811
    data = Rows(labels="tuned")
    with open_workplace(place / "encoder", tuned, place / "films.toml", data=data) as spot:
        with spot.problem.all_of(spot.target):
            assert spot.score_now() == 1.0, "tuned agrees with its own labels"
        true = [row.label for row in spot.readout.encode(spot.split.validation)]
        assert [row.label for row in spot.judged] == true
    before = open_readouts(place / "encoder", [load_task(place / "films.toml")]).model.state_dict()
    assert all(bool((spot.model.state_dict()[name] == tensor).all()) for name, tensor in before.items())


def test_a_random_region_follows_the_seed(place: Path, tuned: Path) -> None:  # noqa: F811
    three = (place / "encoder", tuned, place / "films.toml")
    found = [localize_skill(*three, name="random", budget=40, data=Rows(seed=seed)).graft.region for seed in (0, 0, 1)]
    assert found[0] == found[1]
    assert found[0] != found[2]
