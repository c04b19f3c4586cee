"""How candidates are run through a model: behind an encoder, or as continuations of the prompt.

Both lay candidates out as (rows, choices, tokens), where rows with fewer choices are filled up with nothing, and give the
logits from which each candidate token is predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from skillgraft.readouts.positions import logits_at, pretrained
from skillgraft.readouts.prompting import without_eos
from skillgraft.readouts.readout import Batch, Encoded
from skillgraft.readouts.text_rows import TextRows, padded
from skillgraft.readouts.words import continuations

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
