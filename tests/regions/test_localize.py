"""`localize` between folders as a user runs it, in Python and on the command line, on a sentence encoder and a linear head."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skillgraft import TaskModel, extract, grafted, load, load_region, localize, save_region
from skillgraft.cli.localize import METHODS as METHODS_HELP
from skillgraft.cli.localize import OF_BASE, OF_TUNED
from skillgraft.errors import InputError
from skillgraft.live.grafted import tensors_of
from skillgraft.measure.metrics import METRICS
from skillgraft.regions.choose import BASE_METHODS
from skillgraft.regions.methods import METHODS
from skillgraft.regions.problem import holding_all
from skillgraft.regions.search import SearchPlan
from skillgraft.regions.tuned_pair import open_pair
from skillgraft.tasks.data import Data
from skillgraft.training.finetune import finetune
from tests.readouts import making
from tests.regions.films import QUICK, STEPS, Films, accuracy, converted
from tests.running import Run

LEARNED: dict[str, Any] = {"method": "learned", "entries": 5}


def test_localize_writes_a_graft_with_its_scores(run: Run, films: Films, tmp_path: Path) -> None:
    words = (*films.words, "--method", "learned", "--density", 0.02, "--steps", 6, "--lr", 1e5)
    code, out, err = run(*words, "--curve", "-o", "cut.safetensors", "--json")
    assert code == 0, err
    facts = json.loads(out)
    graft = load(tmp_path / "cut.safetensors")
    assert facts["entries"] == len(graft) == round(0.02 * graft.region.scope.size)
    scores = graft.info["scores"]["validation"]
    assert set(scores) == {"base", "tuned", "graft"}
    assert scores["tuned"]["accuracy"]["value"] > scores["base"]["accuracy"]["value"]
    assert {"share_kept", "relative_gain", "agreement", "ece"} <= scores["graft"].keys()
    assert graft.info["method"] == "learned"
    assert graft.info["recipe"]["steps"] == 6
    assert graft.info["command"].startswith("skillgraft localize encoder skilled")
    assert [point["density"] for point in facts["curve"]][:2] == [1e-5, 3e-5]
    code, text, err = run(*words, "-o", "again.safetensors")
    assert code == 0, err
    assert "share kept" in text
    assert "█" in text
    assert graft.digest == load(tmp_path / "again.safetensors").digest


def test_the_graft_does_live_what_its_scores_say(films: Films) -> None:
    located = films.localize(density=0.05, **STEPS)
    predictions = films.predictions(graft=located.graft)
    for model in ("base", "tuned", "graft"):
        assert accuracy(predictions[model]) == located.scores[model]["accuracy"]["value"]
    assert located.scores == located.graft.info["scores"]["validation"]


def test_mixed_precision_is_for_gradients_alone(films: Films) -> None:
    plain, mixed = (
        films.localize(method="budgeted", density=0.02, steps=3, mixed_precision=precision)
        for precision in ("no", "bf16")
    )
    found = [located.graft.info["recipe"]["search"]["losses"] for located in (plain, mixed)]
    assert found[0] != found[1]
    np.testing.assert_allclose(found[0], found[1], rtol=0.05)
    assert plain.scores["tuned"] == mixed.scores["tuned"]


def test_keep_finds_a_small_region_that_keeps_the_share(films: Films) -> None:
    located = films.localize(keep=0.7, method="movement")
    assert located.scores["graft"]["share_kept"]["value"] >= 0.7
    assert len(located.graft) < 0.1 * located.graft.region.scope.size


@pytest.mark.parametrize(("given", "taken"), [({}, 24), ({"batch_size": 6}, 6)])
def test_small_steps_take_few_rows(films: Films, given: dict[str, int], taken: int) -> None:
    graft = films.graft(method="budgeted", density=0.02, steps=3, **given)
    assert graft.info["recipe"]["batch_size"] == taken
    plan = SearchPlan.of(method="budgeted", density=0.02, **given)
    with open_pair(films.base, films.tuned, [films.task], plan=plan) as pair:
        sizes = [sum(len(batch["labels"]) for (_, batch), _ in pair.problem.steps(step)) for step in range(3)]
    assert sizes == [taken] * 3


def test_a_linear_head_is_on_while_its_region_is_learned(films: Films, tmp_path: Path) -> None:
    base, data = making.bert(tmp_path / "masked"), Data(readout="linear")
    finetune(base, [films.task], out=tmp_path / "t", plan=QUICK.with_changes(steps=100), data=data)
    located = localize(base, tmp_path / "t", task=films.task, density=0.5, data=data, **STEPS)
    assert "classifier.weight" in located.graft.heads
    assert located.scores["tuned"]["accuracy"]["value"] > 0.9
    opened = TaskModel.open(base, [films.task], data=data)
    with grafted(opened.model, located.graft):
        found = opened.predict()["films"]
    assert accuracy(found) == located.scores["graft"]["accuracy"]["value"]


def test_unless_another_is_asked_for_the_search_is_within_its_budget_and_that_is_p1s(
    run: Run, films: Films, tmp_path: Path
) -> None:
    code, out, err = run(*films.words, "-o", "default.safetensors", "--json")
    assert code == 0, err
    assert json.loads(out)["method"] == "budgeted"
    found = load(tmp_path / "default.safetensors")
    assert len(found) == max(1, round(1e-4 * found.region.scope.size))
    assert films.graft().region == films.graft(method="budgeted", density=1e-4).region == found.region
    alone = films.localize(method="learned", steps=6).graft
    assert alone.info["recipe"]["density"] is None, "P1's own says itself how many"


def test_a_search_that_compares_its_regions_is_no_worse_than_movement_on_validation_rows(films: Films) -> None:
    asked: dict[str, Any] = {"density": 0.01, "steps": 4}
    found = films.localize(**asked, look_every=2)
    looks = found.graft.info["recipe"]["search"]["looks"]
    assert [step for step, _, _ in looks] == [0, 2, 4]
    moved = films.localize(method="movement", density=0.01)
    least = min(-score for _, _, score in looks)
    assert found.scores["graft"]["nll"]["value"] == pytest.approx(least, rel=1e-4)
    assert -looks[0][2] == pytest.approx(moved.scores["graft"]["nll"]["value"], rel=1e-4)
    assert films.localize(**asked).graft.info["recipe"].get("search", {}).get("looks") is None


def test_each_point_of_a_budgeted_curve_has_a_search_of_its_own(films: Films) -> None:
    """A prefix of a larger budget's ranking was not searched for itself."""
    points, few = (0.01, 0.1), {"steps": 4}
    found = films.localize(density=0.01, densities=points, **few)
    assert found.curve_kind == "each"
    assert not found.nested
    for point in found.curve:
        alone = films.localize(density=point["density"], **few)
        assert {key: point[key] for key in alone.scores["graft"]} == dict(alone.scores["graft"])
        assert point["entries"] == len(alone.graft)
    assert found.graft.region == films.localize(density=0.01, **few).graft.region


