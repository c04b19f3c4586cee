"""Budgets, shares to keep and scales: what a plan asks for, what is tried, what is cut, and that it does what its scores say."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from skillgraft import extract, load, load_region, localize_live
from skillgraft.errors import InputError
from skillgraft.folders.checkpoint import MemoryTensors
from skillgraft.opening.runtime import Runtime
from skillgraft.regions.choose import choose, choose_region
from skillgraft.regions.methods import METHODS, MethodResult, RegionMethod
from skillgraft.regions.problem import Problem
from skillgraft.regions.search import SCALES, OutOfReach, Searching, SearchPlan, smallest_budget
from skillgraft.values.region import Region, Scope
from tests.regions.films import STEPS, Films, accuracy
from tests.regions.toys import FEW, Pair, net, net_accuracy, net_batches, tuned_net
from tests.running import Run

QUICK: dict[str, Any] = {"method": "budgeted", "density": 0.005, "steps": 5}


@pytest.fixture(scope="module")
def pair() -> Pair:
    base = net()
    return base, tuned_net(base)


@dataclass(frozen=True, eq=False)
class Graded:
    """A scorer that knows the score of every scale, and how many entries each scale needs to reach 1."""

    by_scale: dict[float, float]
    needs: dict[float, int] = field(default_factory=dict)
    asked: list[float] = field(default_factory=list)

    def score_now(self) -> float:
        raise AssertionError("movement has no steps to compare")

    def score(self, problem: Problem, region: Region) -> float:
        self.asked.append(problem.scale)
        if self.needs:
            return 1.0 if len(region) >= self.needs[problem.scale] else problem.scale / 100
        return self.by_scale[problem.scale]

    def trial(self, problem: Problem, region: Region) -> dict[str, float]:
        return {"merit": self.score(problem, region)}

    def tuned_score(self) -> float:
        return 1.0

    def base_score(self) -> float:
        return 0.0


def searching(scorer: Graded, **asked: Any) -> Searching:
    """Movement between two vectors of 1000 numbers."""
    model = torch.nn.Module()
    model.register_parameter("weight", torch.nn.Parameter(torch.zeros(1000)))
    tuned = MemoryTensors({"weight": np.arange(1000, dtype=np.float32)})
    problem = Problem.between(model, tuned, steps=lambda _: [], loss=lambda *_: torch.zeros(()), scope="all")
    return Searching(problem, SearchPlan.of(method="movement", scope="all", **asked), scorer)


def best_scale(scorer: Graded, **asked: Any) -> float:
    work = searching(scorer, **asked)
    return work.best(Region(work.problem.scope, {})).scale


@pytest.mark.parametrize(
    ("scores", "best"),
    [([0.5, 0.7, 0.6, 0.9, 0.8], 8.0), ([0.5, 0.4, 0.6, 0.6, 0.1], 4.0), ([0.5, 0.4, 0.3, 0.5, 0.5], 1.0)],
)
def test_the_best_of_all_scales_is_taken_and_of_equals_the_first(scores: list[float], best: float) -> None:
    scorer = Graded(dict(zip(SCALES, scores, strict=True)))
    assert best_scale(scorer, entries=5, scale="auto") == best
    assert scorer.asked == list(SCALES)


def test_scales_are_doubled_while_the_largest_is_the_best() -> None:
    scorer = Graded({1.0: 0.1, 2.0: 0.2, 4.0: 0.3, 8.0: 0.4, 16.0: 0.5, 32.0: 0.6, 64.0: 0.55})
    work = searching(scorer, entries=5, scale="auto")
    found = work.best(Region(work.problem.scope, {}))
    assert found.scale == 32.0
    assert [trial["scale"] for trial in found.trials] == scorer.asked == [*SCALES, 32.0, 64.0]


def test_one_scale_needs_no_score() -> None:
    scorer = Graded({})
    assert best_scale(scorer, entries=5, scale=3.0) == 3.0
    assert scorer.asked == []


def test_a_scale_that_cannot_keep_enough_is_passed_over() -> None:
    """Of those that keep enough the fewest entries win; no part of the scope is out of bounds."""
    scorer = Graded({}, needs={1.0: 2000, 2.0: 500, 4.0: 60, 8.0: 80, 16.0: 2000})
    assert best_scale(scorer, keep=1.0, scale="auto") == 4.0
    nobody = Graded({}, needs=dict.fromkeys(SCALES, 2000))
    with pytest.raises(OutOfReach, match=r"even 1,000 entries reach only 0\.0100 of the 1\.0000"):
        best_scale(nobody, keep=1.0, scale="auto")
    assert nobody.asked[0] == 1.0
    assert nobody.asked[-1] == 16.0, "all are tried before the first one's error is raised"


@dataclass(frozen=True, eq=False)
class Half(Graded):
    """Base scores 0.5; half of the gain is 0.75."""

    def base_score(self) -> float:
        return 0.5

    def score(self, problem: Problem, region: Region) -> float:
        return 0.5 + 0.5 * problem.scale * min(1.0, len(region) / 400)


def test_a_share_of_the_gain_is_of_what_tuned_scores_above_base() -> None:
    work = searching(Half({}), keep_gain=0.5)
    assert 200 <= len(work.best(Region(work.problem.scope, {})).region) <= 211
    flat = searching(Flat({}), keep_gain=0.5)
    with pytest.raises(InputError, match=r"tuned scores 1\.0000 .* base 1\.0000: there is no gain to keep"):
        flat.best(Region(flat.problem.scope, {}))


@dataclass(frozen=True, eq=False)
class Flat(Graded):
    def base_score(self) -> float:
        return 1.0


def test_a_method_of_one_budget_is_searched_at_each_that_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search for a larger region would give its prefix, which was not learned for itself."""
    asked: list[int] = []

    def one(problem: Problem, start: Region, *, most: int, **_options: Any) -> MethodResult:
        asked.append(most)
        return METHODS["movement"](problem, start, most=most)

    monkeypatch.setitem(METHODS, "budgeted", RegionMethod(one, one_budget=True))
    work = searching(Graded({}, needs={1.0: 70}), keep=1.0)
    found = Searching(work.problem, replace(work.plan, method="budgeted"), work.scorer).best(
        Region(work.problem.scope, {})
    )
    assert 70 <= len(found.region) <= 77
    assert asked == list(dict.fromkeys(asked)), "no budget is searched twice"
    assert len(found.region) in asked
    assert len(found.found.ranking.order) == len(found.region)


