"""The steps and formulas of P2's recipes against the library called by hand, and against numbers worked out by hand."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skillgraft.compose.forgetting import forget
from skillgraft.compose.rules import thinned
from skillgraft.compose.scales import search_scale
from skillgraft.errors import InputError
from skillgraft.files.graft_file import save
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.folders.extract import extract
from skillgraft.papers import Store
from skillgraft.papers import formulas as v
from skillgraft.papers.calls import ask, ask_thinned, best_rate, disentangle
from skillgraft.papers.formulas import region_of
from skillgraft.papers.profile import profile
from skillgraft.papers.run import run
from skillgraft.papers.steps import plain
from skillgraft.papers.task_vectors import METHODS, Skill, added, single, teams, trained_in, vector
from skillgraft.predictions.predictions import Predictions
from skillgraft.regions.pruning import pruning_sensitivity
from skillgraft.tasks.data import Data
from skillgraft.training.costs import Setup, training_costs
from skillgraft.training.finetune import finetune
from skillgraft.training.linearised import near_linearity
from skillgraft.values.names import layer_of
from skillgraft.values.region import Region, Scope
from tests.compose.toy_tasks import QUICK, place, tasks  # noqa: F401
from tests.readouts import making

# pytest passes fixtures by their names, which are imported here
# ruff: noqa: F811

ROWS = Data(train_rows=40, validation_rows=16)
TEST = Data(test_rows=20)


@pytest.fixture(scope="module")
def tuned(place: Path, tasks: list[Path]) -> dict[str, Path]:
    """Two fine-tunes."""
    folders = {file.stem: place / f"tuned-{file.stem}" for file in tasks[:2]}
    for file in tasks[:2]:
        finetune(place / "encoder", [file], out=folders[file.stem], plan=QUICK, data=Data(train_rows=40))
    return folders


@pytest.fixture
def base(place: Path) -> str:
    return str(place / "encoder")


def a_run(folder: Path, lr: str, score: float) -> Path:
    """A tuned folder with a validation score."""
    model = folder / lr
    model.mkdir(parents=True)
    (model / "model.safetensors").write_text(lr)
    validation = {"films": score} if score else {}
    (model / "skillgraft.json").write_text(json.dumps({"made": {"validation": validation}}))
    return model


@pytest.mark.parametrize(
    ("scores", "within", "chosen"),
    [
        ({"1e-4": 0.80, "2e-4": 0.90, "4e-4": 0.85}, 0.0, "2e-4"),
        ({"4e-4": 0.90, "1e-4": 0.90, "2e-4": 0.80}, 0.0, "1e-4"),  # of equal ones the smallest, whatever the order
        ({"1e-4": 0.80, "2e-4": 0.81}, 0.01, "1e-4"),  # 0.81 − 0.01 is 0.8000000000000002 in floating point
        ({"1e-4": 0.79, "2e-4": 0.81}, 0.01, "2e-4"),
    ],
)
def test_the_smallest_learning_rate_within_reach_of_the_best_is_taken(
    scores: dict[str, float], within: float, chosen: str, tasks: list[Path], tmp_path: Path
) -> None:
    runs = {lr: a_run(tmp_path / "runs", lr, score) for lr, score in scores.items()}
    for _ in range(2):  # killed in its midst, it is called again
        found = best_rate(runs, task=str(tasks[0]), out=tmp_path / "model", within=within)
    taken, kept = tmp_path / "model" / "model.safetensors", runs[chosen] / "model.safetensors"
    assert taken.stat().st_ino == kept.stat().st_ino, "linked, not copied"
    assert found.facts == {"lr": float(chosen), "validation": scores}
    assert v.learning_rate(found.facts).value == float(chosen)
    assert all(lr in v.learning_rate(found.facts).reason for lr in scores)


def test_without_validation_rows_no_learning_rate_can_be_chosen(tasks: list[Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="task 'films' has none left: train on fewer rows"):
        best_rate({"1e-4": a_run(tmp_path, "1e-4", 0.0)}, task=str(tasks[0]), out=tmp_path / "model")


@pytest.mark.parametrize(("rule", "linear"), [("sum", False), ("ties", False), ("sum", True)])
def test_tuned_folders_are_added_up_as_all_that_they_change(
    rule: str, linear: bool, base: str, tasks: list[Path], tuned: dict[str, Path], tmp_path: Path
) -> None:
    asked: dict[str, Any] = {"tasks": tasks[:2], "rule": rule, "linear": linear, "or_base": True, "data": ROWS}
    changes = [extract(base, folder).without_heads() for folder in tuned.values()]
    save(changes[1], tmp_path / "second.safetensors")
    whole = search_scale(base, changes, **asked)
    for given in (list(tuned.values()), [changes[0], tmp_path / "second.safetensors"]):
        assert search_scale(base, given, **asked) == whole
    search = whole.info["recipe"]["search"]
    assert v.fact("search", "best", "scale")(whole.info["recipe"]) == search["best"]["scale"]
    assert len(search["points"]) == 21


def test_where_nothing_adds_up_it_is_an_error_or_the_base(base: str, tasks: list[Path], tuned: dict[str, Path]) -> None:
    """Skills that make their own tasks worse: the negated changes."""
    worse = [-extract(base, folder).without_heads() for folder in tuned.values()]
    asked: dict[str, Any] = {"tasks": tasks[:2], "data": ROWS}
    with pytest.raises(InputError, match="no scale above 0 is better than the base itself"):
        search_scale(base, worse, **asked)
    nothing = search_scale(base, worse, or_base=True, **asked)
    assert nothing.norm == 0.0
    assert nothing.info["recipe"]["search"]["best"]["scale"] == 0.0


@pytest.mark.parametrize("linear", [False, True])
def test_what_is_taken_away_and_nothing_where_nothing_helps(
    linear: bool, base: str, tasks: list[Path], tuned: dict[str, Path], tmp_path: Path
) -> None:
    asked: dict[str, Any] = {"task": tasks[0], "controls": [tasks[1]], "linear": linear, "data": ROWS}
    found = forget(base, tuned["films"], keep=0.01, **asked)
    facts = found.info["recipe"]
    assert facts["scale"] > 0
    assert facts["scores"]["films"] < facts["base"]["films"]
    assert found.digest == (-facts["scale"] * extract(base, tuned["films"]).without_heads()).digest
    finetune(
        base, [tasks[0]], out=tmp_path / "zero", plan=QUICK.with_changes(lr=1e-12, steps=1), data=Data(train_rows=40)
    )
    with pytest.raises(InputError, match="no scale lowers films"):
        forget(base, tmp_path / "zero", **asked)
    assert forget(base, tmp_path / "zero", or_base=True, **asked).info["recipe"]["scale"] == 0.0


def test_linearised_scores_tell_how_nearly_linear_a_vector_is(
    base: str, tasks: list[Path], tuned: dict[str, Path]
) -> None:
    film: dict[str, Any] = {"base": base, "task": str(tasks[0]), "data": TEST}
    own, linear = (ask(**film, tuned=tuned["films"], linear=each) for each in (False, True))
    wanted = near_linearity(base, extract(base, tuned["films"]), tasks[0], data=TEST).value
    assert v.distance(own, linear, ask(**film)).value == pytest.approx(wanted, rel=1e-4)
    assert linear.made_by["scores"] == "linearised"


def test_a_linearised_model_moves_in_a_straight_line(base: str, tasks: list[Path], tuned: dict[str, Path]) -> None:
    film: dict[str, Any] = {"base": base, "task": str(tasks[0]), "data": TEST}
    start = ask(**film).scores
    once, twice = (ask(**film, tuned=tuned["films"], linear=True, scale=scale).scores for scale in (1.0, 2.0))
    np.testing.assert_allclose(twice - start, 2 * (once - start), rtol=1e-3, atol=1e-5)


def test_maps_pruning_and_costs_are_read_as_they_were_kept(
    base: str, tasks: list[Path], tuned: dict[str, Path]
) -> None:
    files = list(map(str, tasks[:2]))
    found = disentangle(base, tasks=files, grafts=list(tuned.values()), alphas=[0.0, 2.0], data=ROWS)
    facts = plain(found)
    errors = [[v.error(row, column)(facts).value for column in (0, 1)] for row in (0, 1)]
    assert errors[0][0] == 0.0
    assert v.mean_error(facts) == pytest.approx(np.mean(errors))  # type: ignore[arg-type]
    asked: dict[str, Any] = {"shares": [0.1, 0.4], "data": Data(train_rows=16, test_rows=20, seed=1)}
    one = plain(pruning_sensitivity(base, files, found_on=["animals"], **asked))
    whole = pruning_sensitivity(base, files, **asked)
    for scored in ("films", "animals"):
        assert v.pruned(scored, "0.4")(one) == whole.ratios["animals"][scored][0.4]
    assert v.pruned_mean("0.1", own=True)(one).value == whole.ratios["animals"]["animals"][0.1].value
    assert v.pruned_mean("0.1", own=False)(one).value == whole.ratios["animals"]["films"][0.1].value
    setups = {"full": Setup(QUICK), "LoRA": Setup(QUICK.with_changes(method="lora"))}
    costs = plain(training_costs(base, files[0], setups, steps=2))
    assert v.cost("LoRA", "trained")(costs) < v.cost("full", "trained")(costs)
    assert v.cost_over_full("full", "step_seconds")(costs) == 1.0


def right(number: int, *, of: int = 100, task: str = "t") -> Predictions:
    """A model that is right about so many rows."""
    scores = [[1.0, 0.0]] * number + [[0.0, 1.0]] * (of - number)
    return Predictions(scores, [0] * of, task=task)


def three(task: str, numbers: Sequence[int]) -> list[Predictions]:
    """The combined model, the single one, and full fine-tuning's."""
    return [right(number, task=task) for number in numbers]


