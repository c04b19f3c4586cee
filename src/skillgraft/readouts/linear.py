"""Linear head: a fresh classifier on the first token or the pooled state, as transformers builds it (P1 fig. 3).

Several tasks share one classifier, whose labels are the tasks' labels one after the other; each readout reads its own
slice, or that of the task whose question it is. A classifier that the folder already has is kept if it has as many classes
under the same names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from torch import Tensor, nn

from skillgraft.errors import InputError, listed
from skillgraft.opening.source import Source
from skillgraft.readouts.readout import Batch, Encoded, Inputs, Options, Plan
from skillgraft.readouts.rows import ImageRows, TextRows, encoded, model_inputs, pad_id, pixel_values
from skillgraft.tasks import Examples, Task

_READ_THE_LAST = ("xlnet",)  # decoders look for the last token that is not padding, XLNet does not


@dataclass(frozen=True)
class Linear:
    """`first`: the column of the shared classifier at which the task's labels begin."""

    task: Task
    inputs: Inputs
    first: int

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"readout": "linear", "first_label": self.first, **self.inputs.settings}

    def encode(self, examples: Examples) -> list[Encoded]:
        return self.inputs.encode(examples)

    def collate(self, rows: Sequence[Encoded]) -> Batch:
        return self.inputs.batch(rows)

    def scores(self, model: nn.Module, batch: Batch) -> Tensor:
        """(rows, labels) logits: the task's slice of the classifier."""
        given = {"pixel_values": pixel_values(model, batch)} if "pixel_values" in batch else model_inputs(batch)
        logits: Tensor = model(**given).logits
        return logits[:, self.first : self.first + len(self.task.labels)]


@dataclass(frozen=True)
class FieldTexts:
    """A row's fields as the tokenizer takes them: one text or a pair; three and more become one text."""

    task: Task
    text: TextRows
    reads_last: bool = False  # the classifier reads the last position, padding or not: padding goes to the left

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"max_length": self.text.max_length}

    def encode(self, examples: Examples) -> list[Encoded]:
        columns = [examples.columns[field] for field in self.task.inputs]
        found = self.text.truncated(*(columns if len(columns) <= 2 else [self._joined(examples)]))
        return encoded(found, examples)

    def batch(self, rows: Sequence[Encoded]) -> Batch:
        return self.text.batch(rows, left=self.reads_last)

    def _joined(self, examples: Examples) -> list[str]:
        template = self.task.describe.input if self.task.describe else None
        if template:
            return [template.render(row) for row in examples.rows()]
        return [" ".join(row[field] for field in self.task.inputs) for row in examples.rows()]


def plan_linear(source: Source, tasks: Sequence[Task], options: Options) -> Plan:
    """For any encoder, decoder or vision model; all tasks are texts or all are images."""
    kinds = {task.kind for task in tasks}
    if "choice" in kinds:
        ragged = listed(task.name for task in tasks if task.kind == "choice")
        raise InputError(
            f"{ragged}: multiple choice has no fixed labels for a linear head; use choice, causal or text-head"
        )
    if len(kinds) > 1:
        raise InputError(f"one model reads texts or images, not both: {listed(f'{t.name} ({t.kind})' for t in tasks)}")
    questions = {task.question: task.labels for task in tasks}
    firsts = dict(zip(questions, accumulate(map(len, questions.values()), initial=0), strict=False))
    names = _class_names(questions)
    _check_own_labels(source, names)
    readouts = tuple(Linear(task, _inputs(source, task, options), firsts[task.question]) for task in tasks)
    is_image = kinds == {"image"}
    loader = "AutoModelForImageClassification" if is_image else "AutoModelForSequenceClassification"
    # A decoder's classifier reads the last token that is not padding, so it must know which token that is.
    padding = {} if is_image else {"pad_token_id": pad_id(source.tokenizer)}
    return Plan(loader, lambda _model: readouts, head="made", config={**_labels(names), **padding})


def _inputs(source: Source, task: Task, options: Options) -> Inputs:
    if task.kind == "image":
        return ImageRows.of(source, task)
    text = TextRows.of(source, options, max_length=task.max_length)
    return FieldTexts(task, text, reads_last=source.config.model_type in _READ_THE_LAST)


def _class_names(questions: Mapping[str, Sequence[str]]) -> list[str]:
    if len(questions) == 1:
        return list(*questions.values())
    return [f"{question}: {label}" for question, labels in questions.items() for label in labels]


def _labels(names: Sequence[str]) -> dict[str, Any]:
    return {"id2label": dict(enumerate(names)), "label2id": {name: index for index, name in enumerate(names)}}


def _check_own_labels(source: Source, names: Sequence[str]) -> None:
    """Refuses a classifier of the same size that was trained for other classes: it would be used unnoticed."""
    if not any(kind.endswith("Classification") for kind in source.settings.get("architectures") or ()):
        return
    own = list(source.config.id2label.values())
    stated = not all(name.startswith("LABEL_") for name in own)
    if stated and len(own) == len(names) and [name.lower() for name in own] != [name.lower() for name in names]:
        raise InputError(
            f"{source.name} has a classifier for {listed(own)}, but the task's labels are {listed(names)}: "
            "start from the model that it was trained from, or name the labels alike and in the same order"
        )
