"""The vocabularies of base and tuned; tokens that tuned appended, chat markers and the like, which travel with a graft.

A tokenizer is large and a graft small, so what travels is what was added: the entries of tokenizer.json's `added_tokens`, and
which tokens begin, end and pad a text. They are a part of the graft's `chat` item; the embeddings' new rows are tails
(`values.tails`). In the copy the base's three files get them, and wait beside it under another name until they come off.

Refused: a vocabulary that differs in anything else, tokens whose numbers or texts the base has already, too many of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from skillgraft.errors import FormatError, InputError, listed
from skillgraft.files.regular import VOCABULARY_BYTES, read_bytes
from skillgraft.folders.beside import copy_file
from skillgraft.folders.weight_files import read_json

VOCABULARY, SETTINGS, SPECIAL = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"
FILES = (VOCABULARY, SETTINGS, SPECIAL)
ROLES = ("bos_token", "eos_token", "pad_token")
MOST_TOKENS, MOST_CHARACTERS = 65_536, 1_000  # of a graft; of a token
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_KEYS = {"id", "content", *_FLAGS}
Token = Mapping[str, Any]


def kept_as(name: str) -> str:
    """What the base's own file is called beside the copy's: `tokenizer.base.json`."""
    return f"{Path(name).stem}.base{Path(name).suffix}"


OWN = (*FILES, *map(kept_as, FILES))  # files of a copy that are not copied like the others


def check_same_vocabulary(base: Path, tuned: Path) -> None:
    """Compare the first tokenizer file that both folders have; settings such as padding do not count.

    Tokens that tuned's tokenizer.json has besides the base's travel with the graft.
    """
    for name, tokens in _VOCABULARIES.items():
        ours, theirs = base / name, tuned / name
        if ours.is_file() and theirs.is_file():
            before, after = tokens(ours), tokens(theirs)
            more = name == VOCABULARY and before[:-1] == after[:-1] and appended(base, tuned) is not None
            if before != after and not more:
                raise InputError(
                    f"the tokenizers differ: {ours} and {theirs} do not have the same tokens; a graft needs one vocabulary, to "
                    "which tokens may have been added at the end"
                )
            return


def _bytes(path: Path) -> bytes:
    return read_bytes(path, limit=VOCABULARY_BYTES)


def _object(path: Path) -> dict[str, Any]:
    return read_json(path, limit=VOCABULARY_BYTES)


def _tokens(path: Path) -> Any:
    """Vocabulary, merges and added tokens of a tokenizer.json."""
    content = _object(path)
    try:
        model, added = content.get("model") or {}, content.get("added_tokens") or []
        # Newer files spell a merge as a pair, older ones as two words.
        merges = [" ".join(merge) if isinstance(merge, list) else merge for merge in model.get("merges") or []]
        return model.get("vocab"), merges, {(token["id"], token["content"]) for token in added}
    except (AttributeError, KeyError, TypeError) as error:
        raise FormatError(f"{path}: not a tokenizer ({error!r})") from None


# Tokenizer file → what in it makes the vocabulary.
_VOCABULARIES: Mapping[str, Callable[[Path], Any]] = {
    VOCABULARY: _tokens,
    "vocab.json": _object,
    "vocab.txt": _bytes,
    "spiece.model": _bytes,
    "sentencepiece.bpe.model": _bytes,
    "tokenizer.model": _bytes,
}


def appended(base: Path, tuned: Path) -> list[dict[str, Any]] | None:
    """The tokens that only tuned's tokenizer.json has; None unless all of base's are there, unchanged, under their numbers."""
    ours, theirs = (_vocabulary(folder / VOCABULARY) for folder in (base, tuned))
    before, after = ({(t["id"], t["content"]) for t in _added(each)} for each in (ours, theirs))
    new = [token for token in _added(theirs) if (token["id"], token["content"]) not in before]
    if not before <= after or _clashing(ours, new):
        return None
    return [{key: token[key] for key in ("id", "content", *_FLAGS) if key in token} for token in new]


def travelling_tokens(base: Path, tuned: Path) -> dict[str, Any]:
    """Of the `chat` item what tokens that were appended need; nothing where none were."""
    if not (base / VOCABULARY).is_file() or not (tuned / VOCABULARY).is_file():
        return {}
    tokens = appended(base, tuned)
    if not tokens:
        return {}
    ours, theirs = _roles(base), _roles(tuned)
    roles = {role: text for role, text in theirs.items() if ours.get(role) != text}
    return {"tokens": tokens, **({"roles": roles} if roles else {})}


def check_tokens(chat: Mapping[str, Any], file: str) -> None:
    """Refuse what are no tokens, or too many."""
    tokens, roles = chat.get("tokens", []), chat.get("roles", {})
    if not isinstance(tokens, list) or len(tokens) > MOST_TOKENS:
        found = f"{len(tokens):,}" if isinstance(tokens, list) else type(tokens).__name__
        raise InputError(f"{file}: a graft brings a list of at most {MOST_TOKENS:,} tokens, found {found}")
    odd = next((token for token in tokens if not _is_token(token)), None)
    if odd is not None:
        raise InputError(
            f"{file}: a token that a graft brings has an id, a content of at most {MOST_CHARACTERS:,} characters and "
            f"{', '.join(_FLAGS)} (true or false), found {odd!r:.80}"
        )
    if not isinstance(roles, dict) or not all(role in ROLES and _is_text(text) for role, text in roles.items()):
        raise InputError(
            f"{file}: of a tokenizer's settings a graft sets {', '.join(ROLES)} to texts, found {roles!r:.80}"
        )
    if twice := _twice(tokens):
        raise InputError(f"{file}: two of its tokens have one number or one text: {listed(twice)}")


def tokens_of(chat: Mapping[str, Any]) -> list[Token]:
    """The tokens of an unchecked `chat` item that are sound enough to be shown."""
    tokens = chat.get("tokens", [])
    return [token for token in tokens if _is_token(token)] if isinstance(tokens, list) else []


def check_new(folder: Path, chat: Mapping[str, Any], *, rows: int | None, file: str) -> None:
    """Raise unless the folder's tokenizer can take these tokens, each with a row among the model's `rows`."""
    tokens = chat.get("tokens", [])
    if not tokens:
        return
    if not (folder / VOCABULARY).is_file():
        raise InputError(f"{file} brings {len(tokens)} tokens, but {folder} has no {VOCABULARY} to add them to")
    if clash := _clashing(_vocabulary(folder / VOCABULARY), tokens):
        raise InputError(
            f"{file} brings tokens whose numbers or texts the tokenizer of {folder} has already: {listed(clash)}; "
            "it was made for a base without them"
        )
    beyond = [token["content"] for token in tokens if rows is not None and token["id"] >= rows]
    if beyond:
        raise InputError(
            f"{file} brings tokens that no row of the embeddings belongs to ({rows} rows): {listed(beyond)}"
        )


def write_tokens(source: Path, layers: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """The base's three files with what the layers add, the base's own beside them; the base's alone where nothing is added."""
    tokens = list({token["id"]: token for chat in layers for token in chat.get("tokens", ())}.values())
    roles = {role: text for chat in layers for role, text in chat.get("roles", {}).items()}
    for name, add in ((VOCABULARY, _with_tokens), (SETTINGS, _with_roles), (SPECIAL, _with_roles)):
        kept, own = source / kept_as(name), source / name
        original = kept if kept.is_file() else own
        if not original.is_file():
            continue
        if not tokens:
            copy_file(original, folder / name)
            continue
        copy_file(original, folder / kept_as(name))
        read = _vocabulary if name == VOCABULARY else read_json
        content = add(read(original), tokens, roles)
        copy_file(original, folder / name)  # its permissions
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def refuse_kept_names(source: Path) -> None:
    """Refuse a base that has files of the names that its own are to wait under."""
    taken = [name for name in map(kept_as, FILES) if (source / name).exists()]
    if taken:
        raise InputError(f"{source} has {listed(taken)}, under which its tokenizer would be kept; rename them")


