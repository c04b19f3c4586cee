"""A method, a readout, a rule and a recipe of one's own, each added from outside the package as one row of a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from skillgraft import Data, Graft, TaskModel, combine, localize_live
from skillgraft.compose.rules import RULES
from skillgraft.errors import InputError
from skillgraft.opening.source import Source
from skillgraft.papers.main import reproduce
from skillgraft.papers.profile import Profile
from skillgraft.papers.recipe import Draft, Recipe, Wanted
from skillgraft.papers.recipes import RECIPES
from skillgraft.readouts.linear import plan_linear
from skillgraft.readouts.readout import Options, Plan
from skillgraft.readouts.readouts import READOUTS
from skillgraft.regions.methods import METHODS, MethodResult, RegionMethod
from skillgraft.regions.problem import Problem
from skillgraft.regions.ranking import Ranking
from skillgraft.tasks import Task
from skillgraft.values.region import Region
from tests.compose.test_rules import graft
from tests.papers import toys
from tests.readouts import making
from tests.regions.toys import net, net_batches, net_loss, tuned_net


def least_moved(problem: Problem, _start: Region, *, most: int, power: float = 1.0) -> MethodResult:
    """The opposite of `movement`."""

    def still(name: str) -> np.ndarray:
        return -(np.abs(problem.movement(name)) ** power)

    return MethodResult(Ranking(problem.scope, still, problem.movement, most=most))


def test_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "least-moved", RegionMethod(least_moved))
    base = net().eval()
    asked = {"loss": net_loss, "scope": "all", "entries": 5}
    most = localize_live(base, tuned_net(base), net_batches(), method="movement", **asked)
    least = localize_live(base, tuned_net(base), net_batches(), method="least-moved", power=2.0, **asked)
    assert len(least) == len(most) == 5
    assert least.norm < most.norm
    with pytest.raises(InputError, match=r"takes no 'rounds'; .*power"):
        localize_live(base, tuned_net(base), net_batches(), method="least-moved", rounds=2, **asked)


def plan_own(source: Source, tasks: Sequence[Task], options: Options) -> Plan:
    return plan_linear(source, tasks, options)


def test_a_readout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(READOUTS, "own", plan_own)
    making.write_films(tmp_path, test=6)
    opened = TaskModel.open(making.bert(tmp_path / "base"), [tmp_path / "films.toml"], data=Data(readout="own"))
    assert opened.predict(split="test")["films"].scores.shape == (6, 2)


def loudest(grafts: Sequence[Graft], *, times: float = 1.0) -> Graft:
    """The graft with the largest norm alone."""
    return times * max(grafts, key=lambda each: each.norm)


def test_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, "loudest", loudest)
    small, large = graft({0: 1.0, 1: 1.0}), graft({1: 3.0, 2: 4.0})
    assert combine([small, large], rule="loudest", times=2.0).digest == (2.0 * large).digest
    with pytest.raises(InputError, match="'loudest' has no option 'loud'"):
        combine([small], rule="loudest", loud=1)


def sums(_profile: Profile) -> list[Draft]:
    cells = {(f"{seed}", "sum"): Wanted(lambda found: found, ((toys.added(seed),),)) for seed in (1, 2)}
    return [Draft("two sums", cells, unit="number")]


def test_a_recipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(RECIPES, "sums", Recipe("numbers that are added up", "ours", sums))
    profile = Profile(str(making.bert(tmp_path / "base")))
    result = reproduce("sums", profile, store=tmp_path / "store", out=tmp_path / "out")
    assert [result.sheets[0].cells[row, "sum"].value for row in ("1", "2")] == [1.0, 2.0]
    assert (tmp_path / "out" / "sums.md").is_file()
