"""Scale search: every point against a full evaluation of its own; `combine --scale auto`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skillgraft import Graft, Region, combine, load, total
from skillgraft.compose.rules import thinned
from skillgraft.compose.scales import (
    Opening,
    Point,
    Scaled,
    ScaleTrials,
    Spread,
    add_skills,
    at_scale,
    coordinate_search,
    grid_search,
    own_grafts,
    scale_grid,
    search_scale,
    single_scores,
    weighted_sum,
)
from skillgraft.errors import InputError, WrongBase
from skillgraft.measure.evaluate import evaluate
from skillgraft.measure.metrics import METRICS
from skillgraft.opening.executors import InProcess
from skillgraft.task_model import TaskModel
from skillgraft.tasks.data import Data
from tests.compose.two_skills import (
    FEW,
    SAMPLED,
    _one_thread,  # noqa: F401
    accuracies,
    bits,
    brute,
    opened,  # noqa: F401
    pair,  # noqa: F401
    place,  # noqa: F401
    run,  # noqa: F401
    sampled,
    tasks,  # noqa: F401
)
from tests.running import Run

# pytest passes fixtures by their names, which are imported here
# ruff: noqa: F811


def test_an_opened_base_answers_as_evaluate_does_and_gives_the_bits_back(
    place: Path, tasks: list[Path], pair: dict[str, Graft], opened: TaskModel
) -> None:
    before = bits(opened)
    for graft in (0.35 * pair["films"], weighted_sum(list(pair.values()), [0.5, -0.25])):
        wanted = brute(place, tasks, graft)
        for task, found in opened.predict(graft).items():
            np.testing.assert_allclose(found.scores, sampled(opened, wanted[task], task).scores, atol=1e-5)
    assert bits(opened) == before
    with pytest.raises(RuntimeError, match="stop"):
        grid_search(Scaled(opened, (pair["films"],)), progress=_stop)
    assert bits(opened) == before


def _stop(done: int, _total: int, _facts: Mapping[str, Any]) -> None:
    if done == 2:
        raise RuntimeError("stop")


def test_grid_search_by_brute_force(place: Path, tasks: list[Path], pair: dict[str, Graft], opened: TaskModel) -> None:
    whole = combine(list(pair.values()))
    singles = {task: accuracies(opened, brute(place, tasks, graft))[task] for task, graft in pair.items()}
    assert single_scores(opened, pair) == singles
    shown: list[tuple[int, int]] = []
    along = Scaled(opened, (whole,))
    search = grid_search(along, singles, points=5, progress=lambda done, of, _facts: shown.append((done, of)))
    assert [point.scales for point in search.points] == [(0.0,), (0.25,), (0.5,), (0.75,), (1.0,)]
    assert shown == [(number, 5) for number in range(1, 6)]
    merits = []
    for point in search.points:
        wanted = accuracies(opened, brute(place, tasks, point.scales[0] * whole))
        assert point.accuracy == wanted
        merits.append(sum(wanted[task] / singles[task] for task in wanted) / 2)
        assert point.merit == pytest.approx(merits[-1])
    assert search.scale == search.points[int(np.argmax(np.round(merits, 9)))].scales[0]  # the first of equal ones
    assert search.best.merit > search.points[0].merit, "the skills do something"
    plain = grid_search(along, points=2)
    assert plain.singles == {"films": 1.0, "animals": 1.0}
    assert plain.points[1].merit == pytest.approx(np.mean(list(plain.points[1].accuracy.values())))


def test_of_equal_points_the_smaller_scale_wins() -> None:
    def point(merit: float, *scales: float) -> Point:
        return Point(scales, {}, merit)

    assert ScaleTrials((point(0.8, 0.5), point(0.9, 0.7), point(0.9 + 1e-16, 0.6)), {}).scale == 0.6
    several = ScaleTrials((point(0.9, 0.5, 0.5), point(0.9, 0.1, 0.6), point(0.8, 0.0, 0.0)), {})
    assert several.best.scales == (0.1, 0.6)
    assert several.best.as_json()["scale"] == [0.1, 0.6]


def test_coordinate_search_finds_what_no_single_change_improves(pair: dict[str, Graft], opened: TaskModel) -> None:
    grafts = list(pair.values())
    search = coordinate_search(Scaled(opened, tuple(grafts)), single_scores(opened, pair), points=3, rounds=5)
    tried = {point.scales: point for point in search.points}
    assert len(tried) == len(search.points), "no point twice"
    assert {(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)} <= tried.keys()
    best = search.best
    for index, scale in product(range(2), scale_grid(3)):
        scales = tuple(scale if index == each else best.scales[each] for each in range(2))
        assert tried[scales].merit <= best.merit + 1e-12
        assert tried[scales].accuracy == {
            task: METRICS["accuracy"](found) for task, found in opened.predict(weighted_sum(grafts, scales)).items()
        }
    assert best.merit >= max(tried[scale, scale].merit for scale in scale_grid(3))


def test_add_skills_gives_the_scaled_combination(pair: dict[str, Graft], opened: TaskModel) -> None:
    grafts = list(pair.values())
    for rule, options in (("sum", {}), ("ties", {"keep": 0.5})):
        result, search = add_skills(opened, grafts, rule=rule, points=3, **options)
        assert result == search.scale * combine(grafts, rule=rule, **options)
        found = {task: METRICS["accuracy"](one) for task, one in opened.predict(result).items()}
        assert found == search.best.accuracy
    result, search = add_skills(opened, grafts, per_task_scales=True, points=2)
    assert result == weighted_sum(grafts, search.best.scales)


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        ("ties", {"keep": 0.05}),
        ("dare", {"keep": 0.3, "seed": 2}),
        ("breadcrumbs", {}),
        ("tall", {}),
        ("della", {}),
        ("stitch", {"keep": 0.05}),
    ],
)
def test_a_rule_that_thins_is_normalised_by_its_thinned_grafts(
    rule: str, options: dict[str, Any], pair: dict[str, Graft], opened: TaskModel
) -> None:
    """P2: each task's accuracy is divided by that of its own graft, thinned as the rule does it; whole grafts stand beside."""
    _, search = add_skills(opened, list(pair.values()), rule=rule, points=2, or_base=True, **options)
    parts = dict(zip(pair, thinned(list(pair.values()), rule=rule, **options), strict=True))
    assert search.singles == {task: _accuracy(opened, part, task) for task, part in parts.items()}
    assert search.whole == {task: _accuracy(opened, graft, task) for task, graft in pair.items()}
    best = search.best.accuracy
    assert search.best.merit == pytest.approx(np.mean([best[task] / search.singles[task] for task in pair]))
    assert search.as_json()["whole"] == {
        "singles": search.whole,
        "normalised": pytest.approx(np.mean([best[task] / search.whole[task] for task in pair])),
    }