def _with_tokens(content: Any, tokens: Iterable[Token], _roles: Mapping[str, str]) -> Any:
    return {**content, "added_tokens": sorted([*(content.get("added_tokens") or []), *tokens], key=lambda t: t["id"])}


def _with_roles(content: Any, tokens: Iterable[Token], roles: Mapping[str, str]) -> Any:
    decoder = content.get("added_tokens_decoder")
    if isinstance(decoder, dict):
        added = {str(token["id"]): {k: v for k, v in token.items() if k != "id"} for token in tokens}
        content = {**content, "added_tokens_decoder": {**decoder, **added}}
    return {**content, **roles}


def _clashing(content: Mapping[str, Any], tokens: Iterable[Token]) -> list[str]:
    """The tokens' texts whose number or text a tokenizer.json has already."""
    words, added = _words(content), _added(content)
    texts = {*words, *(token["content"] for token in added)}
    numbers = {*words.values(), *(token["id"] for token in added)}
    return [str(token["content"]) for token in tokens if token["content"] in texts or token["id"] in numbers]


def _vocabulary(path: Path) -> dict[str, Any]:
    """A tokenizer.json whose words and tokens have the form that is relied on."""
    content = read_json(path, limit=VOCABULARY_BYTES)
    added = content.get("added_tokens") or []
    if not isinstance(added, list) or not all(_is_numbered(token) for token in added):
        raise FormatError(f"{path}: not a tokenizer: expected added_tokens, a list of objects with an id and a content")
    if not all(isinstance(text, str) and type(number) is int for text, number in _words(content).items()):
        raise FormatError(f"{path}: not a tokenizer: expected a vocabulary of texts and their numbers")
    return content