@pytest.mark.parametrize("true", [1, 2, 3, 17, 100, 999])
def test_the_smallest_budget_is_found_to_its_precision(true: int) -> None:
    asked = []

    def score(count: int) -> float:
        asked.append(count)
        return float(count >= true)

    for first in (1, 10, 600, 1000):
        asked.clear()
        found = smallest_budget(score, target=1.0, most=1000, first=first)
        assert true <= found <= max(true + 1, 1.06 * true)
        assert len(asked) <= 16
        assert len(set(asked)) == len(asked)


def test_a_share_that_no_budget_keeps_is_an_error() -> None:
    with pytest.raises(InputError, match=r"even 64 entries reach only 0\.5000 of the 0\.9000"):
        smallest_budget(lambda _count: 0.5, target=0.9, most=64)


def test_a_scaled_graft_is_a_multiple_of_the_change(films: Films) -> None:
    graft = films.graft(scale=3.0, **QUICK)
    assert (graft.form, graft.scale) == ("exact", 3.0)
    assert graft.info["recipe"]["scale"] == 3.0
    name = next(iter(graft.region))
    before, after = (graft.before[name].astype(float), graft.change[name].astype(float))
    np.testing.assert_allclose(graft.delta(name), 3.0 * (after - before))


def test_it_does_on_the_base_what_its_scores_say(films: Films) -> None:
    graft = films.graft(scale=4.0, **QUICK)
    measured = graft.info["scores"]["validation"]["graft"]
    assert accuracy(films.predictions(graft=graft)["graft"]) == measured["accuracy"]["value"]


