"""A task file for data that have none: columns, labels, delimiter and readout are guessed, and every guess is shown.

    made = guess_task("reviews.csv")
    made.text          # the task file
    made.why           # what was chosen, and why

Nothing is written here, and no row is copied: where the data have no test rows, the task holds some of them out by their own
content. Refused: data of which no column can be told to be what is asked and what is answered, with the columns that there are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skillgraft.errors import DataError, InputError, listed
from skillgraft.tasks.pictures import IMAGE, SUFFIXES
from skillgraft.tasks.sources import READERS, read_table
from skillgraft.tasks.tables import Table, delimiter_of, keys_of

HOLDOUT = 0.2
ROWS = 2000  # looked at
FEW = 50  # at most so many different values are labels
SPLITS = ("train", "test", "validation")
TEST_NAMES = ("test", "validation", "valid", "dev", "val")
LABEL_NAMES = ("label", "labels", "class", "category", "target", "sentiment", "topic", "intent", "y")
APART = ("id", "idx", "index", "uuid", "guid", "url", "date", "time", "timestamp", "source", "split")
# Names under which people keep what is asked and what is answered, the most usual first.
ASKED = ("prompt", "instruction", "question", "input", "query", "source_text", "request")
ANSWERED = ("completion", "response", "output", "answer", "target_text", "reply", "chosen")
TURNS = ("messages", "conversations", "conversation", "chat")


@dataclass
class Guess:
    """A task file in the making: its lines, and why each is what it is."""

    name: str
    lines: list[str] = field(default_factory=list)
    why: list[str] = field(default_factory=list)

    def say(self, line: str, why: str = "") -> None:
        self.lines.append(line)
        if why:
            self.why.append(why)

    @property
    def text(self) -> str:
        reasons = "".join(f"# {line}\n" for line in self.why)
        return f"# Written by `skillgraft task init`; what it guessed:\n{reasons}\n" + "\n".join(self.lines) + "\n"


def guess_task(data: str | Path, *, beside: Path | None = None, name: str | None = None) -> Guess:
    """The task of a file (CSV, TSV, JSONL, Parquet) or a folder of images by label; paths in it are relative to `beside`."""
    path = Path(data)
    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder")
    sources = _images(path) if path.is_dir() else _siblings(path)
    guess = Guess(name or _stem(path))
    guess.say(f"name = {_toml(guess.name)}")
    where = (beside or Path()).absolute()
    kind = _image_task if path.is_dir() else _table_task
    kind(guess, sources, {split: _relative(file, where) for split, file in sources.items()})
    return guess


def _stem(path: Path) -> str:
    stem = path.name if path.is_dir() else path.name.removesuffix(".gz").rsplit(".", 1)[0]
    parts = [part for part in stem.replace("-", "_").split("_") if part not in ("train", "training")]
    return "_".join(parts) or path.absolute().parent.name


def _relative(path: Path, folder: Path) -> str:
    """The path from the task's folder if it lies below that, else in full."""
    whole = path.absolute()
    return str(whole.relative_to(folder)) if whole.is_relative_to(folder) else str(whole)


def _siblings(path: Path) -> dict[str, Path]:
    """The file, and a test file beside it that has its name with `test` (or `dev` …) in the place of `train`."""
    if _ending(path) not in READERS:
        raise DataError(
            f"{path}: expected a file that ends in one of {listed(READERS, most=9)}, or a folder of images by label"
        )
    found = {"train": path}
    for other in TEST_NAMES if "train" in path.name else ():
        beside = path.with_name(path.name.replace("train", other))
        split = "test" if "test" not in found else "validation"
        if beside.is_file() and len(found) < len(SPLITS):
            found[split] = beside
    return found


def _ending(path: Path) -> str:
    return "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix


def _images(path: Path) -> dict[str, Path]:
    """A folder of labels, or one of splits that hold labels."""
    folders = {folder.name.lower(): folder for folder in sorted(path.iterdir()) if folder.is_dir()}
    if "train" in folders:
        tests = [folders[name] for name in TEST_NAMES if name in folders]
        return {"train": folders["train"], **dict(zip(("test", "validation"), tests, strict=False))}
    if not any(file.suffix.lower() in SUFFIXES for folder in folders.values() for file in folder.iterdir()):
        raise DataError(
            f"{path}: expected one sub-folder of images for each label; found {listed(folders) or 'no folders'}"
        )
    return {"train": path}


def _sources(guess: Guess, names: Mapping[str, str]) -> None:
    for split, source in names.items():
        guess.say(f"{split} = {_toml(source)}")
    if "test" not in names:
        guess.say(
            f"holdout = {HOLDOUT}",
            f"no test rows beside it: {HOLDOUT:.0%} of the rows test, chosen by their content",
        )


def _image_task(guess: Guess, sources: Mapping[str, Path], names: Mapping[str, str]) -> None:
    _sources(guess, names)
    labels = sorted(folder.name for folder in sources["train"].iterdir() if folder.is_dir())
    guess.say(f"image = {_toml(IMAGE)}", f"a folder of images; its {len(labels)} sub-folders are the labels")
    guess.say(f"labels = {_toml(labels)}")
    guess.say(
        '\n[describe]\ntemplate = "a photo of {label}"',
        "CLIP reads a description of each label; other models get a linear head",
    )


