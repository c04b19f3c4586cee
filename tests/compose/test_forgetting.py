"""Forgetting: every scale against a full evaluation of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skillgraft import Graft, combine, load, save
from skillgraft.compose.forgetting import Forgotten, Trial, _left, forget, negate
from skillgraft.compose.scales import Scaled
from skillgraft.errors import InputError
from skillgraft.measure.metrics import METRICS
from skillgraft.task_model import TaskModel
from tests.compose.two_skills import FEW, SAMPLED, _one_thread, accuracies, brute, opened, pair, place, run, tasks  # noqa: F401
from tests.running import Run

# pytest passes fixtures by their names, which are imported here
# ruff: noqa: F811


@pytest.mark.parametrize(
    ("exact", "wanted"), [((0.5, 0.25, 0.25), 1.0), ((0.5, 0.5, 0.75), 2.0), ((0.0, 0.0, 0.0), 2.0)]
)
def test_exact_answers_decide_where_a_scale_leaves_fewer_and_else_the_loss(
    exact: tuple[float, ...], wanted: float
) -> None:
    trials = [
        Trial(float(scale), {"t": loss}, keeps=True, nll={"t": loss}, exact={"t": share})
        for scale, (loss, share) in enumerate(zip((1.0, 1.5, 2.0), exact, strict=True))
    ]
    assert min(trials, key=_left(trials, "t", frozenset({"t"}))).scale == wanted


def negated(opened: TaskModel, graft: Graft, **asked: Any) -> Forgotten:
    return negate(Scaled(opened, (graft,)), **asked)


def test_forget_by_brute_force(place: Path, tasks: list[Path], pair: dict[str, Graft], opened: TaskModel) -> None:
    skill = 0.5 * pair["films"]
    found = negated(opened, skill, target="films", controls=["animals"], keep=0.8, points=5)
    best: tuple[float, float] | None = None
    base = accuracies(opened, brute(place, tasks, 0.0 * skill))
    for trial in found.trials:
        wanted = accuracies(opened, brute(place, tasks, -trial.scale * skill))
        assert trial.scores == wanted
        assert trial.keeps == (wanted["animals"] >= 0.8 * base["animals"] - 1e-9)
        if trial.keeps and (best is None or wanted["films"] < best[0]):
            best = (wanted["films"], trial.scale)
    assert best is not None
    assert (found.chosen.scores["films"], found.chosen.scale) == best
    assert found.chosen.scale > 0
    assert found.graft.digest == (-found.chosen.scale * skill).digest


def test_scales_go_up_to_3_where_a_small_change_needs_it(pair: dict[str, Graft], opened: TaskModel) -> None:
    """P2: 21 scales from 0 to 3. A small part of the change, scaled by 3, lowers a task that it leaves alone at scale 1."""
    small, asked = 0.03 * pair["films"], {"target": "films", "controls": ["animals"], "keep": 0.01, "or_base": True}
    found = negated(opened, small, **asked)
    assert [trial.scale for trial in found.trials] == pytest.approx([0.15 * number for number in range(21)])
    short = negated(opened, small, most=1.0, **asked)
    assert [trial.scale for trial in short.trials][-1] == 1.0
    assert found.chosen.scale > 1.0
    assert found.chosen.scores["films"] < short.chosen.scores["films"]


def test_a_task_of_f1_is_forgotten_by_its_accuracy(
    place: Path, tasks: list[Path], pair: dict[str, Graft], opened: TaskModel
) -> None:
    files = [file.with_name(f"{file.stem}-f1.toml") for file in tasks[:2]]
    for file, plain in zip(files, tasks, strict=False):
        file.write_text(f'metric = "f1"\n{plain.read_text()}')
    by_f1 = TaskModel.open(place / "encoder", files, data=SAMPLED)
    asked: dict[str, Any] = {"target": "films", "controls": ["animals"], "keep": 0.8, "points": 5}
    found = negated(by_f1, 0.5 * pair["films"], **asked)
    assert found.trials == negated(opened, 0.5 * pair["films"], **asked).trials
    assert METRICS["score"](by_f1.predict(tasks=["films"])["films"]) != found.trials[0].scores["films"]


def test_a_table_has_the_base_where_nothing_qualifies(pair: dict[str, Graft], opened: TaskModel) -> None:
    found = negated(opened, 0.0 * pair["films"], target="films", controls=["animals"], points=3, or_base=True)
    assert found.chosen.scale == 0.0
    assert found.chosen.scores == found.trials[0].scores


def test_forget_says_what_was_found_where_nothing_qualifies(pair: dict[str, Graft], opened: TaskModel) -> None:
    nothing = 0.0 * pair["films"]
    with pytest.raises(InputError, match=r"no scale lowers films: .* among the 2 scales that keep 95% of the controls"):
        negated(opened, nothing, target="films", controls=["animals"], points=3)
    wrecked = -30.0 * combine(list(pair.values()))
    with pytest.raises(InputError, match=r"no scale above 0 keeps 100% .* at the smallest, 0.5: animals .* → "):
        negated(
            opened, -1 * _spoiling(opened, wrecked, "films"), target="animals", controls=["films"], keep=1.0, points=3,
            most=1.0,
        )  # fmt: skip


def _spoiling(opened: TaskModel, graft: Graft, task: str) -> Graft:
    """A change, of either sign, that lowers this task at scales 0.5 and 1."""
    base = METRICS["accuracy"](opened.predict(tasks=[task])[task])
    for candidate in (graft, -graft, 3.0 * graft, -3.0 * graft):
        if all(
            METRICS["accuracy"](opened.predict(scale * candidate, tasks=[task])[task]) < base for scale in (0.5, 1.0)
        ):
            return candidate
    raise AssertionError("no candidate spoils the task")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"keep": 0.0}, "lies above 0 and is at most 1, found 0.0"),
        ({"controls": []}, r"needs control tasks other than itself, found \[\]"),
        ({"controls": ["films"]}, r"other than itself, found \['films'\]"),
        ({"controls": ["animls"]}, "the task 'animls' was not opened; did you mean 'animals'"),
        ({"points": 1}, "a search needs at least 2 points, found 1"),
        ({"most": 0.0}, "the largest scale must be a number above 0"),
    ],
)
def test_wrong_questions_to_forget(
    asked: dict[str, Any], message: str, pair: dict[str, Graft], opened: TaskModel
) -> None:
    with pytest.raises(InputError, match=message):
        negated(opened, pair["films"], **{"target": "films", "controls": ["animals"], **asked})


def test_forget_opens_the_folder_and_records_the_search(
    place: Path, tasks: list[Path], pair: dict[str, Graft], opened: TaskModel
) -> None:
    skill, asked = 0.5 * pair["films"], {"keep": 0.8, "points": 5}
    found = forget(place / "encoder", skill, task=tasks[0], controls=tasks[1:2], data=SAMPLED, **asked)
    wanted = negated(opened, skill, target="films", controls=["animals"], **asked)
    assert found.digest == wanted.graft.digest
    assert found.info["recipe"].items() >= wanted.as_json().items()
    assert "scores" not in found.info


@pytest.mark.usefixtures("tasks")
def test_forget_from_the_command_line(run: Run, pair: dict[str, Graft], opened: TaskModel) -> None:
    save(0.5 * pair["films"], "half.safetensors", overwrite=True)
    words = ("forget", "encoder", "half.safetensors", "--task", "films.toml", "--control", "animals.toml", "--shots", 20,
             "--keep-control", 0.8, "--points", 5, "--validation-rows", FEW)  # fmt: skip
    facts = run(*words, "-o", "minus.safetensors", "--json").json
    wanted = negated(opened, 0.5 * pair["films"], target="films", controls=["animals"], keep=0.8, points=5)
    written = load("minus.safetensors")
    assert written.digest == wanted.graft.digest
    digest = written.digest
    assert facts == {"format": "skillgraft scales 1", "out": "minus.safetensors", "digest": digest, **wanted.as_json()}
    recipe = written.info["recipe"]
    assert (recipe["forget"], recipe["controls"], recipe["scale"]) == ("films", ["animals"], wanted.chosen.scale)
    assert recipe["graft"] == (0.5 * pair["films"]).digest
    assert (recipe["shots"], recipe["validation_rows"], recipe["keep"]) == (20, FEW, 0.8)
    Path("minus.safetensors").unlink()
    text = run(*words, "-o", "minus.safetensors").out
    assert "keeps 80%" in text
    assert len(text.splitlines()) == 8  # the graft, its digest, a header, five scales
    Path("minus.safetensors").unlink()
    for more, scales in (((), [0.0, 0.75, 1.5, 2.25, 3.0]), (("--most", 1), [0.0, 0.25, 0.5, 0.75, 1.0])):
        facts = run(*words, *more, "-o", "minus.safetensors", "--json").json
        assert [point["scale"] for point in facts["points"]] == scales
        assert load("minus.safetensors").info["recipe"]["most"] == scales[-1]
        Path("minus.safetensors").unlink()
