"""A task as a value: where its rows are, what its labels mean, how a model is asked, how it is scored.

Nothing here reads data; `task_file.load_task` makes a `Task` from a small TOML file and `examples.read_examples` reads its rows.

`asked_as` puts one task's question to another task's rows: how a skill is tried out of distribution (P1 §4.2).

    asked_as(load_task("imdb"), load_task("sst2"))    # IMDb's rows with SST-2's prompts, words, descriptions or head
    load_task("imdb as sst2")                         # the same

Columns correspond in their order. A label corresponds to the one of the same name; those that only one of the tasks has
correspond in their order. Refused: rows of another kind, another number of columns, labels that find no counterpart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from skillgraft.errors import InputError, listed
from skillgraft.tasks.prompt import CHOICES, Prompt, Row, Template

Kind = Literal["text", "choice", "image", "complete"]
ClassMetric = Literal["accuracy", "f1"]
CompletionMetric = Literal["nll", "perplexity", "token_accuracy", "exact_match", "contains", "callable"]
Metric = ClassMetric | CompletionMetric
Layout = Literal["prompt", "messages", "text"]
PromptKind = Literal["masked", "causal", "choice"]
SplitName = Literal["train", "test", "validation"]


@dataclass(frozen=True)
class Origin:
    """Where rows come from: sources per split, our field → the source's columns, the names behind integer labels.

    `meanings` says which of the task's labels each of the data's stands for, where these are another task's. `holdout` is the
    share of the training rows that test where there is no test source. `by_name`: labels were read off the data, numbers too.
    """

    train: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    validation: tuple[str, ...] = ()
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    data_labels: tuple[str, ...] = ()
    meanings: Mapping[str, str] = field(default_factory=dict)
    holdout: float = 0.0
    by_name: bool = False

    def sources(self, split: SplitName) -> tuple[str, ...]:
        """The sources of one split; several are read one after the other."""
        return {"train": self.train, "test": self.test, "validation": self.validation}[split]


@dataclass(frozen=True)
class Describe:
    """What the frozen text head embeds: the input as one text, and a text for each label (or for each row's choices)."""

    input: Template | None = None
    descriptions: Mapping[str, str] = field(default_factory=dict)
    choice: Template | None = None
    templates: tuple[Template, ...] = ()

    def label_texts(self, label: str) -> tuple[str, ...]:
        """Every text that stands for a label; a head averages their embeddings, as CLIP's authors and P2 do."""
        filled = tuple(template.render({"label": label}) for template in self.templates)
        return (*filled, self.descriptions[label]) if label in self.descriptions else filled

    def choice_texts(self, row: Row) -> tuple[str, ...]:
        """One text per choice of a multiple-choice row."""
        if self.choice is None:
            return ()
        return tuple(self.choice.render({**row, "choice": choice}) for choice in row[CHOICES])


@dataclass(frozen=True)
class Completing:
    """How prompts are continued. `layout` says how the data lie: prompt and completion, messages, or text alone.

    `chat` fills the tokenizer's chat template; `ends` has the end-of-text token learned after a completion. `answer_tokens` is
    the most that is generated (by default as many as the longest completion has), and `scorer` what metric "callable" means:
    a number for each generated text and true completion.
    """

    layout: Layout = "prompt"
    chat: bool = False
    ends: bool = True
    answer_tokens: int | None = None
    scorer: Callable[[str, str], float] | None = None


@dataclass(frozen=True)
class Task:
    """One task. `labels` is empty for multiple choice, where a label is a position among the row's own choices, and where
    prompts are completed, which `completing` is about.

    `metric` "f1" is the F1 of label 1. Rows whose label is in `ignore_labels` are dropped and counted.
    `hub` replaces `data` where `data` lies below SKILLGRAFT_DATA and that is not set. `asked_as` names the task whose question
    the rows are asked, where that is another one.
    """

    name: str
    kind: Kind
    inputs: tuple[str, ...]
    data: Origin
    label: str = "label"
    labels: tuple[str, ...] = ()
    ignore_labels: frozenset[str] = frozenset()
    metric: Metric = "accuracy"
    max_length: int = 128
    prompts: Mapping[PromptKind, Prompt] = field(default_factory=dict)
    describe: Describe | None = None
    hub: Origin | None = None
    asked_as: str = ""
    completing: Completing | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        """The columns that a row of this task has: inputs, then choices."""
        return (*self.inputs, CHOICES) if self.kind == "choice" else self.inputs

    @property
    def read(self) -> tuple[str, ...]:
        """The columns that are read: the row's and its label."""
        return self.fields if self.kind == "complete" else (*self.fields, self.label)

    @property
    def question(self) -> str:
        """The name of the task whose question its rows are asked: tasks of one question share a linear head."""
        return self.asked_as or self.name


AS = " as "
FIRST_TEXT = 110  # tokens of a row's first text in P1's masked prompts


def asked_as(task: Task, source: Task, *, first_text: int | None = FIRST_TEXT) -> Task:
    """The rows of `task` with the question of `source`: its prompts, words, descriptions, labels, metric and lengths.

    A linear head is that of a model tuned on `source`. `first_text` limits the first text of a masked prompt: other data have
    longer texts than the prompt was written for.
    """
    if (task.kind, len(task.inputs)) != (source.kind, len(source.inputs)):
        raise InputError(
            f"{task.name!r} cannot be asked as {source.name!r}: expected {_columns(source)}, found {_columns(task)}; "
            "choose a task with such rows"
        )
    labels = _counterparts(task, source)
    return replace(
        source,
        name=f"{task.name}{AS}{source.name}",
        data=_renamed(task.data, task, source, labels),
        hub=None if task.hub is None else _renamed(task.hub, task, source, labels),
        ignore_labels=task.ignore_labels,
        prompts=source.prompts if first_text is None else _limited(source, first_text),
        asked_as=source.question,
    )


def _columns(task: Task) -> str:
    return f"{task.kind} in {len(task.inputs)} column{'s' * (len(task.inputs) > 1)} ({listed(task.inputs)})"


def _counterparts(task: Task, source: Task) -> dict[str, str]:
    """Each label of the task → that of the source."""
    theirs, ours = source.labels, task.labels
    if not {*ours} <= {*theirs} and len(ours) != len(theirs):
        raise InputError(
            f"{task.name!r} cannot be asked as {source.name!r}: expected labels that correspond to {listed(theirs, most=10)}, "
            f"found {listed(ours, most=10)}; choose a task with the same names or the same number of labels"
        )
    spare = (label for label in theirs if label not in ours)
    return {label: label if label in theirs else next(spare) for label in ours}


def _renamed(origin: Origin, task: Task, source: Task, labels: Mapping[str, str]) -> Origin:
    """The origin of the task's rows under the names of the source's fields and labels."""
    fields = zip((*source.fields, source.label), (*task.fields, task.label), strict=True)
    columns = {ours: origin.columns.get(theirs, (theirs,)) for ours, theirs in fields}
    return replace(origin, columns=columns, meanings=labels)


def _limited(source: Task, tokens: int) -> dict[PromptKind, Prompt]:
    """The source's prompts, the masked one with so many tokens of the first text at most."""
    first = source.inputs[0]
    return {
        kind: prompt.limited(first, tokens) if kind == "masked" else prompt for kind, prompt in source.prompts.items()
    }