def test_auto_takes_the_lowest_nll_of_validation_rows_and_tells_what_it_costs(films: Films) -> None:
    def measured(scale: float) -> dict[str, float]:
        found = films.graft(scale=scale, **QUICK).info["scores"]["validation"]["graft"]
        return {"loss": found["nll"]["value"], "score": found["score"]["value"], "ece": found["ece"]["value"]}

    located = films.localize(scale="auto", **QUICK)
    for trial in located.trials:
        alone = measured(trial["scale"])
        assert {key: trial[key] for key in alone} == pytest.approx(alone)
    best = min(located.trials, key=lambda trial: trial["loss"])
    assert located.graft.scale == best["scale"] > 1.0
    assert [trial["scale"] for trial in located.trials][: len(SCALES)] == list(SCALES)
    assert located.graft.info["recipe"]["trials"] == [dict(trial) for trial in located.trials]


def test_a_share_to_keep_takes_the_fewest_entries(films: Films) -> None:
    asked: dict[str, Any] = {"method": "movement", "keep": 0.7}
    plain, scaled = films.graft(**asked), films.graft(scale="auto", **asked)
    assert len(scaled) < len(plain)
    assert scaled.scale > 1.0
    assert scaled.info["scores"]["validation"]["graft"]["share_kept"]["value"] >= 0.7


def test_scales_on_the_command_line(run: Run, films: Films, tmp_path: Path) -> None:
    words = (*films.words, "--method", "budgeted", "--density", 0.005, "--steps", 5)
    code, out, err = run(*words, "--scale", "auto", "-o", "loud.safetensors", "--json")
    assert code == 0, err
    assert json.loads(out)["scale"] == load(tmp_path / "loud.safetensors").scale > 1.0
    code, out, err = run(*words, "--scale", "4", "-o", "four.safetensors")
    assert code == 0, err
    assert "4 × the change" in out


def test_scales_of_any_model(pair: Pair) -> None:
    graft = localize_live(*pair, net_batches(), score=net_accuracy, entries=4, scale="auto", **FEW)
    assert graft.scale in SCALES
    assert graft.info["recipe"]["scale"] == graft.scale
    assert localize_live(*pair, net_batches(), entries=4, scale=2, **FEW).scale == 2.0


def test_snapshots_of_several_scales_stand_apart_and_go(films: Films, tmp_path: Path) -> None:
    files: set[str] = set()

    def look(*_: Any) -> None:
        files.update(file.name for file in tmp_path.iterdir())

    runtime = Runtime(progress=look, snapshot_seconds=0.0)
    asked: dict[str, Any] = {
        "method": "learned",
        "density": 0.005,
        "steps": 4,
        "lr": 1e5,
        "scale": "auto",
        "runtime": runtime,
    }
    films.localize(out=tmp_path / "g.safetensors", **asked)
    assert len(files) == len(SCALES)
    assert [file.name for file in tmp_path.iterdir()] == ["g.safetensors"]


def test_those_of_any_model_too(pair: Pair, tmp_path: Path) -> None:
    kept: dict[str, Any] = {"resume": tmp_path / "search", "runtime": Runtime(snapshot_seconds=0.0), "entries": 4}
    localize_live(*pair, net_batches(), scale="auto", score=net_accuracy, **kept, **FEW)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), "much"])
def test_wrong_scales_are_refused(scale: float | str) -> None:
    with pytest.raises(InputError, match="a number above 0, or 'auto'; found"):
        SearchPlan.of(scale=scale)


def test_what_does_not_go_together_is_refused(pair: Pair) -> None:
    with pytest.raises(InputError, match="with the reference 'zero' leave it at 1"):
        SearchPlan.of(scale="auto", reference="zero")
    with pytest.raises(InputError, match="give score=, a function of the model, or a number"):
        localize_live(*pair, net_batches(), entries=4, scale="auto", **FEW)


def sizes(films: Films, pair: Pair, **asked: Any) -> dict[str, tuple[int, int]]:
    """Entries and scope of what every function that takes a budget gives."""
    regions = {
        "extract": extract(films.base, films.tuned, **asked).region,
        "localize": films.graft(method="movement", **asked).region,
        "localize_live": localize_live(
            *pair, net_batches(), loss=FEW["loss"], scope="all", method="movement", **asked
        ).region,
        "choose_region": choose_region(films.base, method="highest-magnitude", **asked),
    }
    return {name: (len(region), region.scope.size) for name, region in regions.items()}


def test_a_density_of_one_is_everything_and_one_entry_is_one_entry(films: Films, pair: Pair) -> None:
    for name, (entries, scope) in sizes(films, pair, density=1.0).items():
        assert entries == scope > 1, name
    for name, (entries, _) in sizes(films, pair, entries=1).items():
        assert entries == 1, name


