"""A new user who sorts texts: with data of their own, with several fine-tunes, with tasks that come one after the other."""

from __future__ import annotations

import csv
import io
import re
from itertools import product
from pathlib import Path

import pytest
import transformers

from tests.journeys.terminal import Terminal
from tests.readouts import making

pytestmark = pytest.mark.long
TUNING = "--shots 3 --optimizer adamw --lr 1e-3 --batch-size 4 --steps 25"


def messages(good: str, bad: str) -> str:
    """A CSV file as a spreadsheet saves it: which words are good decides the mood."""
    rows = [(f"the {noun} is {word}", mood) for noun in ("cat", "dog", "house", "mouse", "film") for mood, words in
            (("happy", good), ("unhappy", bad)) for word in words.split()]  # fmt: skip
    text = io.StringIO()
    csv.writer(text).writerows([("message", "mood"), *rows])
    return text.getvalue()


def test_own_data_to_a_model_that_transformers_loads(terminal: Terminal) -> None:
    """Journey 1: a CSV file; the commands are those that `task init` prints, with fewer steps."""
    making.sentence_encoder(terminal.folder / "BASE")
    terminal.write("moods.csv", messages("good fine quick", "bad slow red"))
    said = terminal("skillgraft task init moods.csv -o moods.toml")
    assert "20% of the rows test" in said
    tune, localize, evaluate = re.findall(r"^  (skillgraft .+)$", said, re.MULTILINE)
    terminal(re.sub(r"--steps \d+", "--steps 20", tune))
    said = terminal(f"{localize} --steps 4")
    assert "readout: text-head (a sentence encoder, and moods has descriptions)" in said
    said = terminal(f"{evaluate} --csv scores.csv --latex scores.tex")
    assert "majority class" in said
    assert (terminal.folder / "scores.tex").read_text("utf-8").count("\\begin{table}") == 1
    terminal("skillgraft apply BASE skill.safetensors -o GRAFTED")
    model = transformers.AutoModel.from_pretrained(terminal.folder / "GRAFTED")
    assert sum(each.numel() for each in model.parameters()) > 0
    assert terminal.digest("GRAFTED") != terminal.digest("BASE")


def test_three_fine_tunes_in_one_model(terminal: Terminal) -> None:
    """Journey 2: three fine-tunes of one base become three small files, then one model with all three skills."""
    making.sentence_encoder(terminal.folder / "BASE")
    moods = {
        "moods": ("good fine", "bad slow"),
        "speeds": ("quick fine", "slow red"),
        "colours": ("red bad", "quick good"),
    }
    for task, (good, bad) in moods.items():
        terminal.write(f"{task}.csv", messages(good, bad))
        terminal(f"skillgraft task init {task}.csv -o {task}.toml")
        terminal(f"skillgraft finetune BASE --task {task}.toml {TUNING} -o runs/{task}/model")
        terminal(f"skillgraft extract BASE runs/{task}/model --density 0.05 -o {task}.safetensors")
    grafts = " ".join(f"{task}.safetensors" for task in moods)
    assert terminal.json(f"skillgraft compare {grafts}")["grafts"] == list(moods)
    terminal(f"skillgraft combine {grafts} --scale moods=0.5 -o all.safetensors")
    tasks = " ".join(f"--task {task}.toml" for task in moods)
    named = " ".join(f"--tuned {task}=runs/{task}/model" for task in moods)
    found = terminal.json(f"skillgraft evaluate BASE {tasks} {named} --graft all=all.safetensors")
    assert {tuple(models) for models in found["tasks"].values()} == {("base", *moods, "all")}
    said = terminal(
        "skillgraft evaluate BASE --task moods.toml --tuned runs/moods/model --tuned runs/speeds/model", code=2
    )
    assert "have one name ('model')" in said
    assert "NAME=PATH, as first=runs/moods/model" in said


def test_tasks_one_after_the_other(terminal: Terminal) -> None:
    """Journey 9: `continual`, and the model for the first task is the same after the second was learned."""
    making.sentence_encoder(terminal.folder / "BASE")
    for task, (good, bad) in {"moods": ("good fine", "bad slow"), "colours": ("red bad", "quick good")}.items():
        terminal.write(f"{task}.csv", messages(good, bad))
        terminal(f"skillgraft task init {task}.csv -o {task}.toml")
    add = f"skillgraft continual add STORE BASE {TUNING} --density 0.05 --mask-steps 5 --task"
    terminal(f"{add} moods.toml")
    terminal("skillgraft continual use STORE BASE --task moods -o FIRST")
    terminal(f"{add} colours.toml")
    terminal("skillgraft continual use STORE BASE --task moods -o AGAIN")
    assert terminal.digest("AGAIN") == terminal.digest("FIRST")
    assert "colours" in terminal("skillgraft continual list STORE")
    said = terminal(f"{add} moods.toml", code=2)
    assert "knows the task" in said
    assert all(a != b for a, b in product([terminal.digest("FIRST")], [terminal.digest("BASE")]))
    assert Path(terminal.folder / "STORE").is_dir()
