"""Label words as single tokens: a word that is several is refused, with its pieces and what would do instead."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from skillgraft.errors import InputError, listed
from skillgraft.tasks import Prompt, Task
from skillgraft.tasks.task import PromptKind

Narrow = Callable[[Tensor], Tensor]  # (rows, length, width) → what is wanted of it


def pretrained(model: nn.Module) -> Any:
    """The transformers model inside wrappers (peft, distributed, compiled)."""
    from transformers import PreTrainedModel

    return next((module for module in model.modules() if isinstance(module, PreTrainedModel)), model)


def logits_at(model: nn.Module, inputs: Mapping[str, Tensor], positions: Tensor) -> Tensor:
    """(rows, k, vocabulary) logits of a language model at `positions` (rows, k)."""
    return _logits(model, inputs, lambda states: _narrowed(states, positions))


def logits_of_tokens(model: nn.Module, inputs: Mapping[str, Tensor], rows: Tensor, positions: Tensor) -> Tensor:
    """(tokens, vocabulary) logits at single positions, each in its row: padding costs no logits."""
    return _logits(model, inputs, lambda states: states[rows, positions].unsqueeze(0))[0]


def _logits(model: nn.Module, inputs: Mapping[str, Tensor], narrow: Narrow) -> Tensor:
    with _narrowing(pretrained(model), narrow) as narrowed:
        logits: Tensor = model(**inputs).logits
    # Some models call a part of their body and not the body itself (OPT): then the logits are of every position.
    return logits if narrowed else narrow(logits)


@contextmanager
def _narrowing(inner: Any, narrowed_to: Narrow) -> Iterator[list[nn.Module]]:
    """The hook; the list it gives holds the body once its output has been narrowed."""
    narrowed: list[nn.Module] = []

    def narrow(body: nn.Module, _inputs: Any, output: Any) -> Any:
        narrowed.append(body)
        if isinstance(output, tuple):
            return (narrowed_to(output[0]), *output[1:])
        output.last_hidden_state = narrowed_to(output.last_hidden_state)
        return output

    if inner.base_model is inner:
        yield narrowed
        return
    handle = inner.base_model.register_forward_hook(narrow)
    try:
        yield narrowed
    finally:
        handle.remove()


def _narrowed(states: Tensor, positions: Tensor) -> Tensor:
    """(rows, length, width) → (rows, k, width)."""
    return states.gather(1, positions.unsqueeze(-1).expand(-1, -1, states.shape[-1]))


def prompt_of(task: Task, *kinds: PromptKind) -> Prompt:
    """The task's prompt of the first of these kinds that it has."""
    for kind in kinds:
        if kind in task.prompts:
            return task.prompts[kind]
    wanted = " or ".join(f"[prompt.{kind}]" for kind in kinds)
    found = listed(f"[prompt.{kind}]" for kind in task.prompts) or "no prompt"
    raise InputError(f"task {task.name!r}: the {kinds[0]} readout needs {wanted}; its file has {found}")


def words_by_label(task: Task, prompt: Prompt) -> dict[str, str]:
    return dict(zip(task.labels, prompt.words, strict=True))


def ending(prompt: Prompt) -> str:
    """The text that every filled prompt ends with, or a colon where it ends with a field."""
    last = prompt.template.parts[-1]
    return last if isinstance(last, str) else ":"


def without_eos(ids: Sequence[int], eos: int | None) -> list[int]:
    """A prompt that is to be continued cannot end with the end-of-text token, which some tokenizers append."""
    return list(ids[:-1] if len(ids) > 1 and ids[-1] == eos else ids)


Ids = Callable[[str], list[int]]


def masked_ids(tokenizer: Any, words: Sequence[str], *, task: str) -> tuple[int, ...]:
    """The token of each word at a mask.

    Byte-level BPE (RoBERTa) keeps the space before a word in its token, so words are looked up with one, as P1's code does;
    WordPiece and SentencePiece mark the beginning of a word by themselves.
    """
    space = " " if is_byte_level(tokenizer) else ""

    def ids(word: str) -> list[int]:
        return _plain_ids(tokenizer, [space + word if word[:1].isalnum() else word])[0]

    return _single_tokens(tokenizer, words, ids, where=f"task {task!r}, masked prompt", otherwise="")


def causal_ids(tokenizer: Any, words: Sequence[str], *, after: str, task: str) -> tuple[int, ...]:
    """The token of each word as it comes after the text `after`, the end of a prompt."""
    return _single_tokens(
        tokenizer,
        words,
        lambda word: continuations(tokenizer, after, [word])[0],
        where=f"task {task!r}, causal prompt",
        otherwise=", or use the choice readout, which scores whole words",
    )


def continuations(tokenizer: Any, before: str, texts: Sequence[str]) -> list[list[int]]:
    """The tokens that each text adds after `before`; its own where the two run together.

    SentencePiece puts a space before every text, so that a word alone and a word after a prompt differ.
    """
    start = _plain_ids(tokenizer, [before])[0]
    both = _plain_ids(tokenizer, [before + text for text in texts])
    apart = [index for index, ids in enumerate(both) if ids[: len(start)] != start]
    alone = dict(zip(apart, _plain_ids(tokenizer, [texts[index] for index in apart]), strict=True))
    return [alone.get(index, ids[len(start) :]) for index, ids in enumerate(both)]


def is_byte_level(tokenizer: Any) -> bool:
    """Whether the tokenizer works on bytes with the space inside the token (GPT-2, RoBERTa, ModernBERT)."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return False
    stage = json.loads(backend.to_str())["pre_tokenizer"] or {}
    return any(one.get("type") == "ByteLevel" for one in stage.get("pretokenizers", [stage]))


def _plain_ids(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    return list(tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]) if texts else []


def _single_tokens(tokenizer: Any, words: Sequence[str], ids: Ids, *, where: str, otherwise: str) -> tuple[int, ...]:
    found = []
    for word in words:
        tokens = ids(word)
        if not _is_one(tokenizer, tokens):
            pieces = listed((repr(piece) for piece in tokenizer.convert_ids_to_tokens(tokens)), most=8)
            is_known = tokenizer.unk_token_id not in tokens
            fact = f"is {len(tokens)} tokens here ({pieces})" if is_known else "is not in the vocabulary"
            raise InputError(f"{where}: the word {word!r} {fact}; {_instead(tokenizer, word, ids)}{otherwise}")
        found.append(tokens[0])
    twice = [word for word, token in zip(words, found, strict=True) if found.count(token) > 1]
    if twice:
        raise InputError(f"{where}: {listed(map(repr, twice))} are one and the same token; choose words that differ")
    return tuple(found)


def _is_one(tokenizer: Any, tokens: Sequence[int]) -> bool:
    return len(tokens) == 1 and tokens[0] != tokenizer.unk_token_id


def _instead(tokenizer: Any, word: str, ids: Ids) -> str:
    bare = word.strip()
    near = dict.fromkeys(
        (f" {bare}", bare, bare.lower(), bare.capitalize(), f" {bare.lower()}", f" {bare.capitalize()}")
    )
    single = [other for other in near if other != word and _is_one(tokenizer, ids(other))]
    return f"take {single[0]!r}, which is one token" if single else "choose a word that is one token"