def _is_numbered(token: Any) -> bool:
    return isinstance(token, dict) and type(token.get("id")) is int and isinstance(token.get("content"), str)


def _added(content: Mapping[str, Any]) -> list[Any]:
    return content.get("added_tokens") or []


def _words(content: Mapping[str, Any]) -> Mapping[Any, Any]:
    """Word → number. Unigram models have pairs of a text and its weight, in the order of their numbers."""
    model = content.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, list):
        return {_first(pair): number for number, pair in enumerate(vocabulary)}
    return vocabulary if isinstance(vocabulary, dict) else {}


def _first(pair: Any) -> Any:
    """A pair's text; None for what is no pair."""
    return pair[0] if isinstance(pair, list) and pair and isinstance(pair[0], str) else None


def _roles(folder: Path) -> dict[str, str]:
    """Which texts begin, end and pad: as the settings say, or in older folders the map of special tokens."""
    found: dict[str, str] = {}
    for name in (SPECIAL, SETTINGS):
        content = read_json(folder / name) if (folder / name).is_file() else {}
        for role in ROLES:
            value = content.get(role)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                found[role] = text
    return found


def _twice(tokens: Iterable[Token]) -> list[str]:
    numbers: set[int] = set()
    texts: set[str] = set()
    found = []
    for token in tokens:
        if token["id"] in numbers or token["content"] in texts:
            found.append(str(token["content"]))
        numbers.add(token["id"])
        texts.add(token["content"])
    return found


def _is_token(token: Any) -> bool:
    if not isinstance(token, dict) or not {"id", "content"} <= token.keys() <= _KEYS:
        return False
    number, flags = token["id"], [token[key] for key in _FLAGS if key in token]
    counts = isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 2**31
    return counts and _is_text(token["content"]) and all(isinstance(flag, bool) for flag in flags)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MOST_CHARACTERS