def _accuracy(opened: TaskModel, graft: Graft, task: str) -> float:
    return METRICS["accuracy"](opened.predict(graft, tasks=[task])[task])


def test_thinning_that_costs_accuracy_shows(pair: dict[str, Graft], opened: TaskModel) -> None:
    """One entry in a thousand holds little of a skill: what is divided by is less than the whole graft's accuracy."""
    _, search = add_skills(opened, list(pair.values()), rule="ties", keep=1e-3, points=2, or_base=True)
    assert sum(search.singles.values()) < sum(search.whole.values())
    _, search = add_skills(opened, list(pair.values()), points=2)
    assert "whole" not in search.as_json()


def test_one_point_is_the_combination_as_it_is(pair: dict[str, Graft], opened: TaskModel) -> None:
    grafts = list(pair.values())
    result, search = add_skills(opened, grafts, rule="stitch", points=1)
    assert [point.scales for point in search.points] == [(1.0,)]
    assert result.digest == combine(grafts, rule="stitch").digest


def test_add_skills_refuses_what_does_not_add_up(pair: dict[str, Graft], opened: TaskModel) -> None:
    nothing = [0.0 * graft for graft in pair.values()]
    with pytest.raises(InputError, match=r"no scale above 0 is better than the base itself \(films 0\.\d+, animals"):
        add_skills(opened, nothing, points=2)
    with pytest.raises(InputError, match="one scale for each graft is for rule 'sum', found 'ties'"):
        add_skills(opened, nothing, rule="ties", per_task_scales=True)
    with pytest.raises(InputError, match="expected one graft for each of films, animals, in order; found 3"):
        add_skills(opened, [*pair.values(), pair["films"]])


def test_own_grafts_go_by_provenance_then_by_order(pair: dict[str, Graft]) -> None:
    a, b = (graft.with_info(task=task) for task, graft in pair.items())
    assert own_grafts(["films", "animals"], [b, a]) == {"films": a, "animals": b}
    assert own_grafts(["animals"], [b, a]) == {"animals": b}
    assert own_grafts(["x", "y"], [b, a]) == {"x": b, "y": a}
    assert own_grafts(["x", "y"], [a]) == {"x": a, "y": a}