def test_sums_are_compared_only_within_two_points_of_full() -> None:
    """Single-task accuracies 78 and 90 against full's 80 and 90: two points are enough."""
    found = [*three("a", (39, 78, 80)), *three("b", (81, 90, 90))]
    assert v.summed(*found).value == pytest.approx(0.60)
    assert v.compared(*found).value == v.normalised(*found).value == pytest.approx((0.5 + 0.9) / 2)
    assert v.compared(*found).reason == ""
    low, high = v.normalised(*found).low, v.normalised(*found).high
    assert low is not None
    assert high is not None
    assert low < 0.7 < high
    assert v.accuracy(found[0], found[3]).value == pytest.approx(0.60)


def test_a_rule_is_normalised_by_its_thinned_vectors_and_by_fulls() -> None:
    """Thinned vectors alone have 50 and 90 where full's have 80 and 90: they are not undertrained, and no number is missing."""
    found = [*three("a", (40, 50, 80)), *three("b", (81, 90, 90))]
    assert v.by_single(*found).value == pytest.approx((0.8 + 0.9) / 2)
    assert v.by_full(*found).value == pytest.approx((0.5 + 0.9) / 2)
    assert v.by_single(*found).reason == v.by_full(*found).reason == ""
    assert v.by_single(*three("a", (40, 0, 80))).value is None


