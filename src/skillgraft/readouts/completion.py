"""Completion: the loss of a prompt's true continuation, token by token, and its next tokens for whoever generates.

    Encoded.inputs: input_ids of prompt and completion, `scored` of them in the completion, `cut` of the prompt left out

`scores` are next-token logits, (tokens, vocabulary), at every token of a batch's completions, and `labels` are those tokens: so
a mean cross-entropy is the loss per token of the completion alone. A prompt is tokenised exactly as it is when text is
generated after it. A completion is never cut: a row that has no room for it is refused. A prompt of plain text gives way at its
beginning, a row of text alone at its end, and every row that lost tokens is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from skillgraft.errors import InputError
from skillgraft.opening.source import Source
from skillgraft.readouts.readout import Batch, Encoded, Options, Plan
from skillgraft.readouts.rows import TextRows, model_inputs
from skillgraft.readouts.words import logits_of_tokens, without_eos
from skillgraft.tasks import Examples, Prompt, Task
from skillgraft.tasks.prompt import Row
from skillgraft.tasks.tables import shown
from skillgraft.tasks.task import Completing

Text = tuple[str, str]  # what is asked, and the same with its completion, as the tokenizer is given them


@dataclass(frozen=True)
class Completion:
    """`stops` are the tokens after which nothing more is generated."""

    task: Task
    style: Completing
    prompt: Prompt | None
    text: TextRows
    stops: tuple[int, ...]

    @property
    def settings(self) -> Mapping[str, Any]:
        return {
            "readout": "completion",
            "layout": self.style.layout,
            "chat": self.style.chat,
            "ends": self.style.ends,
            **({"template": self.prompt.template.text} if self.prompt else {}),
            "max_length": self.text.max_length,
        }

    def encode(self, examples: Examples) -> list[Encoded]:
        rows = list(examples.rows())
        laid_out = [self._chat(row) if self.style.chat else self._plain(row) for row in rows]
        prompts, wholes = (self._tokens([text[part] for text in laid_out]) for part in (0, 1))
        apart = [row for row, whole in enumerate(wholes) if whole[: len(prompts[row])] != prompts[row]]
        texts = [whole.removeprefix(asked) for asked, whole in (laid_out[row] for row in apart)]
        alone = dict(zip(apart, self._tokens(texts, special=False), strict=True))
        found = []
        for row, (prompt, whole) in enumerate(zip(prompts, wholes, strict=True)):
            answer = alone.get(row, whole[len(prompt) :])
            found.append(self._encoded(rows[row], row, prompt, answer))
        return found

    def collate(self, rows: Sequence[Encoded]) -> Batch:
        scored = [row.inputs["scored"] for row in rows]
        ends = [row.length for row in rows]
        # The token at position p is predicted at p - 1.
        places = [np.arange(end - count, end) - 1 for end, count in zip(ends, scored, strict=True)]
        tokens = [row.inputs["input_ids"][row.length - row.inputs["scored"] :] for row in rows]
        return {
            **self.text.padded([row.inputs["input_ids"] for row in rows]),
            "token_rows": torch.from_numpy(np.repeat(np.arange(len(rows)), scored)),
            "token_positions": torch.from_numpy(np.concatenate(places)),
            "labels": torch.from_numpy(np.concatenate(tokens).astype(np.int64)),
        }

    def scores(self, model: nn.Module, batch: Batch) -> Tensor:
        """(tokens, vocabulary) logits of the completions' tokens, row after row; `labels` are these tokens."""
        return logits_of_tokens(model, model_inputs(batch), batch["token_rows"], batch["token_positions"])

    def asked(self, row: Encoded) -> list[int]:
        """The tokens after which a completion is generated."""
        return list(row.inputs["input_ids"][: row.length - row.inputs["scored"]])

    def answer(self, tokens: Sequence[int]) -> str:
        """Generated tokens as text, up to the first that stops, without special tokens."""
        end = next((place for place, token in enumerate(tokens) if token in self.stops), len(tokens))
        decoded: str = self.text.tokenizer.decode(
            list(tokens[:end]), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return decoded.strip()

    def _plain(self, row: Row) -> Text:
        asked = self.prompt.render(row) if self.prompt else row["prompt"]
        return asked, asked + row["completion"]

    def _chat(self, row: Row) -> Text:
        """Both through the chat template. One that words earlier turns otherwise once they are answered gives no common
        beginning: then the answer follows as it is.
        """
        text = self.prompt.render(row) if self.prompt else row["prompt"]
        turns = [("user", text)] if isinstance(text, str) else list(text)
        asked = _filled(self.text.tokenizer, turns, add_generation_prompt=True)
        whole = _filled(self.text.tokenizer, [*turns, ("assistant", row["completion"])])
        # What the template writes after the answer's end (a line end) is no part of it.
        return asked, whole.rstrip() if whole.startswith(asked) else asked + row["completion"]

    def _tokens(self, texts: Sequence[str], *, special: bool | None = None) -> list[list[int]]:
        """Token ids, never with an end that the tokenizer appends. A chat template spells its special tokens itself."""
        if not texts:
            return []
        add = not self.style.chat if special is None else special
        found = self.text.tokenizer(list(texts), add_special_tokens=add, verbose=False)["input_ids"]
        appended = self.text.tokenizer.eos_token_id if add else None
        return [without_eos(ids, appended) for ids in found]

    def _encoded(self, row: Row, index: int, prompt: Sequence[int], answer: Sequence[int]) -> Encoded:
        answer = self._ended(answer)
        if not prompt:  # nothing comes before the first token: it is read and not scored
            prompt, answer = answer[:1], answer[1:]
        if self.style.layout == "text":
            kept, scored = prompt, answer[: max(0, self.text.max_length - len(prompt))]
        else:
            kept, scored = self._shortened(prompt, self.text.max_length - len(answer)), answer
        cut = len(prompt) + len(answer) - len(kept) - len(scored)
        if not scored or not kept or len(kept) + len(scored) > self.text.max_length:
            raise self._no_room(row, index, len(prompt), len(answer))
        ids = [*kept, *scored]
        shown_as = {"prompt": _question(row), "completion": row["completion"]}
        return Encoded({"input_ids": ids, "scored": len(scored), "cut": cut, **shown_as}, 0, len(ids), len(scored))

    def _ended(self, answer: Sequence[int]) -> list[int]:
        end = self.text.tokenizer.eos_token_id
        ended = answer[-1:] and answer[-1] in self.stops
        return [*answer] if ended or not self.style.ends or end is None else [*answer, end]

    def _shortened(self, prompt: Sequence[int], room: int) -> list[int]:
        """A plain prompt without its beginning (but with the token that begins every text); a chat is never cut."""
        if len(prompt) <= room or self.style.chat:
            return list(prompt)
        first = [token for token in prompt[:1] if token == self.text.tokenizer.bos_token_id]
        return [*first, *prompt[len(prompt) - room + len(first) :]] if room > len(first) else []

    def _no_room(self, row: Row, index: int, prompt: int, answer: int) -> InputError:
        most, longest = self.text.max_length, self.text.room
        needed = prompt + answer if self.style.chat else answer + 1
        todo = f"raise max_length to {needed}" if most < needed <= longest else "shorten or remove the row"
        if answer < 1 or prompt + answer < 2:
            return InputError(
                f"task {self.task.name!r}, row {index}: expected at least two tokens, found {prompt + answer}: "
                f"{shown(row['completion'])}; remove the row"
            )
        return InputError(
            f"task {self.task.name!r}, row {index}: its prompt has {prompt:,} tokens and its completion {answer:,}, but a row "
            f"has at most {most:,} (the model reads {longest:,}); a completion is never cut: {todo}: {shown(_question(row))}"
        )


def _filled(tokenizer: Any, turns: Iterable[tuple[str, str]], **options: Any) -> str:
    messages = [{"role": role, "content": content} for role, content in turns]
    filled: str = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    return filled


def _question(row: Row) -> str:
    """What is asked, for people: the prompt, or the last turn of a conversation."""
    prompt = row["prompt"]
    return prompt if isinstance(prompt, str) else str(prompt[-1][1])


def plan_completion(source: Source, tasks: Sequence[Task], options: Options) -> Plan:
    """For causal language models."""
    if source.config.is_encoder_decoder:
        raise InputError(
            f"{source.name}: the completion readout needs a causal language model; this is an encoder-decoder"
        )
    readouts = tuple(_readout(source, task, options) for task in tasks)
    return Plan("AutoModelForCausalLM", lambda _model: readouts, head="stored")


def _readout(source: Source, task: Task, options: Options) -> Completion:
    style = task.completing
    if style is None:
        raise InputError(
            f"task {task.name!r}: the completion readout needs a task of kind 'complete'; this is {task.kind!r}"
        )
    text = TextRows.of(source, options, max_length=task.max_length)
    if style.chat:
        _check_chat(source, text.tokenizer, task)
    return Completion(task, style, task.prompts.get("causal"), text, _stops(source, text.tokenizer))


def _check_chat(source: Source, tokenizer: Any, task: Task) -> None:
    """The template is tried before any row is read or weight loaded."""
    if not tokenizer.chat_template:
        raise InputError(
            f"task {task.name!r} is asked as a chat, but the tokenizer of {source.name} has no chat template: write "
            "chat = false and prompts as text, or use the model's chat variant"
        )
    from jinja2 import TemplateError

    try:
        _filled(tokenizer, [("user", "?")], add_generation_prompt=True)
    except (TemplateError, ValueError, TypeError) as error:
        raise InputError(f"{source.name}: its chat template cannot be filled: {error}") from error


def _stops(source: Source, tokenizer: Any) -> tuple[int, ...]:
    """The tokens that end an answer, as tokenizer and generation_config name them."""
    stated = source.json("generation_config.json", default={}).get("eos_token_id")
    named = stated if isinstance(stated, list) else [stated]
    ends = [tokenizer.eos_token_id, *named]
    return tuple(dict.fromkeys(token for token in ends if isinstance(token, int)))
