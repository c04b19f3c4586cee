"""Task files: small TOML files, from the catalogue or from a user, checked in full before any data are read.

load_task("sst2")                 one of `catalogue()`
load_task("my/reviews.toml")      its own file; paths in it are beside it
load_task("imdb as sst2")         rows of the one task with the question of the other
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from skillgraft.errors import InputError, did_you_mean, listed
from skillgraft.tasks.completions import COMPLETE, COMPLETE_KEYS, LAYOUTS, completing
from skillgraft.tasks.prompt import CHOICES, MASK
from skillgraft.tasks.section import Section
from skillgraft.tasks.sources import read_table
from skillgraft.tasks.tables import shown
from skillgraft.tasks.task import AS, Completing, Kind, Metric, Origin, Task, asked_as
from skillgraft.tasks.wording import with_wording

CATALOGUE = Path(__file__).parent / "catalogue"
DEFAULT_MAX_LENGTH = 128  # P1 A.1, masked prompts
COMPLETE_LENGTH = 1024  # prompt and completion
MOST_LABELS = 1000  # that are read off the data: beyond that the column holds something else
REMOTE = ("hf:", "data:")

# Fields of a task with another's question, left out of the definition of all others.
_WHERE_GIVEN = ("asked_as", "meanings", "completing", "holdout", "by_name")
ORIGIN_KEYS = ("train", "test", "validation", "holdout", "columns", "data_labels")
TASK_KEYS = (
    *("name", *ORIGIN_KEYS, "text", "image", "choices", "label", "labels", "ignore_labels", "metric", "max_length"),
    *("prompt", "describe", "hub", "kind"),
)
_METRICS: Mapping[bool, tuple[Metric, ...]] = {
    False: ("accuracy", "f1"),
    True: ("nll", "perplexity", "token_accuracy", "exact_match", "contains"),
}


def catalogue() -> list[str]:
    """The names of the tasks that come with skillgraft, sorted."""
    return sorted(path.stem for path in CATALOGUE.glob("*.toml"))


def load_task(name_or_path: str | Path) -> Task:
    """The task of that catalogue name, or of that `.toml` file; of two with " as " between them, as `asked_as` makes it."""
    path = Path(name_or_path)
    rows, _, source = str(name_or_path).partition(AS)
    if source and not path.is_file():
        return asked_as(load_task(rows), load_task(source))
    if path.suffix == ".toml":
        return _task(Section.of_file(path.absolute()))
    if str(name_or_path) not in catalogue():
        raise InputError(
            f"no task {str(name_or_path)!r}: {did_you_mean(str(name_or_path), catalogue())}; or give a .toml file"
        )
    return _task(Section.of_file(CATALOGUE / f"{name_or_path}.toml"))


def _task(top: Section) -> Task:
    style = completing(top)
    if style is not None:
        return _complete(top, style)
    top.only(TASK_KEYS)
    kind, inputs = _kind_and_inputs(top)
    choices = top.texts(CHOICES)
    read_off = kind != "choice" and "labels" not in top.values
    labels = _labels_in_data(top) if read_off else _labels(top, kind)
    task = Task(
        name=top.text("name"),
        kind=kind,
        inputs=inputs,
        data=replace(_origin(top, labels, choices), by_name=read_off),
        label=top.text("label", "label"),
        labels=labels,
        ignore_labels=_ignored(top),
        metric=_metric(top, labels, kind),
        max_length=top.count("max_length", DEFAULT_MAX_LENGTH),
        hub=_hub(top, labels, choices),
    )
    _check_columns(top, task)
    return with_wording(task, top)


def _complete(top: Section, style: Completing) -> Task:
    top.only(COMPLETE_KEYS)
    task = Task(
        name=top.text("name"),
        kind=COMPLETE,
        inputs=LAYOUTS[style.layout],
        data=_origin(top, (), ()),
        label="",
        metric=_metric(top, (), COMPLETE),
        max_length=top.count("max_length", COMPLETE_LENGTH),
        hub=_hub(top, (), ()),
        completing=style,
    )
    _check_columns(top, task)
    return with_wording(task, top)


def _kind_and_inputs(top: Section) -> tuple[Kind, tuple[str, ...]]:
    text, image = top.texts("text"), top.texts("image")
    if bool(text) == bool(image):
        raise top.wrong("exactly one of 'text' (one column or several) and 'image' (one column) is needed")
    if image:
        if len(image) > 1 or CHOICES in top.values:
            raise top.wrong("an image task has one 'image' column and no 'choices'")
        return "image", image
    return ("choice" if CHOICES in top.values else "text"), text


def _labels(top: Section, kind: Kind) -> tuple[str, ...]:
    labels = top.texts("labels")
    if kind == "choice" and not top.texts(CHOICES):
        raise top.wrong("'choices' names no column")
    if kind == "choice" and labels:
        raise top.wrong(
            "'labels' and 'choices' exclude each other: in multiple choice the row's choices are the labels"
        )
    if kind != "choice" and len(labels) < 2:
        raise top.wrong(f"'labels' must list at least two names; found {list(labels)}")
    if len(set(labels)) < len(labels):
        raise top.wrong(f"'labels' names a label twice: {list(labels)}")
    return labels


def _labels_in_data(top: Section) -> tuple[str, ...]:
    """The different labels of the training rows, in order: as the source states them, by number, or by name."""
    origin = replace(_origin(top, (), ()), data_labels=())
    label = top.text("label", "label")
    (column,) = origin.columns.get(label, (label,))
    ignored, found = _ignored(top), dict[str, Any]()
    for source in origin.train or origin.test:
        table = read_table(source, (column,))
        stated = table.class_names.get(column)
        if stated:
            return tuple(name for name in stated if name not in ignored)
        found |= {str(cell): cell for cell in table.column(column) if cell not in (None, "") and cell == cell}
    names = sorted(found.keys() - ignored, key=lambda name: (_as_number(name), name))
    if not 2 <= len(names) <= MOST_LABELS:
        raise top.wrong(
            f"the column {column!r} has {len(names):,} different values ({listed(names) or 'none'}); expected the labels of 2 to "
            f"{MOST_LABELS} classes: name the column with 'label', or the labels with 'labels'"
        )
    return tuple(names)


def _as_number(name: str) -> float:
    """Numbers in their order; names after them."""
    try:
        number = float(name)
    except ValueError:
        return math.inf
    return number if math.isfinite(number) else math.inf


def _ignored(top: Section) -> frozenset[str]:
    """Names, or numbers that no label has (-1 marks "no gold label" in some datasets)."""
    given = top.values.get("ignore_labels", [])
    if not isinstance(given, list) or not all(isinstance(item, str | int) for item in given):
        raise top.wrong(f"'ignore_labels' must be a list of names or numbers; found {shown(given)}")
    return frozenset(str(item) for item in given)


def _metric(top: Section, labels: tuple[str, ...], kind: Kind) -> Metric:
    names = _METRICS[kind == COMPLETE]
    given = top.text("metric", names[0])
    if given == "f1" and len(labels) != 2:
        raise top.wrong(f"metric 'f1' is of label 1 of two labels; this task has {len(labels)}")
    for name in names:
        if name == given:
            return name
    raise top.wrong(f"no metric {given!r}: {did_you_mean(given, names)}")


def _origin(section: Section, labels: tuple[str, ...], choices: tuple[str, ...]) -> Origin:
    beside = partial(_resolved, folder=section.file.parent)
    train, test, validation = (tuple(map(beside, section.texts(split))) for split in ("train", "test", "validation"))
    if not (train or test):
        raise section.wrong("neither 'train' nor 'test' names a source")
    data_labels = section.texts("data_labels") or labels
    missing = [label for label in labels if label not in data_labels]
    if missing:
        raise section.wrong(f"'data_labels' lacks {listed(missing)}; it must hold every name of 'labels'")
    return Origin(train, test, validation, _columns(section, choices), data_labels, holdout=_holdout(section, test))


def _holdout(section: Section, test: tuple[str, ...]) -> float:
    """The share of the training rows that test, where the data have no test rows of their own."""
    share = section.values.get("holdout", 0.0)
    if "holdout" not in section.values:
        return 0.0
    if not isinstance(share, float) or not 0 < share < 1:
        raise section.wrong(f"'holdout' is a share of the training rows between 0 and 1; found {share!r}")
    if test:
        raise section.wrong("'holdout' and 'test' exclude each other: rows are held out where there are no test rows")
    return share


def _columns(section: Section, choices: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """our field → the source's column or columns; `choices` at the top of a file is short for it."""
    table = section.section("columns")
    columns = {field: table.texts(field) for field in table.values}
    return {CHOICES: choices, **columns} if choices else columns