def test_start_from_a_file_or_from_nothing(films: Films, tmp_path: Path) -> None:
    movement = films.graft(entries=30, method="movement")
    save_region(movement.region, tmp_path / "start.safetensors")
    still: dict[str, Any] = {"method": "learned", "steps": 1, "lr": 1e-9}
    found = films.graft(start=tmp_path / "start.safetensors", entries=30, **still)
    assert found.region == movement.region, "a mask that is hardly moved is still its start"
    assert films.graft(start=movement.region, entries=30, **still).region == movement.region
    assert len(films.graft(start="empty", entries=30, **STEPS)) == 30
    assert len(films.graft(labels="tuned", entries=30, **STEPS)) == 30


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"entries": 5, "keep": 0.9}, "a density, a number of entries, or a share to keep of the score or of the gain"),
        ({"keep": 1.5}, "between 0 and 1"),
        (
            {"method": "movement"},
            "'movement' ranks entries but does not say how many: give a density, entries or a share",
        ),
        ({"method": "lerned", "entries": 5}, "did you mean 'learned'"),
        (
            {"method": "movement", "entries": 5, "steps": 3},
            "'movement' takes no 'steps'; that is for budgeted, learned",
        ),
        ({"entries": 5, "stepps": 3}, "the method 'budgeted' takes no 'stepps'; did you mean 'steps'"),
        ({"entries": 5, "lr": 1e7}, "the method 'budgeted' takes no 'lr'; that is for learned"),
        ({"entries": 5, "start": "empty"}, "the method 'budgeted' takes no 'start'; that is for learned"),
        ({**LEARNED, "lr": -1.0}, "learning rate must be a number above 0, or 'auto'; found -1.0"),
        ({**LEARNED, "lr": float("nan")}, "learning rate must be a number above 0, or 'auto'; found nan"),
        ({**LEARNED, "l1": -1e-3}, "L1 term must be a number of at least 0, found -0.001"),
        ({"entries": 5, "curve": "papier"}, "unknown curve 'papier'; did you mean 'paper'"),
        ({"entries": 5, "labels": "false"}, "'true' or 'tuned'"),
        ({"entries": 5, "mixed_precision": "fp16"}, "mixed_precision is 'no' or 'bf16', found 'fp16'"),
        ({**LEARNED, "start": 7}, "a density is a share of the scope.*found 7: for a count use entries"),
    ],
)
def test_wrong_questions_are_refused(settings: dict[str, Any], message: str, films: Films) -> None:
    with pytest.raises(InputError, match=message):
        films.localize(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scope": "*.nowhere.*"}, "selects none of the"),
        ({"method": "learned", "start": 7}, "a density is a share of the scope.*found 7: for a count use entries"),
        ({"entries": 10**9}, "1,000,000,000 entries are more than the"),
        ({"task": "nowhere.toml"}, "nowhere.toml"),
        ({"tuned": "bfloat16"}, "float32 in .* and bfloat16 in .*--convert"),
        ({"tuned": "nowhere"}, "nowhere"),
    ],
)
def test_what_is_wrong_is_known_before_the_model_is_loaded(
    settings: dict[str, Any], message: str, films: Films, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_model(*_: Any) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("skillgraft.readouts.readouts.Loader.__call__", load_model)
    converted(films.tuned, tmp_path / "bfloat16", "bfloat16")
    asked = {"tuned": films.tuned, "task": films.task, "density": None if "entries" in settings else 0.1, **settings}
    with pytest.raises(InputError, match=message):
        localize(films.base, tmp_path / asked.pop("tuned"), **asked)


def test_a_tuned_folder_of_another_format_is_converted_on_request(films: Films, tmp_path: Path) -> None:
    """Rounded as it is read: the graft is that of the folder rounded beforehand."""
    base, tuned = (converted(source, tmp_path / source.name, "bfloat16") for source in (films.base, films.tuned))
    here = localize(base, films.tuned, task=films.task, convert=True, density=0.05, **STEPS)
    beforehand = localize(base, tuned, task=films.task, density=0.05, **STEPS)
    assert here.graft.digest == beforehand.graft.digest
    assert here.scores == beforehand.scores


def test_a_region_of_the_base_to_train_in(run: Run, films: Films, tmp_path: Path) -> None:
    budget = ("--train-rows", 20, "--method", "lowest-fisher", "--density", 0.1)
    words = ("localize", films.base, "--task", films.task, *budget)
    code, out, err = run(*words, "--rounds", 2, "-o", "quiet.safetensors", "--json")
    assert code == 0, err
    facts = json.loads(out)
    region = load_region(tmp_path / "quiet.safetensors")
    assert facts["entries"] == len(region) == round(0.1 * region.scope.size)
    assert (facts["rounds"], facts["readout"]) == (2, "text-head")
    training = ("finetune", films.base, "--task", films.task, "--inside", "quiet.safetensors", "--steps", 3)
    code, _, err = run(*training, "-o", "quietly")
    assert code == 0, err
    assert len(extract(films.base, tmp_path / "quietly").region - region) == 0
    code, _, err = run(*films.words, *budget, "-o", "x.safetensors")
    assert code == 2
    assert "looks at BASE alone" in err
    code, _, err = run("localize", films.base, "--task", films.task, "--entries", 5, "-o", "x.safetensors")
    assert code == 2
    assert "give the fine-tuned folder as well" in err


def test_a_method_without_data_needs_no_task(run: Run, films: Films, tmp_path: Path) -> None:
    words = ("--method", "highest-magnitude", "--density", 0.01)
    code, out, err = run("localize", films.base, *words, "-o", "big.safetensors", "--json")
    assert code == 0, err
    assert json.loads(out)["entries"] == len(load_region(tmp_path / "big.safetensors"))
    code, _, err = run("localize", films.base, films.tuned, "--entries", 5, "-o", "x.safetensors")
    assert code == 2
    assert "give --task" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("TUNED", "--damp", 0.3), "the method 'budgeted' takes no 'damp'"),
        (("TUNED", "--method", "movement", "--start", "empty"), "'movement' takes no 'start'; leave out --start"),
        (("--method", "lowest-fisher", "--steps", 5), "the method 'lowest-fisher' takes no 'steps'"),
        (("--method", "highest-fisher", "--keep", 0.9), "'highest-fisher' takes no 'keep'; leave out --keep"),
        (("--method", "random-region", "--curve"), "'random-region' takes no 'curve'; leave out --curve"),
        (("--method", "lowest-fisher", "--batch-size", 4), "takes no 'batch_size'; leave out --batch-size"),
        (("--method", "lowest-fisher", "--convert"), "takes no 'convert'; leave out --convert"),
    ],
)
def test_an_option_of_another_method_is_not_passed_over(
    words: tuple[Any, ...], message: str, run: Run, films: Films, tmp_path: Path
) -> None:
    given = [films.tuned if word == "TUNED" else word for word in words]
    code, _, err = run("localize", films.base, *given, "--task", films.task, "-o", "x.safetensors")
    assert code == 2
    assert message in err
    assert not (tmp_path / "x.safetensors").exists()


