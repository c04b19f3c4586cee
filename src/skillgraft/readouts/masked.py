"""Masked-LM prompt: the label words' logits at the mask (P1 §2.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from skillgraft.errors import InputError
from skillgraft.opening.source import Source
from skillgraft.readouts.readout import Batch, Encoded, Options, Plan
from skillgraft.readouts.rows import TextRows, Tokens, model_inputs, padded
from skillgraft.readouts.words import logits_at, masked_ids, prompt_of, words_by_label
from skillgraft.tasks import Examples, Prompt, Task


@dataclass(frozen=True)
class Masked:
    """`word_ids[i]` is the token of label i's word."""

    task: Task
    prompt: Prompt
    text: TextRows
    word_ids: tuple[int, ...]

    @property
    def settings(self) -> Mapping[str, Any]:
        return {
            "readout": "masked",
            "template": self.prompt.template.text,
            "words": words_by_label(self.task, self.prompt),
            "max_length": self.text.max_length,
        }

    def encode(self, examples: Examples) -> list[Encoded]:
        """Law: every row has exactly one mask."""
        found = self.text.prompts(list(examples.rows()), self.prompt, mask=self.text.tokenizer.mask_token)
        masks = [[self._mask_in(tokens, row)] for row, tokens in enumerate(found)]
        return [
            Encoded({**tokens, "positions": mask}, label, len(tokens["input_ids"]))
            for tokens, mask, label in zip(found, masks, examples.labels.tolist(), strict=True)
        ]

    def collate(self, rows: Sequence[Encoded]) -> Batch:
        return {**self.text.batch(rows), "positions": padded([row.inputs["positions"] for row in rows])}

    def scores(self, model: nn.Module, batch: Batch) -> Tensor:
        """(rows, labels) LM logits of the label words at the mask."""
        return logits_at(model, model_inputs(batch), batch["positions"])[:, 0, list(self.word_ids)]

    def _mask_in(self, tokens: Tokens, row: int) -> int:
        ids, mask = tokens["input_ids"], self.text.tokenizer.mask_token_id
        if ids.count(mask) != 1:
            raise InputError(
                f"task {self.task.name!r}, row {row}: expected one mask in the prompt; found {ids.count(mask)}"
            )
        return ids.index(mask)


def plan_masked(source: Source, tasks: Sequence[Task], options: Options) -> Plan:
    """For models with a masked-LM head."""
    readouts = tuple(_readout(source, task, options) for task in tasks)
    return Plan("AutoModelForMaskedLM", lambda _model: readouts, head="stored")


def _readout(source: Source, task: Task, options: Options) -> Masked:
    prompt = prompt_of(task, "masked")
    if source.tokenizer.mask_token is None:
        raise InputError(f"{source.name}: its tokenizer has no mask token; the masked readout needs a masked-LM model")
    text = TextRows.of(source, options, max_length=prompt.max_length)
    text.check_fits(prompt, mask=source.tokenizer.mask_token)
    return Masked(task, prompt, text, masked_ids(source.tokenizer, prompt.words, task=task.name))
