"""Choice ranking: whole candidate answers by the sum of their tokens' log-probabilities (P2's language tasks).

Candidates are the prompt's fixed words or the row's own choices. The scores are log-probabilities, so that cross-entropy
over them is log-softmax over the choices. Seq2seq and causal models differ only in how they are run: see `rankers`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from skillgraft.errors import InputError, listed
from skillgraft.opening.source import Source
from skillgraft.readouts.readout import Batch, Encoded, Options, Plan
from skillgraft.readouts.rows import TextRows, labels_of, padded
from skillgraft.readouts.words import (
    continuations,
    ending,
    logits_at,
    pretrained,
    prompt_of,
    without_eos,
    words_by_label,
)
from skillgraft.tasks import Examples, Prompt, Task

Candidates = Sequence[Sequence[int]]


class Ranker(Protocol):
    def answer_ids(self, answers: Sequence[str]) -> dict[str, list[int]]:
        """The tokens of each answer, as this kind of model is to produce them."""
        ...

    def encoded(self, prompt: Sequence[int], candidates: Candidates, label: int) -> Encoded:
        """One row: `input_ids` and `candidates`; its length is that of the longest sequence that the model reads."""
        ...

    def collate(self, rows: Sequence[Encoded]) -> Batch: ...

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        """(rows × choices, tokens, vocabulary)."""
        ...


@dataclass(frozen=True)
class Seq2seq:
    """Each row is encoded once; `start` begins every answer and the end-of-text token ends it."""

    text: TextRows
    start: int

    def answer_ids(self, answers: Sequence[str]) -> dict[str, list[int]]:
        found = self.text.texts([answer.strip() for answer in answers])
        return {answer: tokens["input_ids"] for answer, tokens in zip(answers, found, strict=True)}

    def encoded(self, prompt: Sequence[int], candidates: Candidates, label: int) -> Encoded:
        return Encoded({"input_ids": prompt, "candidates": candidates}, label, len(prompt))

    def collate(self, rows: Sequence[Encoded]) -> Batch:
        tokens = self.text.padded([row.inputs["input_ids"] for row in rows])
        return {**tokens, **_laid_out([row.inputs["candidates"] for row in rows])}

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        candidates = batch["candidates"]
        each = candidates.shape[1]
        mask = batch["attention_mask"]
        encoded = pretrained(model).get_encoder()(input_ids=batch["input_ids"], attention_mask=mask)
        encoded.last_hidden_state = encoded.last_hidden_state.repeat_interleave(each, 0)
        shifted = nn.functional.pad(candidates.flatten(0, 1)[:, :-1], (1, 0), value=self.start)
        logits: Tensor = model(
            encoder_outputs=encoded, attention_mask=mask.repeat_interleave(each, 0), decoder_input_ids=shifted
        ).logits
        return logits


@dataclass(frozen=True)
class Continued:
    """Prompt and candidate are one text; `after` is the end of the prompt, which decides how a candidate is tokenised."""

    text: TextRows
    after: str

    def answer_ids(self, answers: Sequence[str]) -> dict[str, list[int]]:
        spaced = [answer if self.after[-1:].isspace() or answer[:1].isspace() else f" {answer}" for answer in answers]
        found = continuations(self.text.tokenizer, self.after, spaced)
        return dict(zip(answers, found, strict=True))

    def encoded(self, prompt: Sequence[int], candidates: Candidates, label: int) -> Encoded:
        ids = without_eos(prompt, self.text.tokenizer.eos_token_id)
        return Encoded({"input_ids": ids, "candidates": candidates}, label, len(ids) + max(map(len, candidates)))

    def collate(self, rows: Sequence[Encoded]) -> Batch:
        prompts, candidates = zip(*((row.inputs["input_ids"], row.inputs["candidates"]) for row in rows), strict=True)
        most = max(map(len, candidates))
        # The first candidate again where a row has fewer: a text without any token makes attention divide 0 by 0.
        filled = [[*some, *[some[0]] * (most - len(some))] for some in candidates]
        texts = [[*prompt, *one] for prompt, some in zip(prompts, filled, strict=True) for one in some]
        tokens = {name: table.view(len(rows), most, -1) for name, table in self.text.padded(texts).items()}
        # The token at position p is predicted at p - 1.
        before = torch.tensor([len(prompt) - 1 for prompt in prompts])
        return {**tokens, "before": before, **_laid_out(candidates)}

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        ids, mask = (batch[name].flatten(0, 1) for name in ("input_ids", "attention_mask"))
        _, each, longest = batch["candidates"].shape
        steps = torch.arange(longest, device=ids.device)
        positions = batch["before"].repeat_interleave(each).unsqueeze(1) + steps
        return logits_at(model, {"input_ids": ids, "attention_mask": mask}, positions.clamp(max=ids.shape[1] - 1))


def _laid_out(candidates: Sequence[Candidates]) -> Batch:
    """`candidates` and `candidate_mask`, both (rows, choices, tokens)."""
    rows, most = len(candidates), max(map(len, candidates))
    ids = [one for some in candidates for one in (*some, *[()] * (most - len(some)))]
    ones = [[1] * len(one) for one in ids]
    return {
        "candidates": padded(ids).view(rows, most, -1),
        "candidate_mask": padded(ones).view(rows, most, -1),
    }


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
