"""What a skill is asked, as its graft records it: rows of different skills share one forward pass, each is read its own way.

    question = question_of(info, heads, source, loader="AutoModel")
    row = question.encode("a fine film")
    outputs = READERS[question.reader](model, question.readout, [row, …])     # one forward pass for all skills of a reader
    question.scores(outputs[0])                                               # one score per label

A graft's file is data from elsewhere: its templates are parsed by our own parser, its words must be single tokens, and what does
not hold together is refused with the reason. Multiple choice, whose rows bring their own labels, is not served.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from skillgraft.errors import InputError, listed
from skillgraft.opening.source import Source
from skillgraft.readouts.causal import Causal
from skillgraft.readouts.embedding import pooling_of, sentences
from skillgraft.readouts.linear import Linear
from skillgraft.readouts.masked import Masked
from skillgraft.readouts.readout import Encoded, Options
from skillgraft.readouts.readouts import READOUTS
from skillgraft.readouts.rows import TextRows, model_inputs
from skillgraft.readouts.text_head import TextHead
from skillgraft.readouts.words import logits_at
from skillgraft.serve.refusals import Refused, shown, wrong
from skillgraft.tasks import Examples, Prompt, Task
from skillgraft.tasks.prompt import MASK, Template
from skillgraft.tasks.task import Describe, Origin

Item = str | Mapping[str, str]
Rows = Sequence[Encoded]
_FIELD = re.compile(r"\{([^{}|]+)")
_DEFAULT_LENGTH = 128
MOST_LABELS = 10_000


@dataclass(frozen=True)
class Described(Describe):
    """Labels whose descriptions were stored filled in, several a label where there were several templates."""

    texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def label_texts(self, label: str) -> tuple[str, ...]:
        return self.texts[label]


@dataclass(frozen=True, eq=False)
class Question:
    """A task's question on the served model. `reader` names the forward pass that its rows share with others'."""

    reader: str
    readout: Any

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self.readout.task.labels)

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(self.readout.task.inputs)

    def encode(self, item: Item) -> Encoded:
        """One text, or the fields of a row, as the model takes it."""
        row = self._row(item)
        columns = {name: (row[name],) for name in row}
        task = replace(self.readout.task, inputs=tuple(columns)) if self.reader == "linear" else self.readout.task
        examples = Examples(task.name, columns, np.zeros(1, np.int64), task.labels)
        readout = _with_fields(self.readout, task) if self.reader == "linear" else self.readout
        (encoded,) = readout.encode(examples)
        return encoded

    def scores(self, output: Tensor) -> Tensor:
        """(labels,) from this row's share of the forward pass."""
        return _SCORES[self.reader](self.readout, output)

    def _row(self, item: Item) -> Mapping[str, str]:
        wanted = self.fields
        if isinstance(item, str):
            if len(wanted) > 1:
                raise Refused(
                    400,
                    "fields_needed",
                    f"this skill reads {listed(wanted)}: give an object with these fields",
                    "input",
                )
            return {wanted[0]: item}
        pair = self.reader == "linear" and 1 <= len(item) <= 2  # a text or a pair, whatever its columns were called
        if not pair and set(item) != set(wanted):
            raise wrong("input", f"a text or an object with the fields {listed(wanted)}", sorted(item))
        return item


def _with_fields(readout: Linear, task: Task) -> Linear:
    return replace(readout, task=task, inputs=replace(readout.inputs, task=task))  # type: ignore[type-var]


def _embedded(model: nn.Module, readout: Any, rows: Rows) -> Tensor:
    embedded: Tensor = readout.embed(model, _on(model, readout.collate(rows)))
    return embedded


def _classified(model: nn.Module, readout: Any, rows: Rows) -> Tensor:
    logits: Tensor = model(**model_inputs(_on(model, readout.collate(rows)))).logits
    return logits


def _worded(model: nn.Module, readout: Any, rows: Rows) -> Tensor:
    batch = _on(model, readout.collate(rows))
    return logits_at(model, model_inputs(batch), batch["positions"])[:, 0]


def _pooled(model: nn.Module, embedder: Any, rows: Rows) -> Tensor:
    body = model if model.base_model is model else model.base_model
    return sentences(body, _on(model, embedder.text.batch(rows)), pooling=embedder.pooling)  # type: ignore[arg-type]