@pytest.mark.parametrize("rule", ["ties", "tall", "dare"])
def test_thinned_vectors_answer_as_they_would_by_hand(
    rule: str, base: str, tasks: list[Path], tuned: dict[str, Path]
) -> None:
    options = {"seed": 3} if rule == "dare" else {}
    changes = [extract(base, folder).without_heads() for folder in tuned.values()]
    parts = thinned(changes, rule=rule, **options)
    for index, task in enumerate(tasks[:2]):
        asked: dict[str, Any] = {"grafts": list(tuned.values()), "of": index, "rule": rule, "data": TEST, **options}
        found = ask_thinned(base, str(task), **asked)
        wanted = ask(base, str(task), graft=parts[index], data=TEST)
        assert found.scores.tolist() == wanted.scores.tolist()
        if rule != "tall":
            alone = ask_thinned(base, str(task), **{**asked, "grafts": asked["grafts"][index : index + 1], "of": 0})
            assert alone.scores.tolist() == wanted.scores.tolist()


def test_an_undertrained_vector_has_its_number_beside_and_a_reason_in_the_comparison() -> None:
    found = [*three("a", (77, 77, 80)), *three("b", (81, 90, 90))]
    reason = "undertrained: single-task accuracy below full's: a 3.0 points"
    assert (v.compared(*found).value, v.compared(*found).reason) == (None, reason)
    assert (v.normalised(*found).value, v.normalised(*found).reason) == (pytest.approx(0.95), reason)
    assert v.summed(*found).reason == reason
    assert v.compared(*found[3:]).value == pytest.approx(0.9)


def test_function_localisation_by_hand() -> None:
    assert v.localised(right(40), right(50)).value == pytest.approx(0.8)
    for number in (40, 60):  # as far below the base as above it
        assert v.disturbed(right(number), right(50)).value == pytest.approx(0.2)


def a_region(sites: dict[str, list[int]]) -> Region:
    scope = Scope.of("all", {"l.0.query.weight": (2, 3), "l.0.key.weight": (2, 2), "l.1.query.weight": (2, 3)})
    return Region(scope, sites)


def test_pictures_of_regions_by_hand() -> None:
    one = a_region({"l.0.query.weight": [0, 1, 2], "l.1.query.weight": [0]})
    two = a_region({"l.0.query.weight": [0, 1], "l.0.key.weight": [3]})
    assert v.selected("l.0", "query")(one).value == 0.5
    assert v.selected("l.0", "key")(one).value == 0.0
    assert v.selected("l.1", "key")(one).reason == "l.1 has no key"
    assert v.empty("query", "rows")(one).value == 2 / 4
    assert v.empty("query", "columns")(one).value == 2 / 6
    assert v.empty("value", "rows")(one).reason == "no matrix is of kind value"
    assert v.mean_jaccard(one, two) == 2 / 5
    both = 4 * 3 / 16
    assert v.jaccard_by_chance(one, two) == pytest.approx(both / (7 - both))
    assert v.in_all(one, two) == pytest.approx(2 / 3.5)


