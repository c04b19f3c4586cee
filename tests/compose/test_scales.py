"""Scale search: every point against a full evaluation of its own; `combine --scale auto`."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skillgraft import Graft, Region, combine, load, total
from skillgraft.compose.bench import Workbench, at_scale, scale_grid, weighted_sum
from skillgraft.compose.judged import own_grafts
from skillgraft.compose.scales import (
    Point,
    ScaleSearch,
    add_skills,
    search_scale,
    search_scales,
    single_scores,
)
from skillgraft.errors import InputError, WrongBase
from skillgraft.measure.evaluate import evaluate
from skillgraft.measure.metrics import METRICS
from tests.compose.two_skills import (
    FEW,
    _one_thread,  # noqa: F401
    accuracies,
    bench,  # noqa: F401
    bits,
    brute,
    pair,  # noqa: F401
    place,  # noqa: F401
    run,  # noqa: F401
    sampled,
    tasks,  # noqa: F401
)
from tests.running import Run

# pytest passes fixtures by their names, which are imported here
# ruff: noqa: F811


def test_the_bench_says_what_evaluate_says_and_gives_the_bits_back(
    place: Path, tasks: list[Path], pair: dict[str, Graft], bench: Workbench
) -> None:
    before = bits(bench)
    for graft in (0.35 * pair["films"], weighted_sum(list(pair.values()), [0.5, -0.25])):
        wanted = brute(place, tasks, graft)
        for task, said in bench.said(graft).items():
            np.testing.assert_allclose(said.scores, sampled(bench, wanted[task], task).scores, atol=1e-5)
    assert bits(bench) == before
    with pytest.raises(RuntimeError, match="stop"):
        search_scale(bench, pair["films"], progress=_stop)
    assert bits(bench) == before


def _stop(done: int, _total: int) -> None:
    if done == 2:
        raise RuntimeError("stop")


def test_search_scale_by_brute_force(place: Path, tasks: list[Path], pair: dict[str, Graft], bench: Workbench) -> None:
    whole = combine(list(pair.values()))
    singles = {task: accuracies(bench, brute(place, tasks, graft))[task] for task, graft in pair.items()}
    assert single_scores(bench, pair) == singles
    told: list[tuple[int, int]] = []
    search = search_scale(bench, whole, singles=singles, points=5, progress=lambda *now: told.append(now))
    assert [point.scales for point in search.points] == [(0.0,), (0.25,), (0.5,), (0.75,), (1.0,)]
    assert told == [(number, 5) for number in range(1, 6)]
    merits = []
    for point in search.points:
        wanted = accuracies(bench, brute(place, tasks, point.scales[0] * whole))
        assert point.accuracy == wanted
        merits.append(sum(wanted[task] / singles[task] for task in wanted) / 2)
        assert point.merit == pytest.approx(merits[-1])
    assert search.scale == search.points[int(np.argmax(np.round(merits, 9)))].scales[0]  # the first of equal ones
    assert search.best.merit > search.points[0].merit, "the skills do something"
    plain = search_scale(bench, whole, points=2)
    assert plain.singles == {"films": 1.0, "animals": 1.0}
    assert plain.points[1].merit == pytest.approx(np.mean(list(plain.points[1].accuracy.values())))


def test_of_equal_points_the_smaller_scale_wins() -> None:
    def point(merit: float, *scales: float) -> Point:
        return Point(scales, {}, merit)

    assert ScaleSearch((point(0.8, 0.5), point(0.9, 0.7), point(0.9 + 1e-16, 0.6)), {}).scale == 0.6
    several = ScaleSearch((point(0.9, 0.5, 0.5), point(0.9, 0.1, 0.6), point(0.8, 0.0, 0.0)), {})
    assert several.best.scales == (0.1, 0.6)
    assert several.best.as_json()["scale"] == [0.1, 0.6]


def test_search_scales_finds_what_no_single_change_improves(pair: dict[str, Graft], bench: Workbench) -> None:
    grafts = list(pair.values())
    search = search_scales(bench, grafts, singles=single_scores(bench, pair), points=3, rounds=5)
    tried = {point.scales: point for point in search.points}
    assert len(tried) == len(search.points), "no point twice"
    assert {(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)} <= tried.keys()
    best = search.best
    for place_, scale in product(range(2), scale_grid(3)):
        scales = tuple(scale if place_ == each else best.scales[each] for each in range(2))
        assert tried[scales].merit <= best.merit + 1e-12
        assert tried[scales].accuracy == {
            task: METRICS["accuracy"](said) for task, said in bench.said(weighted_sum(grafts, scales)).items()
        }
    assert best.merit >= max(tried[scale, scale].merit for scale in scale_grid(3))


def test_add_skills_gives_the_scaled_combination(pair: dict[str, Graft], bench: Workbench) -> None:
    grafts = list(pair.values())
    for rule, options in (("sum", {}), ("ties", {"keep": 0.5})):
        result, search = add_skills(bench, grafts, rule=rule, points=3, **options)
        assert result == search.scale * combine(grafts, rule=rule, **options)
        said = {task: METRICS["accuracy"](one) for task, one in bench.said(result).items()}
        assert said == search.best.accuracy
    result, search = add_skills(bench, grafts, per_task_scales=True, points=2)
    assert result == weighted_sum(grafts, search.best.scales)


def test_add_skills_refuses_what_does_not_add_up(pair: dict[str, Graft], bench: Workbench) -> None:
    nothing = [0.0 * graft for graft in pair.values()]
    with pytest.raises(InputError, match=r"no scale above 0 is better than the base itself \(films 0\.\d+, animals"):
        add_skills(bench, nothing, points=2)
    with pytest.raises(InputError, match="one scale for each graft is for rule 'sum', found 'ties'"):
        add_skills(bench, nothing, rule="ties", per_task_scales=True)
    with pytest.raises(InputError, match="one for each of films, animals, in order; found 3 grafts"):
        add_skills(bench, [*pair.values(), pair["films"]])


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


def test_rows_and_singles_are_checked(place: Path, tasks: list[Path], pair: dict[str, Graft], bench: Workbench) -> None:
    with pytest.raises(InputError, match="rows must be at least 1; found 0"):
        Workbench.open(place / "encoder", tasks, rows=0)
    with pytest.raises(InputError, match="a task is named twice among films, films"):
        Workbench.open(place / "encoder", [tasks[0], tasks[0]])
    with pytest.raises(InputError, match="task 'films' has no rows left to judge by; train on fewer rows"):
        Workbench.open(place / "encoder", tasks[:1], train_rows=120)
    with pytest.raises(InputError, match="needed for films, animals, found films"):
        search_scale(bench, pair["films"], singles={"films": 0.9})
    with pytest.raises(InputError, match="accuracy of animals is 0 on these rows"):
        search_scale(bench, pair["films"], singles={"films": 0.9, "animals": 0.0})
    with pytest.raises(InputError, match="at least one graft"):
        search_scales(bench, [])
    name = next(iter(pair["films"].region))
    region = Region(pair["films"].region.scope, {name: [0]})
    stranger = Graft(region, {name: np.float32([123.0])}, {name: np.float32([124.0])})
    with pytest.raises(WrongBase, match="not the graft's base"):
        bench.said(stranger)


def test_a_bench_of_test_rows(place: Path, tasks: list[Path]) -> None:
    whole = Workbench.open(place / "encoder", tasks[:1], split="test", rows=None).said()["films"]
    wanted = evaluate(place / "encoder", tasks[:1]).said["films"]["base"]
    assert (whole.scores.tolist(), whole.labels.tolist()) == (wanted.scores.tolist(), wanted.labels.tolist())
    some = Workbench.open(place / "encoder", tasks[:1], split="test", rows=7)
    assert len(some.said()["films"]) == 7


AUTO = ("--scale", "auto", "--base", "encoder", "--task", "films.toml", "--task", "animals.toml", "--shots", 20)
BOTH = ("films.safetensors", "animals.safetensors")


@pytest.mark.usefixtures("tasks")
def test_combine_with_a_searched_scale(run: Run, pair: dict[str, Graft], bench: Workbench) -> None:
    words = ("combine", *BOTH, "--rule", "ties", "--keep", 0.5, *AUTO, "--points", 3, "--rows", FEW)
    facts = run(*words, "-o", "auto.safetensors", "--json").json
    wanted, search = add_skills(bench, list(pair.values()), rule="ties", keep=0.5, points=3)
    written = load("auto.safetensors")
    assert written.digest == wanted.digest
    assert facts["search"] == search.as_json()
    assert facts["scale"] == search.scale
    recipe = written.info["recipe"]
    assert (recipe["rule"], recipe["keep"], recipe["scale"]) == ("ties", 0.5, search.scale)
    told = recipe["search"]
    assert (told["tasks"], told["rows"], told["shots"], told["points"]) == (["films", "animals"], FEW, 20, 3)
    assert told["best"] == search.best.as_json()
    text = run(*words, "-o", "again.safetensors").out
    assert "normalised" in text
    assert text.count("best") == 1
    words = ("combine", *BOTH, *AUTO, "--per-task-scales", "--points", 2, "--rows", FEW, "-o", "own.safetensors")
    code, text, err = run(*words)
    assert code == 0, err
    assert len(load("own.safetensors").info["recipe"]["scale"]) == 2
    Path("own.safetensors").unlink()
    Path("auto.safetensors").unlink()
    Path("again.safetensors").unlink()


@pytest.mark.usefixtures("pair")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("combine", *BOTH, "--scale", "much"), "--scale is a number or auto, found 'much'"),
        (("combine", *BOTH, "--scale", "auto"), "add --base BASE and --task T for each skill"),
        (("combine", *BOTH, "--task", "films.toml"), "are for --scale auto, found --scale 1"),
        (("combine", *BOTH, *AUTO, "--inside", BOTH[0]), "--scale auto does not restrict"),
        (("combine", *BOTH, *AUTO, "--rule", "ties", "--per-task-scales"), "is for rule 'sum', found 'ties'"),
        (("combine", *BOTH, "--drop", 0.1), "the option 'drop' belongs to rule 'breadcrumbs', found rule 'sum'"),
        (("combine", *BOTH, *AUTO, "--task", "film.toml"), "film.toml"),
        (("forget", "encoder", BOTH[0], "--task", "films.toml", "--control", "films.toml"), "named twice"),
        (("forget", "encoder", BOTH[0], "--task", "films.toml"), "Missing option '--control'"),
    ],
)
def test_wrong_words_are_refused(words: tuple[Any, ...], said: str, run: Run) -> None:
    code, out, err = run(*words, "-o", "never.safetensors")
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") <= 2
    assert not Path("never.safetensors").exists()