def _on(model: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    device = next(model.parameters()).device
    return {name: tensor.to(device) for name, tensor in batch.items()}


# One forward pass for rows of many skills; what a row's share of it means to its skill stands in _SCORES.
READERS: Mapping[str, Callable[[nn.Module, Any, Rows], Tensor]] = {
    "text-head": _embedded,
    "linear": _classified,
    "masked": _worded,
    "causal": _worded,
    "embedding": _pooled,
}
_SCORES: Mapping[str, Callable[[Any, Tensor], Tensor]] = {
    "text-head": lambda readout, output: readout.scale * output @ readout.head.to(output).T,
    "linear": lambda readout, output: output[readout.first : readout.first + len(readout.task.labels)],
    "masked": lambda readout, output: output[list(readout.word_ids)],
    "causal": lambda readout, output: output[list(readout.word_ids)],
}
SERVED = ("text-head", "linear", "masked", "causal")


@dataclass(frozen=True)
class Embedder:
    """How texts become vectors of length 1."""

    text: TextRows
    pooling: str

    @classmethod
    def of(cls, source: Source) -> Embedder:
        trained = source.json("sentence_bert_config.json", default={}).get("max_seq_length")
        text = TextRows.of(source, Options(), max_length=int(trained) if isinstance(trained, int) else 1_000_000)
        return cls(text, pooling_of(source))

    def encode(self, text: str) -> Encoded:
        (tokens,) = self.text.truncated([text])
        return Encoded(tokens, 0, len(tokens["input_ids"]))


def question_of(info: Mapping[str, Any], source: Source, model: nn.Module, *, loader: str) -> Question:
    """What a graft with this provenance is asked, on a model that this Auto class loaded; InputError says why not."""
    settings = _stored(info)
    kind = settings["readout"]
    if kind not in SERVED:
        raise InputError(f"its readout is {shown(kind)}; the server classifies by {listed(SERVED)}")
    task = _TASKS[kind](_name(info), _labels(info, settings), settings)
    plan = READOUTS[kind](source, [task], Options())
    if plan.loader != loader:
        raise InputError(f"its {kind} readout needs {plan.loader}, and this server runs {loader} (see --readout)")
    (readout,) = plan.bind(model)
    if isinstance(readout, TextHead):
        readout = replace(readout, scale=_number(settings, "scale"))
    if isinstance(readout, Linear):
        readout = replace(readout, first=int(_number({"first_label": 0, **settings}, "first_label")))
    assert isinstance(readout, TextHead | Linear | Masked | Causal)
    return Question(kind, readout)


def _stored(info: Mapping[str, Any]) -> Mapping[str, Any]:
    """The readout that was recorded; a graft that brings a classifier and says no more is read by it."""
    settings = info.get("readout")
    if isinstance(settings, Mapping) and isinstance(settings.get("readout"), str):
        return settings
    if info.get("labels") or info.get("id2label"):
        return {"readout": "linear"}
    raise InputError("it records no labels and no readout, so it cannot classify; `localize --task` records both")


def _name(info: Mapping[str, Any]) -> str:
    return str(info.get("task") or "task")


def _labels(info: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[str, ...]:
    by_label = settings.get("descriptions") or settings.get("words")
    stated = info.get("labels") or by_label or list(dict(info.get("id2label") or {}).values())
    labels = tuple(stated)
    if not 1 < len(labels) <= MOST_LABELS or not all(isinstance(label, str) for label in labels):
        raise InputError(f"its labels must be 2 to {MOST_LABELS} texts; found {shown(labels)}")
    if isinstance(by_label, Mapping) and set(by_label) != set(labels):
        raise InputError(f"its labels are {listed(labels)}, but its words or descriptions are of {listed(by_label)}")
    return labels


def _described(name: str, labels: tuple[str, ...], settings: Mapping[str, Any]) -> Task:
    stored = settings.get("descriptions")
    if not isinstance(stored, Mapping):
        raise InputError("its text head has no descriptions of labels; multiple choice is not served")
    found = {label: stored.get(label) for label in labels}
    texts = {label: tuple(text) if isinstance(text, list) else () for label, text in found.items()}
    bare = [label for label in labels if not texts[label] or not all(isinstance(text, str) for text in texts[label])]
    if bare:
        raise InputError(f"its text head has no description of {listed(bare)}")
    template = _template(settings, "input")
    describe = Described(input=template, texts=texts)
    return _task(name, labels, template, settings, describe=describe)


def _prompted(name: str, labels: tuple[str, ...], settings: Mapping[str, Any]) -> Task:
    words = settings.get("words")
    if not isinstance(words, Mapping):
        raise InputError("its prompt has no words for labels; multiple choice is not served")
    template, kind = _template(settings, "template"), settings["readout"]
    if template.masks != (kind == "masked"):
        raise InputError(f"a {kind} prompt has {'one' if kind == 'masked' else 'no'} {{mask}}; found {template.masks}")
    prompt = Prompt(template, _length(settings), tuple(str(words[label]) for label in labels))
    return _task(name, labels, template, settings, prompts={kind: prompt})


def _classifying(name: str, labels: tuple[str, ...], settings: Mapping[str, Any]) -> Task:
    return Task(name, "text", ("text",), Origin(), labels=labels, max_length=_length(settings))


_TASKS: Mapping[str, Callable[[str, tuple[str, ...], Mapping[str, Any]], Task]] = {
    "text-head": _described,
    "linear": _classifying,
    "masked": _prompted,
    "causal": _prompted,
}


def _task(name: str, labels: tuple[str, ...], template: Template, settings: Mapping[str, Any], **asked: Any) -> Task:
    if not template.fields:
        raise InputError(f"its template shows nothing of a row: {shown(template.text)}")
    return Task(name, "text", template.fields, Origin(), labels=labels, max_length=_length(settings), **asked)


def _template(settings: Mapping[str, Any], key: str) -> Template:
    text = settings.get(key)
    if not isinstance(text, str):
        raise InputError(f"its readout has no {key!r}; found {shown(text)}")
    return Template.parse(text, texts=tuple(dict.fromkeys(name for name in _FIELD.findall(text) if name != MASK)))


def _length(settings: Mapping[str, Any]) -> int:
    return int(_number({"max_length": _DEFAULT_LENGTH, **settings}, "max_length", least=1))


def _number(settings: Mapping[str, Any], key: str, *, least: float = 0) -> float:
    value = settings.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < 1e9:
        raise InputError(f"its readout's {key} must be a number of at least {least:g}; found {shown(value)}")
    return float(value)


def probabilities(scores: Tensor) -> list[float]:
    """Softmax in float64, so that they add up to 1."""
    shares: list[float] = torch.softmax(scores.double(), -1).tolist()
    return shares


def same_question(names: Sequence[str], questions: Sequence[Question]) -> Question:
    """The one question that the skills of a sum share; where they differ, the request must choose."""
    first = questions[0]
    if any((other.reader, other.labels) != (first.reader, first.labels) for other in questions[1:]):
        raise Refused(
            400, "ambiguous_task",
            f"{listed(names)} ask different questions; name the skill whose question is asked in 'task'", "task",
        )  # fmt: skip
    return first
