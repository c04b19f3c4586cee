"""How candidates are run through a model: behind an encoder, or as continuations of the prompt.

Both lay candidates out as (rows, choices, tokens), where rows with fewer choices are filled up with nothing, and give the
logits from which each candidate token is predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from skillgraft.readouts.positions import logits_at, pretrained
from skillgraft.readouts.prompting import without_eos
from skillgraft.readouts.readout import Batch
from skillgraft.readouts.text_rows import TextRows, padded
from skillgraft.readouts.words import continuations

Inputs = Mapping[str, Any]


class Ranker(Protocol):
    def answer_ids(self, answers: Sequence[str]) -> dict[str, list[int]]:
        """The tokens of each answer, as this kind of model is to produce them."""
        ...

    def inputs(self, prompt: Sequence[int], candidates: Sequence[Sequence[int]]) -> dict[str, Any]:
        """One row: `input_ids`, `candidates`, and `length`, the tokens of its longest sequence."""
        ...

    def collate(self, rows: Sequence[Inputs]) -> Batch: ...

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

    def inputs(self, prompt: Sequence[int], candidates: Sequence[Sequence[int]]) -> dict[str, Any]:
        return {"input_ids": prompt, "candidates": candidates, "length": len(prompt)}

    def collate(self, rows: Sequence[Inputs]) -> Batch:
        return {**self.text.padded([row["input_ids"] for row in rows]), **_laid_out(rows)}

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

    def inputs(self, prompt: Sequence[int], candidates: Sequence[Sequence[int]]) -> dict[str, Any]:
        ids = without_eos(prompt, self.text.tokenizer.eos_token_id)
        return {"input_ids": ids, "candidates": candidates, "length": len(ids) + max(map(len, candidates))}

    def collate(self, rows: Sequence[Inputs]) -> Batch:
        most = max(len(row["candidates"]) for row in rows)
        texts = [[*row["input_ids"], *candidate] for row in rows for candidate in _filled_up(row["candidates"], most)]
        tokens = {name: table.view(len(rows), most, -1) for name, table in self.text.padded(texts).items()}
        # The token at position p is predicted at p - 1.
        before = torch.tensor([len(row["input_ids"]) - 1 for row in rows])
        return {**tokens, "before": before, **_laid_out(rows)}

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        ids, mask = (batch[name].flatten(0, 1) for name in ("input_ids", "attention_mask"))
        _, each, longest = batch["candidates"].shape
        steps = torch.arange(longest, device=ids.device)
        positions = batch["before"].repeat_interleave(each).unsqueeze(1) + steps
        return logits_at(model, {"input_ids": ids, "attention_mask": mask}, positions.clamp(max=ids.shape[1] - 1))


def _laid_out(rows: Sequence[Inputs]) -> Batch:
    """`candidates` and `candidate_mask`, both (rows, choices, tokens)."""
    most = max(len(row["candidates"]) for row in rows)
    ids = [ids for row in rows for ids in (*row["candidates"], *[()] * (most - len(row["candidates"])))]
    ones = [[1] * len(candidate) for candidate in ids]
    width = max(map(len, ids))
    return {
        "candidates": padded(ids, width=width).view(len(rows), most, -1),
        "candidate_mask": padded(ones, width=width).view(len(rows), most, -1),
    }


def _filled_up(candidates: Sequence[Sequence[int]], most: int) -> list[Sequence[int]]:
    """The first one again where a row has fewer: a text without any token would make attention divide 0 by 0."""
    return [*candidates, *[candidates[0]] * (most - len(candidates))]
