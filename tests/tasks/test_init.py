"""`task init`: what is guessed for each kind of data, that the guess is a task that loads, and what is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from skillgraft.errors import DataError, InputError
from skillgraft.tasks import Task, load_task, read_examples
from skillgraft.tasks.init import guess_task
from tests.completing import fact_rows, write_rows
from tests.running import Run, runner


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(tmp_path, monkeypatch, capsys)


def reviews(count: int = 60) -> list[dict[str, Any]]:
    return [
        {
            "id": number,
            "review": f"film number {number} was {'fine' if number % 2 else 'dull'}",
            "sentiment": "good" if number % 2 else "bad",
        }
        for number in range(count)
    ]


def made(data: Path) -> tuple[Task, list[str]]:
    guess = guess_task(data, beside=data.parent)
    file = data.parent / "made.toml"
    file.write_text(guess.text, encoding="utf-8")
    return load_task(file), guess.why


def write_csv(path: Path, rows: list[dict[str, Any]], mark: str = ",") -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=mark)
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.mark.parametrize("mark", [",", ";", "|", "\t"])
def test_a_csv_of_any_delimiter(tmp_path: Path, mark: str) -> None:
    task, why = made(write_csv(tmp_path / "reviews.csv", reviews(), mark))
    assert (task.name, task.inputs, task.label, task.labels) == ("reviews", ("review",), "sentiment", ("bad", "good"))
    assert (mark == ",") != any("fields stand between" in line for line in why)
    train, test = (read_examples(task, split) for split in ("train", "test"))
    assert len(train) + len(test) == 60
    assert 4 <= len(test) <= 25
    assert not {row["review"] for row in train.rows()} & {row["review"] for row in test.rows()}


def test_held_out_rows_do_not_move_when_others_come(tmp_path: Path) -> None:
    small, _ = made(write_csv(tmp_path / "reviews.csv", reviews(40)))
    before = {row["review"] for row in read_examples(small, "test").rows()}
    large, _ = made(write_csv(tmp_path / "reviews.csv", reviews(80)))
    after = {row["review"] for row in read_examples(large, "test").rows()}
    assert before <= after


def test_a_test_file_beside_it_is_taken(tmp_path: Path) -> None:
    write_rows(tmp_path / "facts-test.jsonl", fact_rows(10, 1))
    task, _ = made(write_rows(tmp_path / "facts-train.jsonl", fact_rows(20)))
    assert (task.name, task.kind, len(read_examples(task, "test"))) == ("facts", "complete", 10)
    assert not task.prompts  # completions begin with a space


@pytest.mark.parametrize(
    ("row", "kind", "fields"),
    [
        ({"instruction": "say {}", "input": "", "output": "yes {}"}, "complete", ("prompt", "completion")),
        ({"question": "what is {}", "answer": "it is {}"}, "complete", ("prompt", "completion")),
        (
            {"messages": [{"role": "user", "content": "{}"}, {"role": "assistant", "content": "a {}"}]},
            "complete",
            ("messages",),
        ),
        ({"text": "nothing but text {}"}, "complete", ("text",)),
        ({"premise": "a {}", "hypothesis": "b {}", "label": 0}, "text", ("premise", "hypothesis")),
    ],
)
def test_jsonl_of_any_kind(tmp_path: Path, row: dict[str, Any], kind: str, fields: tuple[str, ...]) -> None:
    rows = [json.loads(json.dumps(row).replace("{}", str(number))) for number in range(40)]
    for number, each in enumerate(rows):
        if "label" in each:
            each["label"] = number % 3
    task, why = made(write_rows(tmp_path / "some.jsonl", rows))
    assert (task.kind, task.inputs) == (kind, fields)
    assert why
    assert len(read_examples(task, "train")) > 20
    if kind == "text":
        assert task.labels == ("0", "1", "2")


def test_labels_that_are_numbers_but_not_from_zero(tmp_path: Path) -> None:
    """A number is its own label's name, not a position among the labels."""
    rows = [{"text": f"row {number}", "stars": 1 + number % 5} for number in range(40)]
    task, _ = made(write_rows(tmp_path / "stars.jsonl", rows))
    assert task.labels == ("1", "2", "3", "4", "5")
    examples = read_examples(task, "train")
    stars = {row["text"]: row["stars"] for row in rows}
    for row, label in zip(examples.rows(), examples.labels.tolist(), strict=True):
        assert stars[row["text"]] == label + 1


def test_a_folder_of_images(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        (tmp_path / "pets" / label).mkdir(parents=True)
        for number in range(12):
            pixels = np.full((4, 4, 3), number * 9 + len(label), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pets" / label / f"{label}{number}.png")
            if number == 0:
                Image.fromarray(pixels + (label == "dog")).save(tmp_path / "pets" / label / "first.png")
    task, _ = made(tmp_path / "pets")
    assert (task.kind, task.labels) == ("image", ("cat", "dog"))
    assert len(read_examples(task, "train")) + len(read_examples(task, "test")) == 26


def test_parquet(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pandas.DataFrame(reviews()).to_parquet(tmp_path / "reviews.parquet")
    task, _ = made(tmp_path / "reviews.parquet")
    assert (task.inputs, task.labels) == (("review",), ("bad", "good"))


def test_what_cannot_be_guessed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"its columns are a, b: write"):
        guess_task(write_rows(tmp_path / "numbers.jsonl", [{"a": 0.5, "b": 1.25}, {"a": 0.1, "b": 2.5}]))
    with pytest.raises(DataError, match="no such file or folder"):
        guess_task(tmp_path / "none.csv")
    (tmp_path / "a.doc").write_text("text")
    with pytest.raises(DataError, match="expected a file that ends in"):
        guess_task(tmp_path / "a.doc")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="one sub-folder of images for each label"):
        guess_task(tmp_path / "empty")


def test_too_many_labels_are_no_labels(tmp_path: Path) -> None:
    write_rows(tmp_path / "x.jsonl", [{"text": "a", "label": f"{number}"} for number in range(1200)])
    (tmp_path / "x.toml").write_text('name = "x"\ntrain = "x.jsonl"\ntext = "text"\n')
    with pytest.raises(InputError, match="1,200 different values"):
        load_task(tmp_path / "x.toml")


@pytest.mark.parametrize("more", ["holdout = 2", 'holdout = 0.2\ntest = "y.jsonl"', "holdout = 0.000001"])
def test_wrong_holdouts(tmp_path: Path, more: str) -> None:
    write_rows(tmp_path / "x.jsonl", fact_rows(10))
    (tmp_path / "x.toml").write_text(f'name = "x"\nkind = "complete"\ntrain = "x.jsonl"\n{more}\n')
    with pytest.raises(InputError, match="holdout"):
        read_examples(load_task(tmp_path / "x.toml"), "test")


def test_the_command_says_what_it_chose_and_what_comes_next(run: Run, tmp_path: Path) -> None:
    write_csv(tmp_path / "reviews.csv", reviews(), ";")
    ended = run("task", "init", "reviews.csv", "-o", "reviews.toml")
    assert ended.code == 0
    for part in ("fields stand between ';'", "read off the data", "skillgraft finetune BASE --task reviews.toml"):
        assert part in ended.out
    assert load_task(tmp_path / "reviews.toml").labels == ("bad", "good")
    assert run("task", "init", "reviews.csv", "-o", "reviews.toml").code == 2  # never overwritten
    found = run("task", "init", "reviews.csv", "-o", "again.toml", "--json").json
    assert found["next"][2].startswith("skillgraft evaluate BASE")
