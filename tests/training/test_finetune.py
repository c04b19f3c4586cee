"""`finetune` and `evaluate` as a user runs them: methods, resuming after kill -9, several processes, wrong input."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from skillgraft import extract, grafted, load_region, save, save_region
from skillgraft.errors import InputError
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.folders.movement import count_of, most_moved
from skillgraft.live.grafted import tensors_of
from skillgraft.measure.evaluate import evaluate
from skillgraft.predictions.predict import predict
from skillgraft.tasks import load_task, read_examples
from skillgraft.tasks.data import Data
from skillgraft.training.finetune import finetune
from skillgraft.training.grid import finetune_recipe
from skillgraft.training.plan import TrainingPlan
from skillgraft.values.region import Scope
from tests.model_folders import same_weights
from tests.readouts import making
from tests.readouts.making import open_readouts
from tests.running import Run, runner, start

QUICK = TrainingPlan(optimizer="adamw", lr=3e-3, batch_size=8, steps=30, dropout=False)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with films.toml, its rows, and the models `encoder` (sentence encoder) and `masked` (BertForMaskedLM)."""
    folder = tmp_path_factory.mktemp("place")
    making.sentence_encoder(folder / "encoder")
    making.bert(folder / "masked")
    making.write_films(folder)
    return folder


@pytest.fixture
def run(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`skillgraft …` in this process, in that folder."""
    return runner(place, monkeypatch, capsys)


TRAIN = ("--task", "films.toml", "--optimizer", "adamw", "--lr", "3e-3", "--batch-size", "8", "--no-dropout")


def test_finetune_then_evaluate_from_the_command_line(run: Run, place: Path) -> None:
    code, out, err = run("finetune", "encoder", *TRAIN, "--steps", 150, "-o", "tuned", "--json")
    assert code == 0, err
    facts = json.loads(out)
    assert facts["readout"] == "text-head"
    assert facts["validation"]["films"] > 0.9
    assert len((place / "tuned" / "training.jsonl").read_text().splitlines()) == 150
    made = json.loads((place / "tuned" / "skillgraft.json").read_text())["made"]
    assert made["plan"]["lr"] == 3e-3
    assert made["command"].startswith("skillgraft finetune encoder")
    transformers.AutoModel.from_pretrained(place / "tuned")
    transformers.AutoTokenizer.from_pretrained(place / "tuned")
    assert run("extract", "encoder", "tuned", "-o", "skill.safetensors")[0] == 0
    code, out, err = run("evaluate", "encoder", "--task", "films.toml", "--tuned", "tuned", "--graft", "skill.safetensors",
                         "--save", "predictions", "--record", "--json")  # fmt: skip
    assert code == 0, err
    models = json.loads(out)["tasks"]["films"]
    assert models["tuned"]["accuracy"]["value"] > models["base"]["accuracy"]["value"] + 0.2
    assert models["skill.safetensors"]["accuracy"] == models["tuned"]["accuracy"]
    assert models["skill.safetensors"]["agreement"]["value"] == 1.0
    assert {file.name for file in (place / "predictions").iterdir()} == {
        "films--base.npz", "films--tuned.npz", "films--skill.safetensors.npz",
    }  # fmt: skip
    made = json.loads(run("inspect", "skill.safetensors", "--json")[1])["made"]
    assert made["scores"]["test"]["films"]["accuracy"] == models["tuned"]["accuracy"]


def test_evaluate_asks_one_tasks_question_about_anothers_rows(run: Run, place: Path) -> None:
    films = (place / "films.toml").read_text(encoding="utf-8")
    plays = films.replace('name = "films"', 'name = "plays"').replace("a good film", "the red house")
    (place / "plays.toml").write_text(plays, encoding="utf-8")
    ended = run("evaluate", "encoder", "--task", "films.toml", "--task", "plays.toml",
                "--task", "plays.toml as films.toml", "--json")  # fmt: skip
    tasks = {name: models["base"]["nll"] for name, models in ended.json["tasks"].items()}
    assert tasks["plays as films"] == tasks["films"]
    assert tasks["plays as films"] != tasks["plays"]


def test_evaluate_with_numbers_fitted_on_validation_rows(run: Run) -> None:
    code, out, err = run("evaluate", "encoder", "--task", "films.toml", "--tuned", "encoder", "--shots", "8", "--test-rows", "30",
                         "--temperature", "--shift", "--json")  # fmt: skip
    assert code == 0, err
    models = json.loads(out)["tasks"]["films"]
    assert models.keys() == {"base", "encoder", "base + shift", "encoder + temperature"}
    assert models["encoder + temperature"]["accuracy"] == models["encoder"]["accuracy"]
    assert models["encoder + temperature"]["nll"] != models["encoder"]["nll"] != models["base + shift"]["nll"]


def test_evaluate_prints_a_table(run: Run) -> None:
    code, out, err = run("evaluate", "encoder", "--task", "films.toml")
    assert code == 0, err
    assert "films (40 rows)" in out
    assert "majority class: 50.0" in out


@pytest.mark.parametrize(
    "settings", [{"method": "bias"}, {"method": "lora"}, {"method": "linear"}, {"l1": 0.001}, {"pull": 0.1}]
)
def test_every_method_writes_a_normal_folder(settings: dict[str, Any], place: Path, tmp_path: Path) -> None:
    plan = QUICK.with_changes(steps=4, **settings)
    finetune(place / "encoder", [place / "films.toml"], out=tmp_path / "out", plan=plan)
    base, out = Checkpoint.open(place / "encoder"), Checkpoint.open(tmp_path / "out")
    assert base.shapes == out.shapes
    assert not same_weights(place / "encoder", tmp_path / "out")
    transformers.AutoModel.from_pretrained(tmp_path / "out")


def test_from_python_nothing_is_printed(place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """transformers shows a bar for every file that it reads or writes, unless told otherwise; its setting is put back."""
    bars = transformers.utils.logging
    bars.enable_progress_bar()
    plan = QUICK.with_changes(steps=2, checkpoint_every=1)
    finetune(place / "encoder", [place / "films.toml"], out=tmp_path / "out", plan=plan)
    evaluate(place / "encoder", [place / "films.toml"], tuned={"t": tmp_path / "out"}, data=Data(test_rows=4))
    assert capfd.readouterr() == ("", "")
    assert bars.is_progress_bar_enabled()


def test_a_linear_head_travels_in_the_graft(place: Path, tmp_path: Path) -> None:
    data = Data(readout="linear")
    finetune(place / "masked", [place / "films.toml"], out=tmp_path / "out", plan=QUICK, data=data)
    graft = extract(place / "masked", tmp_path / "out")
    assert "classifier.weight" in graft.heads
    found = evaluate(
        place / "masked", [place / "films.toml"], grafts={"g": graft}, tuned={"t": tmp_path / "out"}, data=data
    )["films"]
    np.testing.assert_array_equal(found["g"].scores, found["t"].scores)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert model.config.id2label == {0: "bad", 1: "good"}


def test_an_image_model_whose_folder_has_other_names_than_its_modules(tmp_path: Path) -> None:
    """transformers stores ViT under other names than it has in memory; grafts go by the folder's."""
    making.vit(tmp_path / "vit")
    draw = np.random.default_rng(0)
    labels = np.arange(60) % 3
    images = (draw.integers(0, 60, (60, 12, 12)) + 90 * labels[:, None, None]).astype(np.uint8)
    for name, some in (("x", slice(0, 45)), ("y", slice(45, 60))):
        np.savez(tmp_path / f"{name}.npz", images=images[some], labels=labels[some])
    (tmp_path / "digits.toml").write_text(
        'name = "digits"\ntrain = "x.npz"\ntest = "y.npz"\nimage = "image"\nlabels = ["zero", "one", "two"]\n'
    )
    plan = QUICK.with_changes(train_embeddings=True, steps=60)
    finetune(tmp_path / "vit", [tmp_path / "digits.toml"], out=tmp_path / "out", plan=plan)
    found = evaluate(tmp_path / "vit", [tmp_path / "digits.toml"], tuned={"t": tmp_path / "out"})["digits"]["t"]
    opened = open_readouts(tmp_path / "out", [load_task(tmp_path / "digits.toml")])
    rows = opened.readouts[0].encode(read_examples(load_task(tmp_path / "digits.toml"), "test"))
    np.testing.assert_array_equal(predict(opened.model, opened.readouts[0], rows).scores, found.scores)
    assert float((found.predicted == found.labels).mean()) > 0.8


def test_inside_and_outside_a_region(place: Path, tmp_path: Path) -> None:
    finetune(place / "encoder", [place / "films.toml"], out=tmp_path / "full", plan=QUICK)
    base, full = Checkpoint.open(place / "encoder"), Checkpoint.open(tmp_path / "full")
    scope = Scope.select("layers", base.shapes)
    region = most_moved(base, full, scope, count_of(scope, density=0.05))
    save_region(region, tmp_path / "region.safetensors")
    region = load_region(tmp_path / "region.safetensors")
    trained = finetune(
        place / "encoder", [place / "films.toml"], out=tmp_path / "in", plan=QUICK, inside=region
    ).trained
    assert trained == len(region)
    finetune(place / "encoder", [place / "films.toml"], out=tmp_path / "out", plan=QUICK, outside=region)
    inside, outside = (extract(place / "encoder", tmp_path / name).region for name in ("in", "out"))
    assert len(inside - region) == 0
    assert len(inside) > 0.9 * len(region)
    assert len(outside & region) == 0
    assert len(outside) > len(region)


def test_a_mixture_of_tasks_trains_one_body(place: Path, tmp_path: Path) -> None:
    second = (place / "films.toml").read_text().replace('name = "films"', 'name = "again"')
    (place / "again.toml").write_text(second)
    tuned = finetune(
        place / "encoder", [place / "films.toml", place / "again.toml"], out=tmp_path / "out",
        plan=QUICK.with_changes(validate_every=10, keep="best"), data=Data(shots=20),
    )  # fmt: skip
    assert set(tuned.validation) == {"films", "again"}


def test_checkpoints_on_the_way(place: Path, tmp_path: Path) -> None:
    finetune(
        place / "encoder",
        [place / "films.toml"],
        out=tmp_path / "out",
        plan=QUICK.with_changes(steps=6, checkpoint_every=3),
    )
    steps = sorted(folder.name for folder in (tmp_path / "out.steps").iterdir())
    assert steps == ["step-000003", "step-000006"]
    assert same_weights(tmp_path / "out.steps" / "step-000006", tmp_path / "out")


def test_a_recipes_grid_keeps_the_best_on_validation(place: Path, tmp_path: Path) -> None:
    task = load_task(place / "films.toml")
    best = finetune_recipe(
        place / "encoder",
        [task],
        out=tmp_path / "out",
        recipe_name="p1",
        settings={"lr": 0.05, "dropout": False},
        data=Data(shots=4),
    )
    assert best.steps == 16 * 2 * 4
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


def test_killed_and_started_again_it_ends_with_the_same_bits(place: Path, tmp_path: Path) -> None:
    words = ("finetune", "encoder", *TRAIN, "--steps", 300, "--snapshot-seconds", "0")
    straight = start(place, *words, "-o", tmp_path / "straight")
    began = time.monotonic()
    assert straight.wait(timeout=120) == 0, straight.stderr.read() if straight.stderr else ""
    took = time.monotonic() - began
    killed = start(place, *words, "-o", tmp_path / "killed")
    resume = tmp_path / ".killed.resume"
    deadline = time.monotonic() + 60
    while not resume.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1 * took)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert resume.exists() or (tmp_path / "killed").exists()
    again = start(place, *words, "-o", tmp_path / "killed") if not (tmp_path / "killed").exists() else None
    assert again is None or again.wait(timeout=120) == 0
    assert same_weights(tmp_path / "straight", tmp_path / "killed")
    assert not resume.exists()


