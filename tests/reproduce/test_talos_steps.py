"""The steps and formulas of P2's recipes against the library called by hand, and against numbers worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skillgraft.checkpoint import Checkpoint
from skillgraft.compose.bench import Workbench
from skillgraft.compose.rules import combine
from skillgraft.compose.scales import search_scale, single_scores
from skillgraft.errors import InputError
from skillgraft.extraction import extract
from skillgraft.graft_file import load, save_region
from skillgraft.localize.pruning import pruning_sensitivity
from skillgraft.localize.workplace import Rows
from skillgraft.measure.predictions import Predictions
from skillgraft.names import layer_of
from skillgraft.region import Region, Scope
from skillgraft.reproduce import vector_formulas as v
from skillgraft.reproduce.jobs.analyses import cost, disentangle, prune
from skillgraft.reproduce.jobs.arithmetic import add, best, negate
from skillgraft.reproduce.jobs.artefacts import FACTS, GRAFT, MODEL, REGION, SAID, read_facts, region_of
from skillgraft.reproduce.jobs.saying import say
from skillgraft.reproduce.profile import profile
from skillgraft.reproduce.run import run
from skillgraft.reproduce.skills import METHODS, Skill, added, single, teams, trained_in, vector
from skillgraft.reproduce.store import Store
from skillgraft.training.finetune import finetune
from skillgraft.training.linearised import near_linearity
from skillgraft.training.plan import Plan
from tests.compose.toy_tasks import QUICK, place, tasks  # noqa: F401
from tests.readouts import making

# pytest passes fixtures by their names, which are imported here
# ruff: noqa: F811

ROWS = {"train_rows": 40, "rows": 16, "seed": 0}


@pytest.fixture(scope="module")
def tuned(place: Path, tasks: list[Path]) -> dict[str, Path]:
    """Folders of two tuning steps."""
    found = {}
    for file in tasks[:2]:
        folder = place / f"step-{file.stem}"
        finetune(place / "encoder", [file], folder / MODEL, plan=QUICK, rows=40)
        found[file.stem] = folder
    return found


@pytest.fixture
def base(place: Path) -> str:
    return str(place / "encoder")


def a_run(folder: Path, lr: str, score: float) -> Path:
    """A tuning step with a validation score."""
    model = folder / lr / MODEL
    model.mkdir(parents=True)
    (model / "model.safetensors").write_text(lr)
    validation = {"films": score} if score else {}
    (model / "skillgraft.json").write_text(json.dumps({"made": {"validation": validation}}))
    return folder / lr


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
    needs = {lr: a_run(tmp_path / "runs", lr, score) for lr, score in scores.items()}
    out = tmp_path / "out"
    out.mkdir()
    for _ in range(2):  # killed in its midst, it is called again
        best(out, needs, task=str(tasks[0]), within=within)
    taken, kept = out / MODEL / "model.safetensors", needs[chosen] / MODEL / "model.safetensors"
    assert taken.stat().st_ino == kept.stat().st_ino, "linked, not copied"
    assert read_facts(out) == {"lr": float(chosen), "validation": scores}
    assert v.learning_rate(out).value == float(chosen)
    assert all(lr in v.learning_rate(out).reason for lr in scores)


def test_without_validation_rows_no_learning_rate_can_be_chosen(tasks: list[Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="task 'films' has none left: train on fewer rows"):
        best(tmp_path, {"1e-4": a_run(tmp_path, "1e-4", 0.0)}, task=str(tasks[0]))


@pytest.mark.parametrize(("rule", "linear"), [("sum", False), ("ties", False), ("sum", True)])
def test_a_sum_is_scaled_as_the_library_scales_it(
    rule: str, linear: bool, base: str, tasks: list[Path], tuned: dict[str, Path], tmp_path: Path
) -> None:
    files = list(map(str, tasks[:2]))
    add(tmp_path, tuned, base=base, tasks=files, rule=rule, **({"linear": True} if linear else {}), **ROWS)
    changes = {name: extract(base, step / MODEL).without_heads() for name, step in tuned.items()}
    bench = Workbench.open(base, files, linear=linear, **ROWS)
    whole = combine(list(changes.values()), rule=rule)
    search = search_scale(bench, whole, singles=single_scores(bench, changes))
    assert read_facts(tmp_path) == json.loads(json.dumps(search.as_json()))
    assert load(tmp_path / GRAFT) == search.scale * whole


def test_what_is_taken_away_and_nothing_where_nothing_helps(
    base: str, tasks: list[Path], tuned: dict[str, Path], tmp_path: Path
) -> None:
    asked: dict[str, Any] = {"base": base, "task": str(tasks[0]), "tasks": [str(tasks[1])], **ROWS}
    negate(tmp_path, {"change": tuned["films"]}, keep=0.01, **asked)
    facts = read_facts(tmp_path)
    assert facts["scale"] > 0
    assert facts["scores"]["films"] < facts["base"]["films"]
    assert load(tmp_path / GRAFT) == -facts["scale"] * extract(base, tuned["films"] / MODEL).without_heads()
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    (tmp_path / "zero").mkdir()
    finetune(base, [tasks[0]], tmp_path / "zero" / MODEL, plan=QUICK.with_changes(lr=1e-12, steps=1), rows=40)
    negate(nothing, {"change": tmp_path / "zero"}, **asked)
    assert read_facts(nothing)["scale"] == 0.0


def test_linearised_scores_tell_how_nearly_linear_a_vector_is(
    base: str, tasks: list[Path], tuned: dict[str, Path], tmp_path: Path
) -> None:
    film = {"base": base, "task": str(tasks[0]), "rows": 20}
    folders = {name: tmp_path / name for name in ("own", "linear", "base")}
    for name, folder in folders.items():
        folder.mkdir()
        say(folder, {} if name == "base" else {"tuned": tuned["films"]}, **film, linear=name == "linear")
    graft = extract(base, tuned["films"] / MODEL)
    wanted = near_linearity(base, graft, str(tasks[0]), rows=20).value
    assert v.distance(*folders.values()).value == pytest.approx(wanted, rel=1e-4)


def test_maps_pruning_and_costs_are_the_librarys(
    base: str, tasks: list[Path], tuned: dict[str, Path], tmp_path: Path
) -> None:
    files = list(map(str, tasks[:2]))
    disentangle(tmp_path, tuned, base=base, tasks=files, alphas=[0.0, 2.0], **ROWS)
    errors = [[v.error(row, column)(tmp_path).value for column in (0, 1)] for row in (0, 1)]
    assert errors[0][0] == 0.0
    assert v.mean_error(tmp_path) == pytest.approx(np.mean(errors))  # type: ignore[arg-type]
    data = {"rows": 16, "seed": 1}
    prune(tmp_path, {}, base=base, task=files[1], tasks=files, shares=[0.1, 0.4], rows=20, scope="layers", data=data)
    whole = pruning_sensitivity(base, files, shares=[0.1, 0.4], rows=20, data=Rows(rows=16, seed=1))
    for scored in ("films", "animals"):
        assert v.pruned(scored, "0.4")(tmp_path) == whole.ratios["animals"][scored][0.4]
    assert v.pruned_mean("0.1", own=True)(tmp_path).value == whole.ratios["animals"]["animals"][0.1].value
    assert v.pruned_mean("0.1", own=False)(tmp_path).value == whole.ratios["animals"]["films"][0.1].value
    cost(tmp_path, {}, base=base, task=files[0], plan=QUICK.as_dict(), ways={"full": {}, "LoRA": {"method": "lora"}})
    assert v.cost("LoRA", "trained")(tmp_path) < v.cost("full", "trained")(tmp_path)
    assert v.cost_over_full("full", "step_seconds")(tmp_path) == 1.0


def said(folder: Path, name: str, right: int, *, of: int = 100, task: str = "t") -> Path:
    """A step in which a model is right about so many rows."""
    out = folder / f"{task}-{name}"
    out.mkdir()
    scores = [[1.0, 0.0]] * right + [[0.0, 1.0]] * (of - right)
    Predictions(scores, [0] * of, task=task).save(out / SAID)
    return out


def three(folder: Path, task: str, numbers: Sequence[int]) -> list[Path]:
    names = ("combined", "single", "full")
    return [said(folder, name, number, task=task) for name, number in zip(names, numbers, strict=True)]


def test_sums_are_compared_only_within_two_points_of_full(tmp_path: Path) -> None:
    """Single-task accuracies 78 and 90 against full's 80 and 90: two points are enough."""
    steps = [*three(tmp_path, "a", (39, 78, 80)), *three(tmp_path, "b", (81, 90, 90))]
    assert v.summed(*steps).value == pytest.approx(0.60)
    assert v.compared(*steps).value == v.normalised(*steps).value == pytest.approx((0.5 + 0.9) / 2)
    assert v.compared(*steps).reason == ""
    low, high = v.normalised(*steps).low, v.normalised(*steps).high
    assert low is not None
    assert high is not None
    assert low < 0.7 < high
    assert v.accuracy(steps[0], steps[3]).value == pytest.approx(0.60)


