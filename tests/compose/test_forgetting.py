"""Forgetting: every scale against a full evaluation of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skillgraft import Graft, combine, load, save
from skillgraft.compose.bench import Workbench
from skillgraft.compose.forgetting import forget
from skillgraft.errors import InputError
from skillgraft.measure.metrics import METRICS
from tests.compose.two_skills import FEW, _one_thread, accuracies, bench, brute, pair, place, run, tasks  # noqa: F401
from tests.running import Run

# pytest passes fixtures by their names, which are imported here
# ruff: noqa: F811


def test_forget_by_brute_force(place: Path, tasks: list[Path], pair: dict[str, Graft], bench: Workbench) -> None:
    skill = 0.5 * pair["films"]
    found = forget(bench, skill, target="films", controls=["animals"], keep=0.8, points=5)
    best: tuple[float, float] | None = None
    base = accuracies(bench, brute(place, tasks, 0.0 * skill))
    for trial in found.trials:
        wanted = accuracies(bench, brute(place, tasks, -trial.scale * skill))
        assert trial.scores == wanted
        assert trial.keeps == (wanted["animals"] >= 0.8 * base["animals"] - 1e-9)
        if trial.keeps and (best is None or wanted["films"] < best[0]):
            best = (wanted["films"], trial.scale)
    assert best is not None
    assert (found.chosen.scores["films"], found.chosen.scale) == best
    assert found.chosen.scale > 0
    assert found.graft.digest == (-found.chosen.scale * skill).digest


def test_a_task_of_f1_is_forgotten_by_its_accuracy(
    place: Path, tasks: list[Path], pair: dict[str, Graft], bench: Workbench
) -> None:
    files = [file.with_name(f"{file.stem}-f1.toml") for file in tasks[:2]]
    for file, plain in zip(files, tasks, strict=False):
        file.write_text(f'metric = "f1"\n{plain.read_text()}')
    by_f1 = Workbench.open(place / "encoder", files, rows=FEW, shots=20)
    asked: dict[str, Any] = {"target": "films", "controls": ["animals"], "keep": 0.8, "points": 5}
    found = forget(by_f1, 0.5 * pair["films"], **asked)
    assert found.trials == forget(bench, 0.5 * pair["films"], **asked).trials
    assert METRICS["score"](by_f1.said(tasks=["films"])["films"]) != found.trials[0].scores["films"]


def test_a_table_has_the_base_where_nothing_qualifies(pair: dict[str, Graft], bench: Workbench) -> None:
    found = forget(bench, 0.0 * pair["films"], target="films", controls=["animals"], points=3, or_base=True)
    assert found.chosen.scale == 0.0
    assert found.chosen.scores == found.trials[0].scores


def test_forget_says_what_was_found_where_nothing_qualifies(pair: dict[str, Graft], bench: Workbench) -> None:
    nothing = 0.0 * pair["films"]
    with pytest.raises(InputError, match=r"no scale lowers films: .* among the 2 scales that keep 95% of the controls"):
        forget(bench, nothing, target="films", controls=["animals"], points=3)
    wrecked = -30.0 * combine(list(pair.values()))
    with pytest.raises(InputError, match=r"no scale above 0 keeps 100% .* at the smallest, 0.5: animals .* → "):
        forget(bench, -1 * _spoiling(bench, wrecked, "films"), target="animals", controls=["films"], keep=1.0, points=3)


def _spoiling(bench: Workbench, graft: Graft, task: str) -> Graft:
    """A change, of either sign, that lowers this task at scales 0.5 and 1."""
    base = METRICS["accuracy"](bench.said(tasks=[task])[task])
    for candidate in (graft, -graft, 3.0 * graft, -3.0 * graft):
        if all(METRICS["accuracy"](bench.said(scale * candidate, tasks=[task])[task]) < base for scale in (0.5, 1.0)):
            return candidate
    raise AssertionError("no candidate spoils the task")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"keep": 0.0}, "lies above 0 and is at most 1, found 0.0"),
        ({"controls": []}, r"needs control tasks other than itself, found \[\]"),
        ({"controls": ["films"]}, r"other than itself, found \['films'\]"),
        ({"controls": ["animls"]}, "the task 'animls' is not on this bench; did you mean 'animals'"),
        ({"points": 1}, "a search needs at least 2 points, found 1"),
        ({"most": 0.0}, "the largest scale must be a number above 0"),
    ],
)
def test_wrong_questions_to_forget(
    asked: dict[str, Any], message: str, pair: dict[str, Graft], bench: Workbench
) -> None:
    with pytest.raises(InputError, match=message):
        forget(bench, pair["films"], **{"target": "films", "controls": ["animals"], **asked})


@pytest.mark.usefixtures("tasks")
def test_forget_from_the_command_line(run: Run, pair: dict[str, Graft], bench: Workbench) -> None:
    save(0.5 * pair["films"], "half.safetensors", overwrite=True)
    words = ("forget", "encoder", "half.safetensors", "--task", "films.toml", "--control", "animals.toml", "--shots", 20,
             "--keep-control", 0.8, "--points", 5, "--rows", FEW)  # fmt: skip
    facts = run(*words, "-o", "minus.safetensors", "--json").json
    wanted = forget(bench, 0.5 * pair["films"], target="films", controls=["animals"], keep=0.8, points=5)
    written = load("minus.safetensors")
    assert written.digest == wanted.graft.digest
    assert facts == {"out": "minus.safetensors", **wanted.as_json()}
    recipe = written.info["recipe"]
    assert (recipe["forget"], recipe["controls"], recipe["scale"]) == ("films", ["animals"], wanted.chosen.scale)
    assert recipe["graft"] == (0.5 * pair["films"]).digest
    Path("minus.safetensors").unlink()
    text = run(*words, "-o", "minus.safetensors").out
    assert "keeps 80%" in text
    assert len(text.splitlines()) == 7
    Path("minus.safetensors").unlink()