def test_the_command_knows_every_method_without_the_tables() -> None:
    """It refuses wrong names before torch is imported, so it has the names in its own file."""
    assert tuple(METHODS) == OF_TUNED
    assert tuple(BASE_METHODS) == OF_BASE
    assert METHODS.keys() | BASE_METHODS.keys() <= set(re.findall(r"[a-z-]+", METHODS_HELP))


def test_the_curve_says_which_one_it_is(run: Run, films: Films, tmp_path: Path) -> None:
    words = (
        *films.words,
        "--method",
        "learned",
        "--steps",
        4,
        "--lr",
        1e5,
        "--look-every",
        2,
        "--patience",
        1,
        "--l1",
        1e-9,
    )
    code, text, err = run(*words, "--paper-curve", "-o", "paper.safetensors")
    assert code == 0, err
    assert "curve: a search of its own from γ_base = the most moved entries of each density (P1)" in text
    assert "base → tuned" in text
    why = "a sentence encoder, and films has descriptions"
    assert f"readout: text-head ({why})" in text
    recipe = load(tmp_path / "paper.safetensors").info["recipe"]
    assert (recipe["l1"], recipe["patience"], recipe["look_every"]) == (1e-9, 1, 2)
    code, out, err = run(*words, "--curve", "-o", "nested.safetensors", "--json")
    assert code == 0, err
    facts = json.loads(out)
    assert facts["curve_kind"] == "nested"
    assert (facts["readout"], facts["readout_why"]) == ("text-head", why)
    size = load(tmp_path / "nested.safetensors").region.scope.size
    assert [point["entries"] for point in facts["curve"]] == [
        max(1, round(point["density"] * size)) for point in facts["curve"]
    ]
    code, _, err = run(*words, "--curve", "--paper-curve", "-o", "x.safetensors")
    assert code == 2
    assert "one at a time" in err
    code, _, err = run(*films.words, "--method", "movement", "--entries", 9, "--paper-curve", "-o", "x.safetensors")
    assert code == 2
    assert "ask for the method 'learned', or for the other curve" in err


