"""Which readout fits a model and a task, from config.json and file names alone: no weights, no tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from skillgraft.errors import InputError
from skillgraft.readouts.source import Source
from skillgraft.tasks import Task

_SENTENCE_FILES = ("modules.json", "sentence_bert_config.json")
_MASKED = ("ForMaskedLM", "BertForPreTraining")  # ElectraForPreTraining has no masked-LM head
_CAUSAL = ("ForCausalLM", "LMHeadModel")


def choose_readout(base: str | Path, task: Task) -> tuple[str, str]:
    """The readout's name, and why, in words for a log line."""
    source = Source.of(base)
    for name, reason in _fitting(source, task):
        return name, reason
    raise InputError(
        f"no readout fits {source.name} ({_architecture(source) or 'unknown architecture'}) and the multiple-choice task "
        f"{task.name!r}: a language model needs a [prompt] table in its file, an encoder a [describe] table"
    )


def _fitting(source: Source, task: Task) -> Iterator[tuple[str, str]]:
    """Every readout that fits, the best first."""
    kind = "a GGUF file" if source.gguf else _architecture(source)
    if task.kind == "image" or kind.endswith("Classification"):
        yield from _by_label(source, task, kind)
        return
    if any(source.file(name) for name in _SENTENCE_FILES) and task.describe:
        yield "text-head", f"a sentence encoder, and {task.name} has descriptions"
    if kind.endswith(_MASKED) and "masked" in task.prompts:
        yield "masked", f"{kind} has a masked-LM head, and {task.name} a masked prompt"
    yield from _generating(source, task, kind)
    if task.describe and (task.kind == "choice" or source.settings.get("model_type") == "clip"):
        yield "text-head", f"{kind or 'an encoder'} embeds texts, and {task.name} has descriptions"
    if task.kind != "choice":
        yield "linear", f"{kind or 'its architecture'} and the prompts of {task.name} fit no other readout"


def _by_label(source: Source, task: Task, kind: str) -> Iterator[tuple[str, str]]:
    if task.kind == "image" and source.settings.get("model_type") == "clip" and task.describe:
        yield "text-head", f"CLIP embeds images and texts alike, and {task.name} has descriptions"
    if task.kind != "choice":
        yield "linear", f"{kind or 'its architecture'} is read with a classifier"


def _generating(source: Source, task: Task, kind: str) -> Iterator[tuple[str, str]]:
    is_seq2seq = bool(source.settings.get("is_encoder_decoder"))
    is_causal = bool(source.gguf) or kind.endswith(_CAUSAL)
    can_rank = "choice" in task.prompts or "causal" in task.prompts
    if is_seq2seq and can_rank:
        yield "choice", f"{kind} is a seq2seq model: it ranks whole answers"
    if is_causal and task.kind == "choice" and can_rank:
        yield "choice", f"{kind} is a causal language model, and {task.name} is multiple choice"
    if is_causal and "causal" in task.prompts:
        yield "causal", f"{kind} is a causal language model, and {task.name} has a causal prompt"
    if is_causal and can_rank:
        yield "choice", f"{kind} is a causal language model, and {task.name} has answers to rank"


def _architecture(source: Source) -> str:
    stated = source.settings.get("architectures") or [""]
    return str(stated[0])