def test_two_processes_give_the_numbers_of_one(place: Path, tmp_path: Path) -> None:
    """Tolerance: float32 sums in another order, through 20 steps of SGD."""
    words = (
        "finetune",
        "encoder",
        "--task",
        "films.toml",
        "--lr",
        "0.05",
        "--batch-size",
        "8",
        "--no-dropout",
        "--steps",
        20,
    )
    for processes in (1, 2):
        run = start(place, *words, "-o", tmp_path / f"p{processes}", processes=processes)
        _, err = run.communicate(timeout=180)
        assert run.returncode == 0, err
    one, two = (transformers.AutoModel.from_pretrained(tmp_path / f"p{processes}") for processes in (1, 2))
    start_numbers = tensors_of(transformers.AutoModel.from_pretrained(place / "encoder")).arrays
    moved = 0.0
    for name, array in tensors_of(one).arrays.items():
        np.testing.assert_allclose(tensors_of(two).arrays[name], array, atol=2e-5, err_msg=name)
        moved = max(moved, float(np.abs(array - start_numbers[name]).max()))
    assert moved > 1e-2, "the run must move the numbers far more than the tolerance"


def test_grafts_are_off_again_after_evaluating(place: Path, tmp_path: Path) -> None:
    finetune(place / "encoder", [place / "films.toml"], out=tmp_path / "out", plan=QUICK.with_changes(steps=3))
    graft = extract(place / "encoder", tmp_path / "out")
    save(graft, tmp_path / "g.safetensors")
    model = transformers.AutoModel.from_pretrained(place / "encoder")
    before = {name: array.copy() for name, array in tensors_of(model).arrays.items()}
    with grafted(model, graft):
        assert any((array != before[name]).any() for name, array in tensors_of(model).arrays.items())
    assert all((array == before[name]).all() for name, array in tensors_of(model).arrays.items())


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ('{"text": "a film"}\n', r"x\.jsonl.*row 1|line 1"),
        ('{"text": "a film", "label": "superb"}\n', "superb"),
        ("", "empty|no rows"),
    ],
    ids=["missing label", "unknown label", "empty file"],
)
def test_wrong_rows_end_with_exit_code_2_before_a_model_is_loaded(
    rows: str, message: str, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "x.jsonl").write_text(rows)
    (tmp_path / "films.toml").write_text(making.SENTIMENT)
    code, _, err = run("finetune", "no-such-model", "--task", tmp_path / "films.toml", "-o", tmp_path / "out")
    assert code == 2
    assert len(err.splitlines()) <= 2
    assert re.search(message, err), err


def test_a_tuned_folder_of_another_architecture_is_refused(run: Run, place: Path) -> None:
    making.gpt2(place / "gpt2")
    code, _, err = run("evaluate", "encoder", "--task", "films.toml", "--tuned", "gpt2")
    assert code == 2
    assert "share no transformer layer" in err or "differ" in err, err


def test_lora_and_a_region_exclude_each_other(place: Path, tmp_path: Path) -> None:
    base = Checkpoint.open(place / "encoder")
    region = most_moved(base, base, Scope.select("layers", base.shapes), 5)
    with pytest.raises(InputError, match="a region cannot restrict it"):
        finetune(
            place / "encoder",
            [place / "films.toml"],
            out=tmp_path / "o",
            plan=QUICK.with_changes(method="lora"),
            inside=region,
        )
