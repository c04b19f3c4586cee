"""Causal-LM prompt: the label words' logits as the next token after the prompt (P1 table 9).

A row of multiple choice is answered by letter: its words are " A", " B" … as the prompt's `answer` spells them.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from skillgraft.errors import InputError
from skillgraft.opening.source import Source
from skillgraft.readouts.readout import Batch, Encoded, Options, Plan
from skillgraft.readouts.rows import TextRows, choice_mask, labels_of, model_inputs, padded
from skillgraft.readouts.words import causal_ids, ending, logits_at, prompt_of, without_eos, words_by_label
from skillgraft.tasks import Examples, Prompt, Task
from skillgraft.tasks.prompt import CHOICES


@dataclass(frozen=True)
class Causal:
    """`word_ids[i]` is the token of label i's word, or of letter i for multiple choice."""

    task: Task
    prompt: Prompt
    text: TextRows
    word_ids: tuple[int, ...]

    @property
    def settings(self) -> Mapping[str, Any]:
        answer = self.prompt.answer
        return {
            "readout": "causal",
            "template": self.prompt.template.text,
            **({"answer": answer.text} if answer else {"words": words_by_label(self.task, self.prompt)}),
            "max_length": self.text.max_length,
        }

    def encode(self, examples: Examples) -> list[Encoded]:
        rows = list(examples.rows())
        eos = self.text.tokenizer.eos_token_id
        prompts = [without_eos(tokens["input_ids"], eos) for tokens in self.text.prompts(rows, self.prompt)]
        return [
            Encoded({"input_ids": ids, "choices": len(row.get(CHOICES, self.word_ids))}, label, len(ids))
            for ids, row, label in zip(prompts, rows, examples.labels.tolist(), strict=True)
        ]

    def collate(self, rows: Sequence[Encoded]) -> Batch:
        return {
            **self.text.padded([row.inputs["input_ids"] for row in rows]),
            "positions": padded([[row.length - 1] for row in rows]),
            "choice_mask": choice_mask([row.inputs["choices"] for row in rows]),
            "labels": labels_of(rows),
        }

    def scores(self, model: nn.Module, batch: Batch) -> Tensor:
        """(rows, labels) LM logits of the label words after each row's last token."""
        mask = batch["choice_mask"]
        words = list(self.word_ids[: mask.shape[1]])
        logits = logits_at(model, model_inputs(batch), batch["positions"])[:, 0, words]
        return logits.masked_fill(~mask, float("-inf"))


def plan_causal(source: Source, tasks: Sequence[Task], options: Options) -> Plan:
    """For causal language models."""
    readouts = tuple(_readout(source, task, options) for task in tasks)
    return Plan("AutoModelForCausalLM", lambda _model: readouts, head="stored")


def _readout(source: Source, task: Task, options: Options) -> Causal:
    prompt = prompt_of(task, "causal")
    text = TextRows.of(source, options, max_length=prompt.max_length)
    text.check_fits(prompt)
    words = prompt.words or _letters(task, prompt)
    return Causal(task, prompt, text, causal_ids(source.tokenizer, words, after=ending(prompt), task=task.name))


def _letters(task: Task, prompt: Prompt) -> tuple[str, ...]:
    answer = prompt.answer
    if answer is None or answer.fields != ("letter",):
        spelled = answer.text if answer else ""
        raise InputError(
            f"task {task.name!r}, causal prompt: the answers {spelled!r} are not single tokens known beforehand; "
            "write answer = ' {letter}', or use the choice readout"
        )
    return tuple(answer.render({"letter": letter}) for letter in string.ascii_uppercase)