def _resolved(source: str, folder: Path) -> str:
    return source if source.startswith(REMOTE) else str(folder / source)


def _hub(top: Section, labels: tuple[str, ...], choices: tuple[str, ...]) -> Origin | None:
    if "hub" not in top.values:
        return None
    hub = top.section("hub")
    hub.only(ORIGIN_KEYS)
    return _origin(hub, labels, choices)


def _check_columns(top: Section, task: Task) -> None:
    if MASK in task.fields:
        raise top.wrong(f"a column cannot be called {MASK!r} (use 'columns' to rename it): {{mask}} is the mask token")
    known = task.read
    if len(set(known)) < len(known):
        raise top.wrong(f"a column has two roles: {listed(known)}")
    for origin in filter(None, (task.data, task.hub)):
        for field, columns in origin.columns.items():
            if field not in known:
                raise top.wrong(f"'columns' renames to {field!r}, which is no field: {did_you_mean(field, known)}")
            several = task.kind != "image" and field != task.label
            if not columns or (len(columns) > 1 and not several):
                raise top.wrong(f"'columns': {field!r} needs one column; found {list(columns)}")
        unknown = set(origin.data_labels) - set(task.labels) - task.ignore_labels
        if task.labels and unknown:
            raise top.wrong(f"'data_labels' has {listed(sorted(unknown))}: neither in 'labels' nor in 'ignore_labels'")


def definition(value: Any) -> Any:
    """A task as JSON in an order that does not depend on the process: what is asked and how. Sources are left out."""
    if isinstance(value, Task) or is_dataclass(value):
        parts = {each.name: getattr(value, each.name) for each in fields(value)}
        return {
            name: definition(each)
            for name, each in parts.items()
            if name not in ("train", "test", "validation") and (each or name not in _WHERE_GIVEN)
        }
    if isinstance(value, Mapping):
        return {str(key): definition(each) for key, each in value.items()}
    if callable(value):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, frozenset | set):
        return sorted(map(str, value))
    return [definition(each) for each in value] if isinstance(value, list | tuple) else value