def test_each_point_of_the_papers_curve_is_a_search_of_its_own(films: Films) -> None:
    found = films.localize(densities=(0.01, 0.1), curve="paper", **STEPS)
    for point in found.curve:
        alone = films.localize(start=point["density"], **STEPS)
        assert point["entries"] == len(alone.graft)
        assert point["accuracy"] == alone.scores["graft"]["accuracy"]


def test_each_point_of_the_nested_curve_is_a_budget_of_the_same_search(films: Films) -> None:
    found = films.localize(densities=(0.01, 0.1), **STEPS)
    for point in found.curve:
        alone = films.localize(density=point["density"], **STEPS)
        assert point["entries"] == len(alone.graft)
        assert point["accuracy"] == alone.scores["graft"]["accuracy"]


@pytest.mark.parametrize("settings", [{"scope": "biases"}, {"reference": "zero"}, {"scope": "*.attention.*"}])
def test_base_and_tuned_are_measured_as_they_are(settings: dict[str, Any], films: Films) -> None:
    """Whatever the scope leaves out and the reference sets to 0: base's and tuned's scores are those of the folders."""
    located = films.localize(entries=9, method="movement", **settings)
    predictions = films.predictions()
    for model in ("base", "tuned"):
        assert located.scores[model]["accuracy"]["value"] == accuracy(predictions[model])
        nll = METRICS["nll"](predictions[model])
        assert located.scores[model]["nll"]["value"] == pytest.approx(nll, rel=1e-5)
    left_out = located.graft.info.get("outside_scope") or {}
    assert bool(left_out) == ("scope" in settings), "what the scope leaves out is counted"
    expected = extract(films.base, films.tuned, entries=9, scope=settings.get("scope"))
    assert left_out == (expected.info.get("outside_scope") or {})


def test_learning_from_tuneds_labels_measures_by_the_true_ones(films: Films) -> None:
    plan = SearchPlan.of(labels="tuned", entries=5)
    with open_pair(films.base, films.tuned, [films.task], plan=plan) as pair:
        with holding_all(pair.opened.model, pair.tuned):
            assert pair.score_now() == pytest.approx(0.0, abs=1e-6), "tuned is no KL away from its own answers"
        assert pair.score_now() < -0.01
        rows = pair.opened.rows
        true = rows.readout("films").encode(rows.examples("films", "validation"))
        assert pair.tuned_predictions("films").labels.tolist() == [row.label for row in true]
    before = tensors_of(TaskModel.open(films.base, [films.task]).model).arrays
    after = tensors_of(pair.opened.model).arrays
    assert all(after[name].tobytes() == array.tobytes() for name, array in before.items())


def test_a_random_region_follows_the_seed(films: Films) -> None:
    found = [films.graft(method="random", entries=40, data=Data(seed=seed)).region for seed in (0, 0, 1)]
    assert found[0] == found[1]
    assert found[0] != found[2]