def test_a_graft_at_scale_0_leaves_the_others_as_they_are(pair: dict[str, Graft]) -> None:
    grafts = list(pair.values())
    assert weighted_sum(grafts, [0.3, 0.0]) == 0.3 * grafts[0]
    assert len(weighted_sum(grafts, [0.0, 0.0])) == 0
    headed = Graft(grafts[0].region, grafts[0].before, grafts[0].change, heads={"score.bias": np.ones(2, np.float32)})
    assert at_scale(headed, 0.0).heads.keys() == {"score.bias"}
    assert at_scale(headed, 0.5) == 0.5 * headed
    assert weighted_sum(grafts, [0.3, 0.6]).digest == total([0.3 * grafts[0], 0.6 * grafts[1]]).digest


def test_the_grid() -> None:
    assert scale_grid(21)[:4] == (0.0, 0.05, 0.1, 0.15)
    assert scale_grid(3, most=2.0) == (0.0, 1.0, 2.0)


def test_rows_and_singles_are_checked(
    place: Path, tasks: list[Path], pair: dict[str, Graft], opened: TaskModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = place / "encoder"
    with pytest.raises(InputError, match="validation_rows must be at least 1, found 0"):
        Data(validation_rows=0)
    with pytest.raises(InputError, match="each name once, found films, films"):
        search_scale(base, [pair["films"]], tasks=[tasks[0], tasks[0]])
    _no_weights(monkeypatch)
    with pytest.raises(InputError, match="task 'films' has no validation rows left to measure on; train on fewer rows"):
        search_scale(base, [pair["films"]], tasks=tasks[:1], data=Data(train_rows=120))
    along = Scaled(opened, (pair["films"],))
    with pytest.raises(InputError, match="needed for films, animals, found films"):
        grid_search(along, {"films": 0.9})
    with pytest.raises(InputError, match=r"accuracy of animals, .* is not above 0 on these rows"):
        grid_search(along, {"films": 0.9, "animals": 0.0})
    with pytest.raises(InputError, match="at least one graft"):
        coordinate_search(Scaled(opened, ()))
    name = next(iter(pair["films"].region))
    region = Region(pair["films"].region.scope, {name: [0]})
    stranger = Graft(region, {name: np.float32([123.0])}, {name: np.float32([124.0])})
    with pytest.raises(WrongBase, match="not the graft's base"):
        opened.predict(stranger)


def _no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong with the rows is known before any weights are loaded."""
    monkeypatch.setattr("skillgraft.readouts.readouts.Loader.__call__", None)


def test_an_opened_base_answers_about_test_rows_too(place: Path, tasks: list[Path]) -> None:
    whole = TaskModel.open(place / "encoder", tasks[:1]).predict(split="test")["films"]
    wanted = evaluate(place / "encoder", tasks[:1])["films"]["base"]
    assert (whole.scores.tolist(), whole.labels.tolist()) == (wanted.scores.tolist(), wanted.labels.tolist())
    some = TaskModel.open(place / "encoder", tasks[:1], data=Data(test_rows=7))
    assert len(some.predict(split="test")["films"]) == 7


def test_search_scale_opens_the_folder_and_records_the_search(
    place: Path, tasks: list[Path], pair: dict[str, Graft], opened: TaskModel
) -> None:
    grafts = list(pair.values())
    asked: dict[str, Any] = {"rule": "ties", "keep": 0.5, "points": 3}
    found = search_scale(place / "encoder", grafts, tasks=tasks[:2], data=SAMPLED, **asked)
    wanted, search = add_skills(opened, grafts, **asked)
    assert found.digest == wanted.digest
    recipe = found.info["recipe"]
    assert recipe["search"] == search.as_json()
    assert recipe.items() >= {**asked, "tasks": ["films", "animals"], "shots": 20, "validation_rows": FEW}.items()
    assert recipe["grafts"] == [graft.digest for graft in grafts]


class _TwoAtATime(InProcess):
    slots = 2


def test_scales_tried_by_workers_are_the_scales_tried_here(
    place: Path, tasks: list[Path], pair: dict[str, Graft], opened: TaskModel
) -> None:
    grafts = list(pair.values())
    spread = Spread(_TwoAtATime(), Opening(place / "encoder", tasks[:2], SAMPLED))
    for asked in ({"points": 5}, {"points": 2, "per_task_scales": True}):
        here, there = add_skills(opened, grafts, **asked), add_skills(opened, grafts, spread=spread, **asked)
        assert there[1].as_json() == here[1].as_json()
        assert there[0].digest == here[0].digest


@pytest.mark.long
def test_scales_tried_in_processes(place: Path, tasks: list[Path], pair: dict[str, Graft], opened: TaskModel) -> None:
    grafts = list(pair.values())
    found = search_scale(place / "encoder", grafts, tasks=tasks[:2], data=SAMPLED, points=3, jobs=2)
    wanted, search = add_skills(opened, grafts, points=3)
    assert found.info["recipe"]["search"] == search.as_json()
    assert found.digest == wanted.digest


AUTO = ("--scale", "auto", "--base", "encoder", "--task", "films.toml", "--task", "animals.toml", "--shots", 20)
BOTH = ("films.safetensors", "animals.safetensors")


@pytest.mark.usefixtures("tasks")
def test_combine_with_a_searched_scale(run: Run, pair: dict[str, Graft], opened: TaskModel) -> None:
    words = ("combine", *BOTH, "--rule", "ties", "--keep", 0.5, *AUTO, "--points", 3, "--validation-rows", FEW)
    facts = run(*words, "-o", "auto.safetensors", "--json").json
    wanted, search = add_skills(opened, list(pair.values()), rule="ties", keep=0.5, points=3)
    written = load("auto.safetensors")
    assert written.digest == wanted.digest
    assert facts["search"] == search.as_json()
    assert facts["scale"] == search.scale
    recipe = written.info["recipe"]
    assert (recipe["rule"], recipe["keep"], recipe["scale"]) == ("ties", 0.5, search.scale)
    assert (recipe["tasks"], recipe["validation_rows"]) == (["films", "animals"], FEW)
    assert (recipe["shots"], recipe["points"]) == (20, 3)
    assert recipe["search"]["best"] == search.best.as_json()
    text = run(*words, "-o", "again.safetensors").out
    assert "normalised" in text
    by_whole = 100 * search.as_json()["whole"]["normalised"]
    assert f"normalised by the grafts' accuracy before they are thinned: {by_whole:.1f}" in text
    assert text.count("best") == 1
    words = (
        "combine",
        *BOTH,
        *AUTO,
        "--per-task-scales",
        "--points",
        2,
        "--validation-rows",
        FEW,
        "-o",
        "own.safetensors",
    )
    code, text, err = run(*words)
    assert code == 0, err
    assert len(load("own.safetensors").info["recipe"]["scale"]) == 2
    Path("own.safetensors").unlink()
    Path("auto.safetensors").unlink()
    Path("again.safetensors").unlink()


@pytest.mark.usefixtures("pair")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("combine", *BOTH, "--scale", "much"),
            "--scale is a number or auto, or NAME=NUMBER for one graft; found 'much'",
        ),
        (("combine", *BOTH, "--scale", "auto"), "add --base BASE and --task T for each skill"),
        (("combine", *BOTH, "--task", "films.toml"), "are for --scale auto, found --scale 1"),
        (("combine", *BOTH, "--jobs", 2), "are for --scale auto, found --scale 1"),
        (("combine", *BOTH, *AUTO, "--inside", BOTH[0]), "--scale auto does not restrict"),
        (("combine", *BOTH, *AUTO, "--rule", "ties", "--per-task-scales"), "is for rule 'sum', found 'ties'"),
        (("combine", *BOTH, "--drop", 0.1), "the option 'drop' belongs to rule 'breadcrumbs', found rule 'sum'"),
        (("combine", *BOTH, *AUTO, "--task", "film.toml"), "film.toml"),
        (
            ("forget", "encoder", BOTH[0], "--task", "films.toml", "--control", "films.toml"),
            "each name once, found films, films",
        ),
        (("combine", *BOTH, *AUTO[:-2], "--train-rows", 120), "'films' has no validation rows left to measure on"),
        (("forget", "encoder", BOTH[0], "--task", "films.toml"), "Missing option '--control'"),
    ],
)
def test_wrong_words_are_refused(words: tuple[Any, ...], message: str, run: Run) -> None:
    code, out, err = run(*words, "-o", "never.safetensors")
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") <= 2
    assert not Path("never.safetensors").exists()
