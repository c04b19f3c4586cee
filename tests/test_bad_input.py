"""Wrong input as a user meets it: exit code 2, at most two lines that say what and where, nothing written.

What needs no model to be refused is refused within two seconds: before torch is imported and before a model is looked for.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from skillgraft import Region, save_region
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.values.region import Scope
from tests.readouts import making
from tests.running import Ended, Run, runner

SECONDS = 2.0
TASK = making.sentiment("rows.csv", "rows.csv")
ROWS = "text,label\n" + "".join(f"film {number},{('bad', 'good')[number % 2]}\n" for number in range(8))
FILMS = ("--task", "films.toml")


class Case(NamedTuple):
    """What is wrong: the words after BASE, the rows, and what the message must say, in this order."""

    says: str
    words: tuple[str, ...] = FILMS
    rows: str | bytes = ROWS


# Rows that both verbs read.
DATA = {
    "a missing label": Case(r"rows\.csv, line 3, column 'label': the label is missing", rows="text,label\na,bad\nb,\n"),
    "an unknown label": Case(
        r"rows\.csv, line 3, column 'label': unknown label 'superb'; expected bad, good",
        rows="text,label\na,bad\nb,superb\n",
    ),
    "a missing column": Case(
        r"rows\.csv: there is no column 'label': .*Known: text, lable", rows="text,lable\na,bad\n"
    ),
    "an empty file": Case(r"rows\.csv: it has no rows; expected at least one", rows=""),
    "a header alone": Case(r"rows\.csv: it has no rows; expected at least one", rows="text,label\n"),
    "Latin-1": Case(
        r"rows\.csv, line 2: not UTF-8 \(byte 0xe9 at position 4\); save the file as UTF-8",
        rows="text,label\ncafé,bad\n".encode("latin-1"),
    ),
    "a line of 10 MB": Case(
        r"rows\.csv, line 2: longer than 5,000,000 bytes; expected one row per line",
        rows="text,label\n" + "x" * 10_000_000 + ",bad\n",
    ),
    "an unknown task": Case(r"no task 'sst': did you mean 'sst2'\? Known: ", words=("--task", "sst")),
    "a task file that is not there": Case(r"film\.toml: there is no such task file", words=("--task", "film.toml")),
}
# Words that `finetune` alone reads.
REQUESTS = {
    "an unknown recipe": Case(
        r"unknown recipe 'p1-adam'; did you mean 'p1-adamw'\? Known: p1, p1-adamw", (*FILMS, "--recipe", "p1-adam")
    ),
    "an unknown method": Case(r"unknown method 'bitfit'; .*Known: full, bias, lora", (*FILMS, "--method", "bitfit")),
    "dropout in a linearised model": Case(
        r"a linearised model trains without dropout, found dropout True: leave out dropout",
        (*FILMS, "--method", "linear", "--dropout"),
    ),
    "a negative learning rate": Case(r"lr must be .* at least 0\.0, found -1\.0", (*FILMS, "--lr", "-1")),
    "more shots than rows": Case(
        r"shots=5, but the class 'bad' of task 'films' has 4 rows; the largest usable number of shots is 4",
        (*FILMS, "--shots", "5"),
    ),
    "shots and rows": Case(
        r"shots=2 and train_rows=4 exclude each other", (*FILMS, "--shots", "2", "--train-rows", "4")
    ),
    "two regions": Case(
        r"--inside and --outside exclude each other",
        (*FILMS, "--inside", "region.safetensors", "--outside", "region.safetensors"),
    ),
    "a damaged region": Case(
        r"damaged\.safetensors: .*(truncated|expected|bytes)", (*FILMS, "--inside", "damaged.safetensors")
    ),
    "a region that is not there": Case(r"none\.safetensors", (*FILMS, "--outside", "none.safetensors")),
    "an output that exists": Case(r"taken exists already; choose another output", (*FILMS, "-o", "taken")),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny models: `encoder`, `masked`, `causal`; `bare` has no tokenizer."""
    folder = tmp_path_factory.mktemp("models")
    making.sentence_encoder(folder / "encoder")
    making.bert(folder / "masked")
    making.gpt2(folder / "causal")
    for file in (folder / "masked").iterdir():
        if "token" not in file.name and file.name != "vocab.txt":
            (folder / "bare").mkdir(exist_ok=True)
            (folder / "bare" / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.fixture
def place(models: Path, tmp_path: Path) -> Path:
    """A folder with a task, its rows, the models, a region of `causal`, a damaged copy of it, and an output that exists."""
    for model in models.iterdir():
        (tmp_path / model.name).symlink_to(model)
    (tmp_path / "films.toml").write_text(TASK)
    (tmp_path / "rows.csv").write_text(ROWS)
    scope = Scope.select("layers", Checkpoint.open(models / "causal").shapes)
    save_region(Region(scope, {next(iter(scope.shapes)): [0, 1]}), tmp_path / "region.safetensors")
    whole = (tmp_path / "region.safetensors").read_bytes()
    (tmp_path / "damaged.safetensors").write_bytes(whole[:-3])
    (tmp_path / "taken").mkdir()
    return tmp_path


@pytest.fixture
def run(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`skillgraft …` in this process, in that folder."""
    return runner(place, monkeypatch, capsys)


def assert_refused(ended: Ended, says: str) -> None:
    code, out, err = ended
    assert (code, out) == (2, ""), err
    assert err.startswith("error: ")
    assert len(err.splitlines()) <= 2, err
    assert re.search(says, err), err


def assert_refused_quickly(place: Path, verb: str, case: Case) -> None:
    """In a process of its own: start-up and imports count. Processor time, which other programs do not lengthen."""
    rows = case.rows.encode() if isinstance(case.rows, str) else case.rows
    (place / "rows.csv").write_bytes(rows)
    before, names = _children_seconds(), {path.name for path in place.iterdir()}
    out = () if verb == "evaluate" or "-o" in case.words else ("-o", "out")
    command = [sys.executable, "-m", "skillgraft", verb, "no-such-model", *case.words, *out]
    ended = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    assert_refused(Ended(ended.returncode, ended.stdout, ended.stderr), case.says)
    assert _children_seconds() - before < SECONDS
    assert {path.name for path in place.iterdir()} == names


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize("verb", ["finetune", "evaluate"])
@pytest.mark.parametrize("name", DATA)
def test_wrong_rows_and_tasks_are_refused_before_a_model_is_looked_for(verb: str, name: str, place: Path) -> None:
    assert_refused_quickly(place, verb, DATA[name])


@pytest.mark.parametrize("name", REQUESTS)
def test_wrong_requests_are_refused_before_a_model_is_looked_for(name: str, place: Path) -> None:
    assert_refused_quickly(place, "finetune", REQUESTS[name])


def test_a_model_that_is_not_there(run: Run) -> None:
    assert_refused(
        run("finetune", "./no-such-model", *FILMS, "-o", "out"), "no-such-model: there is no such model folder"
    )


@pytest.mark.parametrize("verb", [("finetune", "-o", "out"), ("evaluate",)], ids=lambda words: words[0])
def test_a_model_without_a_tokenizer(verb: tuple[str, ...], run: Run) -> None:
    says = r"bare has no tokenizer: looked for tokenizer\.json.*copy the base's files there"
    assert_refused(run(verb[0], "bare", *FILMS, *verb[1:]), says)


@pytest.mark.parametrize(
    ("model", "word", "says"),
    [
        ("masked", "superb", r"task 'films', masked prompt: the word 'superb' is 6 tokens here \('s', '##u'"),
        ("causal", " zebra", r"task 'films', causal prompt: the word ' zebra' is \d+ tokens here .*choice readout"),
    ],
)
def test_a_label_word_of_several_tokens(model: str, word: str, says: str, run: Run, place: Path) -> None:
    old = "great" if model == "masked" else " great"
    (place / "films.toml").write_text(TASK.replace(f'good = "{old}"', f'good = "{word}"'))
    assert_refused(run("finetune", model, *FILMS, "-o", "out"), says)


def test_a_tuned_folder_of_another_architecture(run: Run) -> None:
    ended = run("evaluate", "encoder", *FILMS, "--tuned", "causal")
    assert_refused(ended, r"share no transformer layer|the vocabulary changed|the tokenizers differ")


@pytest.mark.parametrize("option", ["--inside", "--outside"])
def test_a_region_of_another_model(option: str, run: Run, place: Path) -> None:
    ended = run("finetune", "encoder", *FILMS, option, "region.safetensors", "-o", "out")
    assert_refused(ended, r"the region is not of this model: h\.0\..* missing here or have another shape")
    assert not (place / "out").exists()


@pytest.mark.parametrize("option", ["--tuned", "--graft"])
def test_two_models_of_one_name(option: str, run: Run) -> None:
    ended = run("evaluate", "encoder", *FILMS, option, "a/same", option, "b/same")
    assert_refused(ended, r"two of a/same, b/same have one name")


@pytest.mark.parametrize(
    ("option", "needs"), [("--together", "--graft"), ("--record", "--graft"), ("--temperature", "--tuned")]
)
def test_an_option_about_what_is_not_there(run: Run, option: str, needs: str) -> None:
    assert_refused(run("evaluate", "encoder", *FILMS, option), f"{option} needs {needs}, and none is given")


def test_an_unknown_readout_and_split(run: Run) -> None:
    assert_refused(
        run("evaluate", "encoder", *FILMS, "--readout", "text"), r"no readout 'text': .*Known: auto, masked, causal"
    )
    assert_refused(
        run("evaluate", "encoder", *FILMS, "--split", "tests"), "split must be test, train or validation, found 'tests'"
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--validate-every", "2"), "validate_every looks at validation rows, but task 'films' has none left"),
        (("--recipe", "p1"), "grid is decided on validation rows, but task 'films' has none left: train on fewer rows"),
    ],
)
def test_no_rows_left_to_validate_on(words: tuple[str, ...], says: str, run: Run) -> None:
    """4 shots are all rows of both classes."""
    assert_refused(run("finetune", "encoder", *FILMS, "--shots", 4, "--steps", 2, *words, "-o", "out"), says)
    ended = run("evaluate", "encoder", *FILMS, "--shots", 4, "--split", "validation")
    assert_refused(ended, "task 'films' has no validation rows left to measure on; train on fewer rows")


def test_checkpoints_of_a_lora_run(run: Run) -> None:
    ended = run("finetune", "encoder", *FILMS, "--method", "lora", "--checkpoint-every", 1, "-o", "out")
    assert_refused(ended, "a LoRA run is merged at its end: it has no checkpoints on the way")


def test_half_precision_without_a_scaled_loss(place: Path) -> None:
    command = [sys.executable, "-m", "skillgraft", "finetune", "encoder", *FILMS, "-o", "out"]
    environment = {**os.environ, "ACCELERATE_MIXED_PRECISION": "fp16"}  # what `accelerate launch` sets
    ended = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    assert_refused(Ended(ended.returncode, ended.stdout, ended.stderr), "fp16 needs a scaled loss.*use bf16")


def test_a_loss_that_explodes_is_work_that_failed(run: Run) -> None:
    code, _, err = run("finetune", "encoder", *FILMS, "--lr", "1e30", "--steps", "20", "-o", "out")
    assert code == 1
    assert re.search(r"the loss became \S+ at step \d+; use a smaller learning rate than 1e\+30", err), err
