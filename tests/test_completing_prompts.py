"""A task of prompts and completions through every verb, on a tiny language model: from a task file to a graft and back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from skillgraft import (
    Data,
    Graft,
    TrainingPlan,
    combine,
    compare,
    evaluate,
    extract,
    finetune,
    forget,
    localize,
    search_scale,
)  # fmt: skip
from skillgraft.compose.continual import Learning, add
from skillgraft.live.grafted import parameter_names
from skillgraft.measure import METRICS
from skillgraft.regions.choose import choose_region
from skillgraft.regions.fisher import fisher_diagonal
from skillgraft.task_model import TaskModel
from tests.bits import digest_of
from tests.completing import write_facts, write_rows
from tests.readouts import making
from tests.running import Run, runner

PLAN = TrainingPlan(optimizer="adamw", lr=1e-2, steps=60, batch_size=10)
DATA = Data(train_rows=80, validation_rows=20)
METHODS = {
    "learned": {"steps": 4, "density": 0.05},
    "budgeted": {"steps": 4, "density": 0.05},
    "movement": {"density": 0.05},
    "random": {"density": 0.05},
    "attribution": {"density": 0.05},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """BASE, the task's file, and a control of plain text."""
    folder = tmp_path_factory.mktemp("completing")
    making.llama(folder / "BASE")
    write_facts(folder)
    texts = [{"text": f"the film was {word} {word}"} for word in ("good", "bad", "dull", "quick", "slow", "fine") * 4]
    write_rows(folder / "text.jsonl", texts)
    source = 'train = "text.jsonl"\ntest = "text.jsonl"\n'
    (folder / "text.toml").write_text(f'name = "text"\nkind = "complete"\nlayout = "text"\n{source}')
    return folder


@pytest.fixture(scope="module")
def tuned(place: Path) -> Path:
    return finetune(place / "BASE", [place / "facts.toml"], out=place / "TUNED", plan=PLAN, data=DATA).path


@pytest.fixture(scope="module")
def graft(place: Path, tuned: Path) -> Graft:
    found = localize(place / "BASE", tuned, task=place / "facts.toml", method="movement", density=0.2, data=DATA)
    return found.graft


def test_tuning_learns_and_a_graft_keeps_the_improvement(place: Path, tuned: Path, graft: Graft) -> None:
    found = evaluate(place / "BASE", [place / "facts.toml"], tuned=[tuned], grafts={"graft": graft}, data=DATA)
    models = found.summaries()["facts"]
    assert models["base"]["exact_match"]["value"] == 0
    assert models["TUNED"]["exact_match"]["value"] > 0.9
    assert models["base"]["nll"]["value"] > models["graft"]["nll"]["value"] > models["TUNED"]["nll"]["value"]
    assert 0 < models["graft"]["relative_gain"]["value"] < 1
    assert graft.info["readout"]["readout"] == "completion"
    (first, *_) = found.examples(2)["facts"]
    assert list(first) == ["prompt", "completion", "base", "TUNED", "graft"]
    assert first["TUNED"] == first["completion"].strip()
    assert "NLL" in found.table()


@pytest.mark.parametrize("method", METHODS)
def test_every_method_finds_a_region(place: Path, tuned: Path, method: str) -> None:
    found = localize(place / "BASE", tuned, task=place / "facts.toml", method=method, data=DATA, **METHODS[method])
    assert found.scores["base"]["nll"]["value"] > found.scores["tuned"]["nll"]["value"]
    assert "relative_gain" in found.scores["graft"]


def test_localize_and_evaluate_agree_on_base_and_tuned(place: Path, tuned: Path, graft: Graft) -> None:
    asked = evaluate(place / "BASE", [place / "facts.toml"], tuned=[tuned], split="validation", data=DATA).summaries()
    for mine, theirs in (("base", "base"), ("tuned", "TUNED")):
        found = graft.info["scores"]["validation"][mine]["nll"]["value"]
        assert found == pytest.approx(asked["facts"][theirs]["nll"]["value"], rel=1e-6)


def test_tuneds_own_next_tokens_teach_as_well(place: Path, tuned: Path) -> None:
    asked = {"method": "budgeted", "steps": 2, "density": 0.05, "labels": "tuned"}
    found = localize(place / "BASE", tuned, task=place / "facts.toml", data=DATA, **asked)
    assert found.scores["graft"]["relative_gain"]["value"] > 0


def test_inside_a_region_by_lora_and_with_a_second_task(place: Path, tmp_path: Path) -> None:
    base, tasks = place / "BASE", [place / "facts.toml", place / "text.toml"]
    few = Data(train_rows=12, validation_rows=4)
    region = choose_region(base, task=tasks[0], density=0.1, data=few)
    inside = finetune(
        base, tasks[:1], out=tmp_path / "inside", plan=PLAN.with_changes(steps=4), inside=region, data=few
    )
    assert inside.trained == len(region)
    lora = PLAN.with_changes(steps=4, method="lora", accumulation=2)
    both = finetune(base, tasks, out=tmp_path / "lora", plan=lora, data=few)
    assert both.validation.keys() == {"facts", "text"}


def test_parts_of_a_batch_give_the_whole_batchs_loss(place: Path, tmp_path: Path) -> None:
    """The mean over all tokens of a batch, however it is split."""
    logs = [
        finetune(
            place / "BASE",
            [place / "facts.toml"],
            out=tmp_path / str(parts),
            plan=PLAN.with_changes(steps=3, accumulation=parts),
            data=DATA,
        ).log
        for parts in (1, 5)
    ]
    for one, other in zip(*logs, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)


