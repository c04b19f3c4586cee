"""Small task files, data files and a tokenizer for the tests of `skillgraft.tasks`."""

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from skillgraft.tasks import Task, load_task

REVIEWS = """
name = "reviews"
train = "train.jsonl"
test = "test.jsonl"
text = "text"
labels = ["bad", "good"]
"""
CHOICES = """
name = "gaps"
train = "train.jsonl"
test = "test.jsonl"
text = "question"
choices = "choices"
"""


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_task(folder: Path, text: str, *, name: str = "task.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def make_task(folder: Path, text: str = REVIEWS, **splits: Iterable[Mapping[str, Any]]) -> Task:
    """The task of that text, with `train=`, `test=`, `validation=` rows beside it."""
    for split, rows in splits.items():
        write_lines(folder / f"{split}.jsonl", rows)
    return load_task(write_task(folder, text))


@cache
def tokenizer() -> Any:
    """A byte-level tokenizer without merges: one token per UTF-8 byte, `<s>` before and `</s>` after, `<mask>` is one."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["<s>", "</s>", "<mask>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*special, *alphabet])}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>", mask_token="<mask>")


@cache
def word_tokenizer() -> Any:
    """One token per word or sign, whatever the word, and the mask: lengths can be counted by eye."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({"<unk>": 0, "<mask>": 1}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", mask_token="<mask>")
