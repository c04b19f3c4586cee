"""Choice ranking: whole candidate answers by the sum of their tokens' log-probabilities (P2's language tasks).

Candidates are the prompt's fixed words or the row's own choices. The scores are log-probabilities, so that cross-entropy
over them is log-softmax over the choices. Seq2seq and causal models differ only in how they are run: see `rankers`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from skillgraft.errors import InputError, listed
from skillgraft.readouts.plan import Options, Plan
from skillgraft.readouts.prompting import ending, prompt_of, words_by_label
from skillgraft.readouts.rankers import Continued, Ranker, Seq2seq
from skillgraft.readouts.readout import Batch, Encoded
from skillgraft.readouts.source import Source
from skillgraft.readouts.text_rows import TextRows, labels_of
from skillgraft.tasks import Examples, Prompt, Task


@dataclass(frozen=True)
class Choice:
    """Without `length_normalised` (P2) a longer candidate pays for each of its tokens."""

    task: Task
    prompt: Prompt
    text: TextRows
    ranker: Ranker
    length_normalised: bool

    @property
    def settings(self) -> Mapping[str, Any]:
        answer = self.prompt.answer
        return {
            "readout": "choice",
            "template": self.prompt.template.text,
            **({"answer": answer.text} if answer else {"words": words_by_label(self.task, self.prompt)}),
            "length_normalised": self.length_normalised,
            "max_length": self.text.max_length,
        }

    def encode(self, examples: Examples) -> list[Encoded]:
        rows = list(examples.rows())
        prompts = [tokens["input_ids"] for tokens in self.text.prompts(rows, self.prompt)]
        answers = [self.prompt.answers(row) for row in rows]
        ids = self.ranker.answer_ids(sorted({answer for row in answers for answer in row}))
        return [
            self._encoded(row, prompts[row], [ids[answer] for answer in answers[row]], label)
            for row, label in enumerate(examples.labels.tolist())
        ]

    def collate(self, rows: Sequence[Encoded]) -> Batch:
        return {**self.ranker.collate(rows), "labels": labels_of(rows)}

    def scores(self, model: nn.Module, batch: Batch) -> Tensor:
        """(rows, choices) log-probabilities; -inf where a row has fewer choices than others."""
        logits, wanted = self.ranker.logits(model, batch).float(), batch["candidates"].flatten(0, 1)
        chosen = logits.gather(-1, wanted.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(-1)
        mask = batch["candidate_mask"]
        lengths = mask.sum(-1)
        totals = (chosen.view(mask.shape) * mask).sum(-1)
        if self.length_normalised:
            totals = totals / lengths.clamp(min=1)
        return totals.masked_fill(lengths == 0, float("-inf"))

    def _encoded(self, row: int, prompt: Sequence[int], candidates: list[list[int]], label: int) -> Encoded:
        where = f"task {self.task.name!r}, row {row}"
        if not all(candidates):
            raise InputError(f"{where}: a choice has no tokens; expected text")
        found = self.ranker.encoded(prompt, candidates, label)
        if found.length > self.text.room:
            raise InputError(
                f"{where}: prompt and answer take {found.length} tokens, but the model reads at most {self.text.room}; "
                f"lower max_length (it is {self.text.max_length})"
            )
        return found


def plan_choice(source: Source, tasks: Sequence[Task], options: Options) -> Plan:
    """For seq2seq and causal language models."""
    readouts = tuple(_readout(source, task, options) for task in tasks)
    loader = "AutoModelForSeq2SeqLM" if source.config.is_encoder_decoder else "AutoModelForCausalLM"
    return Plan(loader, lambda _model: readouts, head="stored")


def _readout(source: Source, task: Task, options: Options) -> Choice:
    prompt = prompt_of(task, "choice", "causal")
    text = TextRows.of(source, options, max_length=prompt.max_length)
    text.check_fits(prompt)
    ranker = _ranker(source, text, prompt)
    _check_words(ranker, task, prompt)
    return Choice(task, prompt, text, ranker, options.length_normalised)


def _ranker(source: Source, text: TextRows, prompt: Prompt) -> Ranker:
    if not source.config.is_encoder_decoder:
        return Continued(text, after=ending(prompt))
    start = source.config.decoder_start_token_id
    if start is None:
        raise InputError(f"{source.name}: its config names no decoder_start_token_id, with which every answer begins")
    return Seq2seq(text, start=start)


def _check_words(ranker: Ranker, task: Task, prompt: Prompt) -> None:
    ids = {word: tuple(tokens) for word, tokens in ranker.answer_ids(prompt.words).items()}
    same = [word for word, tokens in ids.items() if not tokens or list(ids.values()).count(tokens) > 1]
    if same:
        raise InputError(
            f"task {task.name!r}: the words {listed(map(repr, same))} cannot be told apart: their tokens are the same"
        )