WRONG_BUDGETS = [
    ({"density": 2}, r"a density is a share of the scope, above 0 and at most 1; found 2.*: for a count use entries=2"),
    ({"density": 0.0}, "a density is a share of the scope, above 0 and at most 1; found 0"),
    ({"density": float("nan")}, "a density is a share of the scope, above 0 and at most 1; found nan"),
    ({"entries": 0}, "entries is a whole number of 1 or more, found 0; for a share use density"),
    ({"entries": 0.5}, "entries is a whole number of 1 or more, found 0.5; for a share use density"),
    ({"density": 0.1, "entries": 5}, "give a density or a number of entries, not both; found 0.1 and 5"),
]


@pytest.mark.parametrize(("asked", "message"), WRONG_BUDGETS)
@pytest.mark.parametrize("verb", ["extract", "localize", "localize_live", "choose"])
def test_a_share_and_a_count_are_never_mixed_up(
    verb: str, asked: dict[str, Any], message: str, films: Films, pair: Pair
) -> None:
    calls = {
        "extract": lambda: extract(films.base, films.tuned, **asked),
        "localize": lambda: films.localize(method="movement", **asked),
        "localize_live": lambda: localize_live(*pair, net_batches(), **FEW, **asked),
        "choose": lambda: choose(films.base, method="random-region", **asked),
    }
    with pytest.raises(InputError, match=message):
        calls[verb]()


@pytest.mark.parametrize("method", ["movement", "highest-magnitude"])
def test_they_are_two_options_of_the_command(run: Run, films: Films, tmp_path: Path, method: str) -> None:
    of_base = method == "highest-magnitude"
    words = ("localize", films.base, "--method", method) if of_base else (*films.words, "--method", method)

    def region(name: str) -> Region:
        return load_region(tmp_path / name) if of_base else load(tmp_path / name).region

    for option, value, name in (("--density", "1", "all"), ("--density", "1.0", "all too"), ("--entries", "1", "one")):
        code, _, err = run(*words, option, value, "-o", name)
        assert code == 0, err
    assert len(region("all")) == len(region("all too")) == region("all").scope.size
    assert len(region("one")) == 1
    refused = {
        ("--density", "2"): "for a count use entries=2 (--entries)",
        ("--density", "0.1", "--entries", "5"): "give a density or a number of entries, not both",
        ("--entries", "0"): "for a share use density (--density)",
        ("--entries", "0.5"): "Invalid value for '--entries'",
        ("--budget", "0.1"): "--budget is spelt --density (a share: 1e-4) or --entries (a count: 8500) now",
    }
    for given, message in refused.items():
        code, out, err = run(*words, *given, "-o", "x")
        assert (code, out) == (2, "")
        assert message in err
        assert not (tmp_path / "x").exists()


def test_more_entries_than_there_are_and_too_many_wishes() -> None:
    plan = SearchPlan.of(entries=57)
    with pytest.raises(InputError, match="57 entries are more than the 56 of the scope 'all'"):
        plan.count(Scope.of("all", {"w": (56,)}))
    for budget in ({"entries": 5}, {"density": 0.1}):
        with pytest.raises(
            InputError, match="a density, a number of entries, or a share to keep of the score or of the gain"
        ):
            SearchPlan.of(keep=0.9, **budget)
    with pytest.raises(InputError, match=r"a share to keep lies between 0 and 1, found 1\.5"):
        SearchPlan.of(keep=1.5)
    with pytest.raises(InputError, match="labels are 'true' or 'tuned', found 'false'"):
        SearchPlan.of(labels="false")
    with pytest.raises(InputError, match="batch_size must be 1 or more, found 0"):
        SearchPlan.of(batch_size=0)


def test_a_plan_records_what_was_asked_for(films: Films) -> None:
    recipe = films.graft(density=0.01, **STEPS).info["recipe"]
    assert (recipe["density"], recipe["entries"], recipe["keep"]) == (0.01, None, None)
    assert (recipe["scale"], recipe["start"], recipe["steps"], recipe["lr"]) == (1.0, "1e-05", 6, 1e5)