def test_an_undertrained_vector_has_its_number_beside_and_a_reason_in_the_comparison(tmp_path: Path) -> None:
    steps = [*three(tmp_path, "a", (77, 77, 80)), *three(tmp_path, "b", (81, 90, 90))]
    reason = "undertrained: single-task accuracy below full's: a 3.0 points"
    assert (v.compared(*steps).value, v.compared(*steps).reason) == (None, reason)
    assert (v.normalised(*steps).value, v.normalised(*steps).reason) == (pytest.approx(0.95), reason)
    assert v.summed(*steps).reason == reason
    assert v.compared(*steps[3:]).value == pytest.approx(0.9)


def test_function_localisation_by_hand(tmp_path: Path) -> None:
    base = said(tmp_path, "base", 50)
    assert v.localised(said(tmp_path, "tuned", 40), base).value == pytest.approx(0.8)
    for right in (40, 60):  # as far below the base as above it
        assert v.disturbed(said(tmp_path, f"tuned {right}", right), base).value == pytest.approx(0.2)


def a_region(folder: Path, name: str, sites: dict[str, list[int]]) -> Path:
    scope = Scope.of("all", {"l.0.query.weight": (2, 3), "l.0.key.weight": (2, 2), "l.1.query.weight": (2, 3)})
    (folder / name).mkdir()
    save_region(Region(scope, sites), folder / name / REGION, base_fingerprint="0" * 64)
    return folder / name


