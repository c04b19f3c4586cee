"""What a search learns from besides labels: tuned's own answers on any rows, and base's on controls."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skillgraft import extract, finetune, load
from skillgraft.errors import DataError, InputError
from skillgraft.files.graft_file import save
from skillgraft.regions.localize import Localization, climbed, localize
from skillgraft.regions.search import SearchPlan
from skillgraft.regions.targets import divergence
from skillgraft.regions.tuned_pair import open_pair
from skillgraft.tasks.data import as_rows
from skillgraft.tasks.examples import read_examples
from skillgraft.training.plan import TrainingPlan
from skillgraft.values.region import Region
from tests.readouts import making
from tests.running import Run

FEW: dict[str, Any] = {"method": "budgeted", "steps": 8, "batch_size": 8, "candidates": 0.2}
FACTS = ["good film", "bad plot", "warm story", "slow scene", "fine actor", "dull end"]


@dataclass(frozen=True)
class Tunings:
    """A tiny Llama, the same tuned on prompts and answers, their task, and a plain text."""

    base: Path
    tuned: Path
    task: Path
    text: Path

    def localize(self, **asked: Any) -> Localization:
        return localize(self.base, self.tuned, **{"task": self.task, "density": 0.02, **FEW, **asked})


@pytest.fixture(scope="module")
def tunings(tmp_path_factory: pytest.TempPathFactory) -> Tunings:
    folder = tmp_path_factory.mktemp("tunings")
    base = making.llama(folder / "base")
    rows = [{"prompt": f"a {words} is", "completion": f" {words.split()[0]}"} for words in FACTS] * 6
    for split, part in (("train", rows), ("test", rows[:6])):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    task = folder / "tunings.toml"
    task.write_text(
        'name = "tunings"\nkind = "complete"\ntrain = "train.jsonl"\ntest = "test.jsonl"\nvalidation = "test.jsonl"\n'
        "max_length = 32\n"
    )
    text = folder / "notes.txt"
    text.write_text(
        "".join(f"the {word} of the film number {number}\n" for number in range(8) for word in ("plot", "end"))
    )
    plan = TrainingPlan(optimizer="adamw", lr=5e-3, batch_size=8, steps=60)
    finetune(base, [task], out=folder / "tuned", plan=plan)
    return Tunings(base, folder / "tuned", task, text)


logits = st.lists(st.floats(-20, 20, width=32), min_size=3, max_size=3)


@settings(deadline=None)
@given(st.lists(st.tuples(logits, logits), min_size=1, max_size=5), st.booleans())
def test_the_divergence_is_kullback_and_leiblers(lines: list[tuple[list[float], list[float]]], choices: bool) -> None:
    wanted, found = (torch.tensor([line[side] for line in lines]) for side in (0, 1))
    if choices:
        wanted[0, 2] = found[0, 2] = -torch.inf
    found.requires_grad_()
    p, q = (torch.softmax(each.double(), -1) for each in (wanted, found))
    terms = torch.where(p > 0, p * (p.clamp(min=1e-300).log() - q.clamp(min=1e-300).log()), 0.0)
    result = divergence(wanted, found)
    assert float(result.detach()) == pytest.approx(float(terms.sum(-1).mean().detach()), abs=1e-4)
    result.backward()  # type: ignore[no-untyped-call]
    assert found.grad is not None
    torch.testing.assert_close(found.grad, ((q - p) / len(lines)).float().detach(), atol=1e-5, rtol=1e-4)


def test_tuneds_answers_on_plain_text_are_learned_without_a_task(tunings: Tunings) -> None:
    located = tunings.localize(task=None, match=tunings.text)
    assert located.scores == {}
    assert located.match["rows"] > 0
    assert located.match["graft"] < 0.8 * located.match["base"]
    assert located.match["share"] == pytest.approx(1 - located.match["graft"] / located.match["base"])
    assert located.graft.info["recipe"]["match"] == dict(located.match)


def test_labels_play_no_part_where_tuneds_answers_are_learned(tunings: Tunings) -> None:
    by_label = tunings.localize(scale=2.0)
    by_answer = tunings.localize(labels="tuned", scale=2.0)
    assert by_label.graft.region != by_answer.graft.region
    assert by_answer.scores["graft"]["relative_gain"]["value"] > 0.1


def test_the_smallest_graft_keeps_a_share_of_the_way_to_tuneds_answers(tunings: Tunings) -> None:
    located = tunings.localize(task=None, match=tunings.text, density=None, keep_gain=0.5, scale=2.0)
    assert located.match["share"] >= 0.5
    assert 0 < len(located.graft) < located.graft.region.scope.size


def test_controls_cost_damage_and_their_strength_is_searched(tunings: Tunings) -> None:
    free = tunings.localize(scale=2.0)
    kept = tunings.localize(scale=2.0, controls=[tunings.text], control_strength=30.0)
    plan = SearchPlan.of(density=0.02, **FEW)
    with open_pair(tunings.base, tunings.tuned, [tunings.task], plan=plan, controls=[as_rows(tunings.text)]) as pair:
        problem = pair.problem.scaled(2.0)
        damage = {
            name: pair.trial(problem, each.graft.region)["damage"] for name, each in (("free", free), ("kept", kept))
        }
        assert damage["kept"] < 0.7 * damage["free"]
        everything = pair.trial(pair.problem, Region.full(pair.problem.scope))
        for share in ("gain", "damage"):  # the last norm lies outside the layers
            assert everything[share] == pytest.approx(1.0, abs=0.3)
    found = tunings.localize(scale=2.0, controls=[tunings.text])
    strengths = [trial["strength"] for trial in found.trials if "strength" in trial]
    assert len(strengths) >= 2
    best = max((trial for trial in found.trials if "strength" in trial), key=lambda trial: trial["merit"])
    assert found.graft.info["recipe"]["control_strength"] == best["strength"]
    assert found.graft.info["recipe"]["controls"] == ["notes"]


def test_a_number_is_climbed_to_from_both_sides() -> None:
    asked: list[float] = []

    def merit(number: float) -> float:
        asked.append(number)
        return -abs(np.log2(number) - 4)

    assert climbed(merit, first=1.0, factor=4.0, least=1 / 64, most=1024.0) == 16.0
    assert asked == [1.0, 4.0, 16.0, 64.0]
    assert climbed(lambda n: -abs(np.log2(n) + 2), first=1.0, factor=4.0, least=1 / 64, most=1024.0) == 0.25
    assert climbed(lambda _n: 0.0, first=1.0, factor=4.0, least=1 / 64, most=1024.0) == 1.0


def test_plain_text_is_read_from_what_files_there_are(tmp_path: Path) -> None:
    for name, content in {
        "a.txt": "one line\n\nanother\n",
        "b.jsonl": '{"text": "one line"}\n{"text": "another"}\n',
        "c.csv": "id,prompt\n1,one line\n2,another\n",
    }.items():
        (tmp_path / name).write_text(content)
        task = as_rows(tmp_path / name)
        assert task.name == name[0]
        assert read_examples(task, "train").columns["completion"] == ("one line", "another")
    (tmp_path / "d.csv").write_text("id,words\n1,one\n")
    with pytest.raises(InputError, match="expected a column of text called text, prompt, content"):
        as_rows(tmp_path / "d.csv")
    with pytest.raises(DataError, match="there is no such file"):
        as_rows(tmp_path / "none.txt")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"task": None}, "give a task, or with match= rows"),
        ({"match": "x.txt"}, "give a task, or with match= rows"),
        ({"task": None, "match": "x.txt", "density": None, "keep": 0.9}, "without labels there is no score"),
        ({"control_strength": -1.0}, "control_strength is a number of at least 0, or 'auto'; found -1"),
        ({"keep_gain": 0.9}, "one of them; found density, keep_gain"),
        ({"density": None, "keep": 0.9}, "'tunings' is scored by nll, a loss, which has no share: ask for keep_gain"),
        ({"density": None, "keep_gain": 1.5}, "lies between 0 and 1, found 1.5"),
    ],
)
def test_what_does_not_fit_together_is_refused(tunings: Tunings, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tunings.localize(**asked)


def test_on_the_command_line(run: Run, tunings: Tunings, tmp_path: Path) -> None:
    words = (
        "localize",
        tunings.base,
        tunings.tuned,
        "--method",
        "budgeted",
        "--steps",
        4,
        "--batch-size",
        8,
        "--density",
        0.02,
    )
    code, out, err = run(*words, "--match", tunings.text, "-o", "match.safetensors")
    assert code == 0, err
    assert "KL to TUNED" in out
    more = ("--control", tunings.text, "--control-strength", 4, "--checkpoint-activations", "--candidates", 0.1)
    code, out, err = run(*words, "--task", tunings.task, *more, "--json", "-o", "kept.safetensors")
    assert code == 0, err
    recipe = load(tmp_path / "kept.safetensors").info["recipe"]
    assert (recipe["control_strength"], recipe["candidates"], recipe["checkpoint_activations"]) == (4.0, 0.1, True)
    code, _, err = run(*words, "--task", tunings.task, "--match", tunings.text, "-o", "x.safetensors")
    assert code == 2
    assert "give one of them" in err


def test_evaluate_shows_what_is_kept_broken_and_given_back(run: Run, tunings: Tunings, tmp_path: Path) -> None:
    """By hand from the models' own NLL; a graft of everything keeps all and gives nothing back."""
    save(extract(tunings.base, tunings.tuned), tmp_path / "all.safetensors")
    words = ("--tuned", tunings.tuned, "--graft", tmp_path / "all.safetensors", "--control", tunings.text)
    code, out, err = run("evaluate", tunings.base, "--task", tunings.task, *words, "--no-generate", "--json")
    assert code == 0, err
    found = json.loads(out)
    nll = {task: {m: one["nll"]["value"] for m, one in models.items()} for task, models in found["tasks"].items()}
    tuned, graft = found["repaired"]["tuned"], found["repaired"]["all.safetensors"]
    assert tuned["tasks"]["tunings"]["improvement"]["value"] == pytest.approx(
        nll["tunings"]["base"] - nll["tunings"]["tuned"]
    )
    assert tuned["controls"]["notes"]["damage"]["value"] == pytest.approx(nll["notes"]["tuned"] - nll["notes"]["base"])
    assert graft["tasks"]["tunings"]["kept"]["value"] == pytest.approx(1.0, abs=1e-4)
    assert graft["controls"]["notes"]["given_back"]["value"] == pytest.approx(0.0, abs=1e-4)
    code, out, err = run("evaluate", tunings.base, "--task", tunings.task, *words, "--no-generate")
    assert code == 0, err
    assert "notes damaged by" in out
    code, _, err = run("evaluate", tunings.base, "--task", tunings.task, "--control", tunings.text)
    assert code == 2
    assert "--control needs --tuned" in err