def test_facts_are_read_by_the_names_that_lead_to_them() -> None:
    assert v.fact("best", "scale")({"best": {"scale": 0.45}}) == 0.45


def test_every_method_searches_three_learning_rates_on_the_same_rows_and_steps(place: Path, tasks: list[Path]) -> None:
    skill = Skill(profile("cpu", base=str(place / "encoder")), str(tasks[0]), 0, rows=40)
    for name, method in METHODS.items():
        chosen = vector(skill, name)
        runs = chosen.arguments["tuned"]
        plans = [step.arguments["plan"] for step in runs.values()]
        assert len({plan.lr for plan in plans}) == len(plans) >= 3
        assert {(plan.steps, plan.batch_size, plan.optimizer) for plan in plans} == {(250, 16, "adamw")}
        assert {step.arguments["data"] for step in runs.values()} == {Data(train_rows=40, max_length=64)}
        assert [float(lr) for lr in runs] == pytest.approx([plan.lr for plan in plans])
        assert ("linear" in single(skill, name).arguments) == method.linear
    assert vector(skill, "post-hoc linearised") == vector(skill, "full")


def test_regions_of_the_upper_half_are_as_large_and_lie_in_the_later_layers(
    place: Path, tasks: list[Path], tmp_path: Path
) -> None:
    skill = Skill(profile("smoke", base=str(place / "encoder")), str(tasks[0]), 0, rows=16)
    store = Store(tmp_path)
    regions = {name: trained_in(skill, name) for name in METHODS if METHODS[name].region}
    assert run(regions.values(), store) == {}
    found = {name: region_of(store.read(step)) for name, step in regions.items()}
    for name in ("TaLoS", "LoTA"):
        upper = found[f"{name} upper half"]
        assert len(upper) == pytest.approx(len(found[name]), abs=1)
        assert {layer_of(tensor) for tensor in upper} == {"encoder.layer.1"}
        assert {layer_of(tensor) for tensor in found[name]} == {"encoder.layer.0", "encoder.layer.1"}
    assert found["full upper half"].density == 1.0


def test_the_tasks_of_a_team_train_on_as_many_rows_as_the_smallest_can_spare(place: Path, tasks: list[Path]) -> None:
    files = list(map(str, tasks[:2]))
    ((words, (team,)),) = teams(profile("cpu", base=str(place / "encoder")), files).items()
    assert words == "105 training rows"  # seven eighths of 120
    assert [skill.rows for skill in team] == [105, 105]
    ((words, _),) = teams(profile("smoke", base=str(place / "encoder")), files).items()
    assert words == "16 training rows"


def test_a_step_is_the_same_wherever_its_tasks_lie(place: Path, tasks: list[Path], tmp_path: Path) -> None:
    shutil.copytree(place, tmp_path / "elsewhere", ignore=shutil.ignore_patterns("tuned-*"))
    keys = set()
    for folder in (place, tmp_path / "elsewhere"):
        chosen = profile("smoke", base=str(folder / "encoder"))
        team = tuple(Skill(chosen, str(folder / file.name), 0, rows=16) for file in tasks[:2])
        keys.add(added(team, "full").key)
    assert len(keys) == 1


def test_of_two_towers_the_one_that_reads_the_task_is_the_scope(tmp_path: Path, tasks: list[Path]) -> None:
    digits = str(making.write_digits(tmp_path, "digits"))
    scopes = {
        kind: Skill(profile("smoke", base=str(getattr(making, kind)(tmp_path / kind))), digits, 0).scope
        for kind in ("clip", "vit")
    }
    assert scopes == {"clip": "vision_model.*.layers.*", "vit": "layers"}
    film = Skill(profile("smoke", base=str(tmp_path / "clip")), str(tasks[0]), 0)
    assert film.scope == "text_model.*.layers.*"
    assert Skill(profile("smoke", base="owner/name"), digits, 0).scope == "layers"


def test_training_where_the_scores_do_not_look_is_refused(tmp_path: Path) -> None:
    base, digits = making.clip(tmp_path / "clip"), making.write_digits(tmp_path, "digits")
    other = Region.full(Scope.select("text_model.*.layers.*", Checkpoint.open(base).shapes))
    with pytest.raises(InputError, match="nothing that trains has a part in the scores of 'digits'"):
        finetune(base, [digits], out=tmp_path / "out", plan=QUICK, data=Data(train_rows=20), inside=other)
