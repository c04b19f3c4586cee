"""Whether two model folders read text with the same tokens, as far as their files tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from skillgraft.errors import FormatError, InputError
from skillgraft.weight_files import read_json


def check_same_vocabulary(base: Path, tuned: Path) -> None:
    """Compare the first tokenizer file that both folders have; settings such as padding do not count."""
    for name, tokens in _VOCABULARIES.items():
        ours, theirs = base / name, tuned / name
        if ours.is_file() and theirs.is_file():
            if tokens(ours) != tokens(theirs):
                raise InputError(
                    f"the tokenizers differ: {ours} and {theirs} do not have the same tokens; a graft needs one vocabulary"
                )
            return


def _tokens(path: Path) -> Any:
    """Vocabulary, merges and added tokens of a tokenizer.json."""
    content = read_json(path)
    try:
        model, added = content.get("model") or {}, content.get("added_tokens") or []
        # Newer files spell a merge as a pair, older ones as two words.
        merges = [" ".join(merge) if isinstance(merge, list) else merge for merge in model.get("merges") or []]
        return model.get("vocab"), merges, {(token["id"], token["content"]) for token in added}
    except (AttributeError, KeyError, TypeError) as error:
        raise FormatError(f"{path}: not a tokenizer ({error!r})") from None


# Tokenizer file → what in it makes the vocabulary.
_VOCABULARIES: Mapping[str, Callable[[Path], Any]] = {
    "tokenizer.json": _tokens,
    "vocab.json": read_json,
    "vocab.txt": Path.read_bytes,
    "spiece.model": Path.read_bytes,
    "sentencepiece.bpe.model": Path.read_bytes,
    "tokenizer.model": Path.read_bytes,
}