def _table_task(guess: Guess, sources: Mapping[str, Path], names: Mapping[str, str]) -> None:
    train = sources["train"]
    columns = keys_of(train)
    if _ending(train).startswith(".csv") and (mark := delimiter_of(train)) != ",":
        guess.why.append(f"fields stand between {mark!r}, not commas")
    table = read_table(str(train), tuple(columns))
    for guessed in (_turns_task, _pairs_task, _classes_task, _text_task):
        if guessed(guess, table, columns, names):
            return
    raise InputError(
        f"{train}: no column is known as a text, a label or a completion; its columns are {listed(columns, most=20)}: write "
        "the task file by hand (docs/tasks.md)"
    )


Guesser = Callable[[Guess, Table, Sequence[str], Mapping[str, str]], bool]


def _turns_task(guess: Guess, table: Table, columns: Sequence[str], names: Mapping[str, str]) -> bool:
    """A column of conversations."""
    column = _named(columns, TURNS)
    if column is None or not isinstance(table.column(column)[0], list | tuple):
        return False
    guess.say(
        'kind = "complete"',
        f"{column!r} holds conversations: the last turn is the completion, by the chat template",
    )
    _sources(guess, names)
    guess.say('layout = "messages"')
    _renamed(guess, {"messages": [column]})
    return True


def _pairs_task(guess: Guess, table: Table, columns: Sequence[str], names: Mapping[str, str]) -> bool:
    """A column of prompts and one of completions."""
    asked, answered = _named(columns, ASKED), _named(columns, ANSWERED)
    if asked is None or answered is None or (_is_label(table, answered) and answered not in ANSWERED[:3]):
        return False
    guess.say('kind = "complete"', f"columns {asked!r} and {answered!r}: prompts and their completions")
    _sources(guess, names)
    more = [name for name in ("input", "context") if name in columns and name not in (asked, answered)]
    if more:
        guess.why.append(f"column {more[0]!r} follows the prompt where it is not empty")
    prompts, answers = (list(table.column(name))[:ROWS] for name in (asked, answered))
    if isinstance(prompts[0], list | tuple):
        guess.say("chat = true", "prompts are turns of a conversation: the chat template is filled")
    _renamed(guess, {"prompt": [asked, *more], "completion": [answered]})
    if isinstance(prompts[0], str) and not _apart(prompts, answers):
        guess.say(
            '\n[prompt]\ntemplate = "{prompt}\\n"',
            "a line end keeps prompt and completion apart: they bring no space",
        )
    return True


def _apart(prompts: Sequence[str], answers: Sequence[str]) -> bool:
    return all(prompt[-1:].isspace() or answer[:1].isspace() for prompt, answer in zip(prompts, answers, strict=True))


def _classes_task(guess: Guess, table: Table, columns: Sequence[str], names: Mapping[str, str]) -> bool:
    """Texts and a label."""
    label = _named([name for name in columns if _is_label(table, name)], LABEL_NAMES)
    label = label or next(
        (name for name in reversed(columns) if _is_label(table, name) and name.lower() not in APART), None
    )
    texts = [name for name in columns if name != label and name.lower() not in APART and _is_text(table, name)]
    if label is None or not texts:
        return False
    _sources(guess, names)
    guess.say(
        f"text = {_toml(texts if len(texts) > 1 else texts[0])}", f"{listed(map(repr, texts), most=9)}: what is read"
    )
    values = _values(table, label)
    guess.say(
        f"label = {_toml(label)}",
        f"{label!r} has {len(values)} values ({listed(values)}): the labels, read off the data",
    )
    if not all(value.replace(".", "").isdecimal() for value in values):
        guess.say(
            '\n[describe]\ntemplate = "{label}"',
            "sentence encoders read each label's name; others get a linear head",
        )
    else:
        guess.why.append("labels are numbers, which say nothing: a linear head is trained")
    return True


def _text_task(guess: Guess, table: Table, columns: Sequence[str], names: Mapping[str, str]) -> bool:
    """Text alone."""
    texts = [name for name in columns if name.lower() not in APART and _is_text(table, name)]
    if len(texts) != 1:
        return False
    guess.say('kind = "complete"', f"one column of text, {texts[0]!r}: the whole text is learned and scored")
    _sources(guess, names)
    guess.say('layout = "text"')
    _renamed(guess, {"text": texts})
    return True


def _renamed(guess: Guess, fields: Mapping[str, list[str]]) -> None:
    """The columns table where a column has another name than its field; its keys stand at the top of the file."""
    odd = {name: columns for name, columns in fields.items() if columns != [name]}
    if odd:
        guess.say(f"columns = {{ {', '.join(f'{name} = {_toml(columns)}' for name, columns in odd.items())} }}")


def _named(columns: Sequence[str], known: Sequence[str]) -> str | None:
    by_name = {name.lower(): name for name in columns}
    return next((by_name[name] for name in known if name in by_name), None)


def _values(table: Table, column: str) -> list[str]:
    return sorted({str(cell) for cell in table.column(column)})


def _is_label(table: Table, column: str) -> bool:
    """Few different short values, each of them several times."""
    cells = table.column(column)
    if not all(isinstance(cell, str | int | bool) and len(str(cell)) <= 60 for cell in cells[:ROWS]):
        return False
    values = len(_values(table, column))
    return 2 <= values <= min(FEW, max(2, len(cells) // 2))


def _is_text(table: Table, column: str) -> bool:
    cells = table.column(column)[:ROWS]
    return all(isinstance(cell, str) for cell in cells) and len({*cells}) > 1


def _toml(value: Any) -> str:
    """A string or a list of strings as TOML spells them: JSON's strings are TOML's."""
    return json.dumps(value, ensure_ascii=False)