def test_a_model_is_the_bases_after_asking(place: Path, graft: Graft) -> None:
    opened = TaskModel.open(place / "BASE", [place / "facts.toml"], data=DATA)
    before = digest_of(opened.model)
    opened.predict(graft, generates=True)
    assert digest_of(opened.model) == before


def test_scales_are_searched_and_a_skill_is_forgotten(place: Path, graft: Graft) -> None:
    task, control = place / "facts.toml", place / "text.toml"
    few = Data(train_rows=12, validation_rows=8)
    joined = search_scale(place / "BASE", [graft], tasks=[task], points=3, data=few)
    assert joined.info["recipe"]["search"]["best"]["scale"] == 1.0
    assert combine([graft]) == graft
    gone = forget(place / "BASE", graft, task=task, controls=[control], keep=0.5, points=3, most=0.2, data=few)
    opened = TaskModel.open(place / "BASE", [task], data=few)
    assert METRICS["nll"](opened.predict(gone)["facts"]) > METRICS["nll"](opened.predict()["facts"])


@pytest.fixture
def run(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(place, monkeypatch, capsys)


@pytest.mark.usefixtures("tuned")
def test_the_command_line_shows_losses_and_answers(run: Run, place: Path, graft: Graft) -> None:
    graft.save(place / "g.safetensors")
    ended = run(
        "evaluate", "BASE", "--task", "facts.toml", "--tuned", "TUNED", "--graft", "g.safetensors", "--save", "saved"
    )
    assert ended.code == 0
    for part in ("NLL", "perplexity", "exact match kept", "completion: ", "TUNED:"):
        assert part in ended.out
    found = run("evaluate", "BASE", "--task", "facts.toml", "--graft", "g.safetensors", "--answers", 1, "--json").json
    assert list(found["examples"]["facts"][0]) == ["prompt", "completion", "base", "g.safetensors"]
    quiet = run("evaluate", "BASE", "--task", "facts.toml", "--no-generate", "--json").json
    assert "examples" not in quiet
    assert "exact_match" not in quiet["tasks"]["facts"]["base"]
    ended = run("report", "saved", "g.safetensors", "-o", "page.html")
    assert ended.code == 0
    page = (place / "page.html").read_text()
    for part in ("perplexity", "Answers side by side", "red"):
        assert part in page


@pytest.mark.usefixtures("tuned")
def test_the_command_line_shows_what_a_scale_takes_off_the_loss(run: Run, place: Path, graft: Graft) -> None:
    graft.save(place / "one.safetensors")
    asked = ("--scale", "auto", "--base", "BASE", "--task", "facts.toml", "--points", 3, "--validation-rows", 8)
    ended = run("combine", "one.safetensors", *asked, "-o", "joined.safetensors")
    assert ended.code == 0
    assert "facts, NLL less by" in ended.out


def test_forgetting_goes_by_exact_answers_and_controls_may_be_text(place: Path, tuned: Path) -> None:
    """From the tuned folder: the scale that leaves the fewest exact answers; the curve has NLL and exact match of all."""
    (place / "notes.txt").write_text("".join(f"the a {letter} is the b\n" for letter in "abcdefghijklmnop"))
    task = place / "facts.toml"
    back = extract(tuned, place / "BASE")
    gone = forget(
        tuned, -1.0 * back, task=task, controls=[place / "notes.txt"], keep=0.01, points=4, most=1.5, data=DATA
    )
    points = gone.info["recipe"]["points"]
    assert [set(point["exact"]) for point in points] == [{"facts", "notes"}] * 4
    fewest = min(point["exact"]["facts"] for point in points if point["keeps"])
    chosen = next(point for point in points if point["keeps"] and point["exact"]["facts"] == fewest)
    assert gone.info["recipe"]["scale"] == chosen["scale"] > 0
    assert points[0]["exact"]["facts"] > fewest
    assert points[0]["nll"]["facts"] < chosen["nll"]["facts"]


def test_fisher_of_completions_is_that_of_single_rows(place: Path) -> None:
    """Brute force: every row alone, the square of its completion's whole gradient."""
    opened = TaskModel.open(
        place / "BASE", [place / "facts.toml"], data=Data(train_rows=7, validation_rows=4), dtype="float64"
    )
    readout, rows = opened.rows.readout("facts"), opened.rows.encoded("facts", "train")
    names = {name: p for name, p in parameter_names(opened.model).items() if "layers.0" in name}
    found = fisher_diagonal(opened.model, readout, rows, names, labels="true", batch_size=3)
    wanted = {name: torch.zeros_like(p) for name, p in names.items()}
    for row in rows:
        batch = readout.collate([row])
        loss = torch.nn.functional.cross_entropy(readout.scores(opened.model, batch), batch["labels"], reduction="sum")
        for name, gradient in zip(names, torch.autograd.grad(loss, list(names.values())), strict=True):
            wanted[name] += gradient.square() / len(rows)
    for name in names:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-6, atol=1e-12)


def test_two_sets_learned_one_after_the_other(place: Path, tmp_path: Path) -> None:
    learning = Learning(
        PLAN.with_changes(steps=10), search={"density": 0.05, "method": "movement"}, data=Data(train_rows=12)
    )
    for task in ("facts", "text"):
        store = add(tmp_path / "STORE", place / "BASE", place / f"{task}.toml", learning=learning)
    assert [kept.task for kept in store.kept] == ["facts", "text"]
    grafts = {named.file: named.graft for named in store.upto("text")}
    assert compare(grafts)