def test_pictures_of_regions_by_hand(tmp_path: Path) -> None:
    one = a_region(tmp_path, "one", {"l.0.query.weight": [0, 1, 2], "l.1.query.weight": [0]})
    two = a_region(tmp_path, "two", {"l.0.query.weight": [0, 1], "l.0.key.weight": [3]})
    assert v.selected("l.0", "query")(one).value == 0.5
    assert v.selected("l.0", "key")(one).value == 0.0
    assert v.selected("l.1", "key")(one).reason == "l.1 has no key"
    assert v.empty("query", "rows")(one).value == 2 / 4
    assert v.empty("query", "columns")(one).value == 2 / 6
    assert v.empty("value", "rows")(one).reason == "no matrix is of kind value"
    assert v.alike(one, two) == 2 / 5
    both = 4 * 3 / 16
    assert v.alike_by_chance(one, two) == pytest.approx(both / (7 - both))
    assert v.in_all(one, two) == pytest.approx(2 / 3.5)


def test_facts_are_read_by_the_names_that_lead_to_them(tmp_path: Path) -> None:
    (tmp_path / FACTS).write_text('{"best": {"scale": 0.45}}')
    assert v.fact("best", "scale")(tmp_path) == 0.45


def test_every_method_searches_three_learning_rates_on_the_same_rows_and_steps(place: Path, tasks: list[Path]) -> None:
    skill = Skill(profile("cpu", base=str(place / "encoder")), str(tasks[0]), 0, rows=40)
    for name, method in METHODS.items():
        chosen = vector(skill, name)
        plans = [Plan(**step.settings["plan"]) for step in chosen.needs.values()]
        assert len({plan.lr for plan in plans}) == len(plans) >= 3
        assert {(plan.steps, plan.batch_size, plan.optimizer) for plan in plans} == {(250, 16, "adamw")}
        assert {step.settings["rows"] for step in chosen.needs.values()} == {40}
        assert [float(lr) for lr in chosen.needs] == pytest.approx([plan.lr for plan in plans])
        assert ("linear" in single(skill, name).settings) == method.linear
    assert vector(skill, "post-hoc linearised") == vector(skill, "full")


def test_regions_of_the_upper_half_are_as_large_and_lie_in_the_later_layers(
    place: Path, tasks: list[Path], tmp_path: Path
) -> None:
    skill = Skill(profile("smoke", base=str(place / "encoder")), str(tasks[0]), 0, rows=16)
    store = Store(tmp_path)
    regions = {name: trained_in(skill, name) for name in METHODS if METHODS[name].region}
    assert run(list(regions.values()), store) == {}
    found = {name: region_of(store.path(step)) for name, step in regions.items()}
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
    import shutil

    shutil.copytree(place, tmp_path / "elsewhere", ignore=shutil.ignore_patterns("step-*"))
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
        finetune(base, [digits], tmp_path / "out", plan=QUICK, rows=20, only=other)
