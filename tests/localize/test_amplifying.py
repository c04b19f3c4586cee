"""Grafts that carry a multiple of tuned's change: what is tried, what is cut, and that it does what its scores say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skillgraft import load
from skillgraft.errors import InputError
from skillgraft.localize import localize
from skillgraft.localize.amplifying import FACTORS, best_attempt, factors_of
from skillgraft.localize.skill import localize_skill
from skillgraft.localize.smallest import OutOfReach
from skillgraft.measure.evaluate import evaluate
from tests.localize.test_any_model import FEW, Pair, accuracy, batches, pair  # noqa: F401
from tests.localize.test_skill import tuned  # noqa: F401
from tests.training.test_finetune import place, run  # noqa: F401

QUICK: dict[str, Any] = {"name": "budgeted", "budget": 0.005, "steps": 5}


@pytest.mark.parametrize(
    ("scores", "best"), [([0.5, 0.7, 0.6, 0.9], 8.0), ([0.5, 0.4, 0.6, 0.6], 4.0), ([0.5, 0.4, 0.3, 0.5], 1.0)]
)
def test_the_best_of_all_factors_is_taken_and_of_equals_the_first(scores: list[float], best: float) -> None:
    assert best_attempt(FACTORS, lambda factor: factor, lambda factor: scores[FACTORS.index(factor)]) == best


def test_one_factor_needs_no_score() -> None:
    assert best_attempt([3.0], lambda factor: factor, lambda _: pytest.fail("nothing to compare")) == 3.0


def test_a_factor_that_cannot_keep_enough_is_passed_over() -> None:
    def attempt(factor: float) -> float:
        if factor < 4.0:
            raise OutOfReach(f"even {factor}")
        return factor

    assert best_attempt(FACTORS, attempt, lambda factor: -factor) == 4.0
    with pytest.raises(OutOfReach, match="even 1"):
        best_attempt([1.0, 2.0], attempt, lambda factor: factor)


def test_an_amplified_graft_is_a_multiple_of_the_change(place: Path, tuned: Path) -> None:  # noqa: F811
    located = localize_skill(place / "encoder", tuned, place / "films.toml", amplify=3.0, **QUICK).graft
    assert (located.form, located.scale) == ("exact", 3.0)
    assert located.info["recipe"]["amplify"] == 3.0
    name = next(iter(located.region))
    before, after = (located.before[name].astype(float), located.change[name].astype(float))
    np.testing.assert_allclose(located.delta(name), 3.0 * (after - before))


def test_it_does_on_the_base_what_its_scores_say(place: Path, tuned: Path) -> None:  # noqa: F811
    graft = localize_skill(place / "encoder", tuned, place / "films.toml", amplify=4.0, **QUICK).graft
    said = evaluate(place / "encoder", [place / "films.toml"], grafts={"g": graft}, split="validation").said["films"][
        "g"
    ]
    told = graft.info["scores"]["validation"]["graft"]
    assert float((said.predicted == said.labels).mean()) == told["accuracy"]["value"]


def test_auto_takes_the_best_on_validation_rows(place: Path, tuned: Path) -> None:  # noqa: F811
    def score(amplify: float | str) -> tuple[float, float]:
        graft = localize_skill(place / "encoder", tuned, place / "films.toml", amplify=amplify, **QUICK).graft
        return graft.info["scores"]["validation"]["graft"]["score"]["value"], graft.scale

    alone = {factor: score(factor)[0] for factor in FACTORS}
    expected = best_attempt(FACTORS, lambda factor: factor, alone.__getitem__)
    assert score("auto") == (alone[expected], expected)
    assert expected > 1.0, "on this toy a twentieth of the skill's entries is too few without it"


def test_a_share_to_keep_takes_the_fewest_entries(place: Path, tuned: Path) -> None:  # noqa: F811
    asked: dict[str, Any] = {"name": "movement", "keep": 0.7}
    plain = localize_skill(place / "encoder", tuned, place / "films.toml", **asked).graft
    amplified = localize_skill(place / "encoder", tuned, place / "films.toml", amplify="auto", **asked).graft
    assert len(amplified) < len(plain)
    assert amplified.scale > 1.0
    assert amplified.info["scores"]["validation"]["graft"]["share_kept"]["value"] >= 0.7


def test_on_the_command_line(run: Callable[..., Any], place: Path, tuned: Path) -> None:  # noqa: F811
    words = (
        "localize",
        "encoder",
        tuned.name,
        "--task",
        "films.toml",
        "--method",
        "budgeted",
        "--budget",
        0.005,
        "--steps",
        5,
    )
    code, out, err = run(*words, "--amplify", "auto", "-o", "loud.safetensors", "--json")
    assert code == 0, err
    assert json.loads(out)["scale"] == load(place / "loud.safetensors").scale > 1.0
    code, out, err = run(*words, "--amplify", "4", "-o", "four.safetensors")
    assert code == 0, err
    assert "4 × the change" in out


def test_any_model(pair: Pair, batches: Any) -> None:  # noqa: F811
    graft = localize(*pair, batches, score=accuracy, budget=4, amplify="auto", **FEW)
    assert graft.scale in FACTORS
    assert graft.info["recipe"]["amplify"] == graft.scale
    assert localize(*pair, batches, budget=4, amplify=2, **FEW).scale == 2.0


def test_snapshots_of_several_factors_stand_apart_and_go(place: Path, tuned: Path, tmp_path: Path) -> None:  # noqa: F811
    asked: dict[str, Any] = {"budget": 0.005, "steps": 4, "lr": 1e5, "snapshot_seconds": 0.0, "amplify": "auto"}
    localize_skill(place / "encoder", tuned, place / "films.toml", out=tmp_path / "g.safetensors", **asked)
    assert [file.name for file in tmp_path.iterdir()] == ["g.safetensors"]


def test_those_of_any_model_too(pair: Pair, batches: Any, tmp_path: Path) -> None:  # noqa: F811
    kept: dict[str, Any] = {"resume": tmp_path / "search", "snapshot_seconds": 0.0, "score": accuracy, "budget": 4}
    localize(*pair, batches, amplify="auto", **kept, **FEW)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("amplify", [0.0, -1.0, float("nan"), float("inf"), "much"])
def test_wrong_factors_are_refused(amplify: float | str) -> None:
    with pytest.raises(InputError, match="a number above 0, or 'auto'; found"):
        factors_of(amplify)


def test_what_does_not_go_together_is_refused(pair: Pair, batches: Any) -> None:  # noqa: F811
    with pytest.raises(InputError, match="with the reference 'zero' leave it at 1"):
        factors_of("auto", reference="zero")
    with pytest.raises(InputError, match="give score=, a function of the model, or a number"):
        localize(*pair, batches, budget=4, amplify="auto", **FEW)
