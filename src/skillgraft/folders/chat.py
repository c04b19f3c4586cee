"""How a folder's model is talked to: its chat template, and when generation stops. Both travel with a graft.

A tuned chat model whose graft came without them would never know when to stop. What travels is a closed list, limited in size:
the template as text, of generation_config.json the keys below, and tokens that tuned appended (`folders.tokens`). The graft
holds them as its `chat` item, `inspect` shows them, `apply` writes them, and `remove` gives the base's own files back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from skillgraft.errors import FormatError, InputError, listed
from skillgraft.files.regular import CONFIG_BYTES, read_bytes
from skillgraft.folders.tokens import check_tokens, travelling_tokens
from skillgraft.folders.weight_files import read_json
from skillgraft.values.graft import Graft
from skillgraft.values.stream import GraftStream

TEMPLATE, GENERATION, TOKENIZER = "chat_template.jinja", "generation_config.json", "tokenizer_config.json"
MOST_CHARACTERS = 65_536  # of a template; the longest published ones have a quarter of it
TOKENS = ("eos_token_id", "bos_token_id", "pad_token_id")
_MOST_TOKENS = 64
# "template": text; "generation": key → a token's number or several; "tokens" that are new; "roles": role → a token's text
Chat = Mapping[str, Any]
_ITEMS = ("template", "generation", "tokens", "roles")


def travelling_chat(base: Path, tuned: Path) -> dict[str, Any] | None:
    """What tuned's folder says otherwise than base's; None where that is nothing."""
    template, before = _template(tuned), _template(base)
    ours, theirs = _generation(base), _generation(tuned)
    stops = {key: theirs[key] for key in TOKENS if key in theirs and theirs[key] != ours.get(key)}
    found: dict[str, Any] = {"template": template} if template and template != before else {}
    found |= {"generation": stops} if stops else {}
    found |= travelling_tokens(base, tuned)
    check_chat(found, str(tuned))
    return found or None


def check_chat(chat: Chat, file: str) -> None:
    """Refuse what is not of the closed list, or too long."""
    template, stops = chat.get("template", ""), chat.get("generation", {})
    if chat.keys() - set(_ITEMS):
        raise FormatError(f"{file}: of a chat a graft brings {listed(_ITEMS)}, found {', '.join(map(str, chat))}")
    check_tokens(chat, file)
    if not isinstance(template, str) or len(template) > MOST_CHARACTERS:
        found = f"{len(template):,} characters" if isinstance(template, str) else type(template).__name__
        raise InputError(f"{file}: a chat template is text of at most {MOST_CHARACTERS:,} characters, found {found}")
    odd = (
        [key for key, value in stops.items() if key not in TOKENS or not _is_tokens(value)]
        if isinstance(stops, dict)
        else ["?"]
    )
    if odd:
        raise InputError(
            f"{file}: of generation_config a graft sets {', '.join(TOKENS)} to tokens' numbers, found {odd[0]!r}"
        )


def agreed_chat(grafts: Sequence[Graft | GraftStream]) -> dict[str, Any]:
    """What several grafts bring, without that on which they disagree."""
    every = [graft.info["chat"] for graft in grafts if "chat" in graft.info]
    templates = {chat["template"] for chat in every if "template" in chat}
    stops = [chat.get("generation", {}) for chat in every]
    agreed = {k: v for mine in stops for k, v in mine.items() if all(other.get(k, v) == v for other in stops)}
    found: dict[str, Any] = {"template": templates.pop()} if len(templates) == 1 else {}
    found |= {"generation": agreed} if agreed else {}
    return {**found, **_agreed_tokens(every)}


def _agreed_tokens(every: Sequence[Chat]) -> dict[str, Any]:
    """All of the tokens that several grafts bring, each once; the roles that they agree on."""
    tokens: list[Any] = []
    for chat in every:
        tokens += [token for token in chat.get("tokens", ()) if token not in tokens]
    roles = [chat["roles"] for chat in every if "roles" in chat]
    agreed = {k: v for mine in roles for k, v in mine.items() if all(other.get(k, v) == v for other in roles)}
    found = {"tokens": tokens} if tokens else {}
    check_tokens(found, "together")
    return {**found, **({"roles": agreed} if agreed else {})}


def chat_files(folder: Path) -> dict[str, str]:
    """The two files as they are in a base, as text; one that is not there is left out."""
    return {
        name: read_bytes(folder / name, limit=CONFIG_BYTES).decode("latin-1")
        for name in (TEMPLATE, GENERATION)
        if (folder / name).is_file()
    }


def write_chat(base: Mapping[str, str], layers: Sequence[Chat], folder: Path) -> None:
    """The base's two files with what the layers set over them; the base's own bytes where that changes nothing."""
    template = next((chat["template"] for chat in reversed(layers) if "template" in chat), None)
    stops = {key: value for chat in layers for key, value in chat.get("generation", {}).items()}
    files = dict(base)
    if template is not None:
        files[TEMPLATE] = template.encode().decode("latin-1")
    if stops:
        before = _settings(base[GENERATION]) if GENERATION in base else {}
        files[GENERATION] = (json.dumps({**before, **stops}, indent=2) + "\n").encode().decode("latin-1")
    for name in (TEMPLATE, GENERATION):
        if name in files:
            (folder / name).write_bytes(files[name].encode("latin-1"))
        else:
            (folder / name).unlink(missing_ok=True)


def _settings(text: str) -> dict[str, Any]:
    """What the base's generation_config.json says."""
    try:
        found = json.loads(text.encode("latin-1"))
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"the base's {GENERATION} is not valid JSON, so no graft can set tokens in it: {error}"
        ) from None
    if not isinstance(found, dict):
        raise FormatError(f"the base's {GENERATION} holds no JSON object, so no graft can set tokens in it")
    return found


def _template(folder: Path) -> str:
    """In a file of its own, or, as older versions wrote it, among the tokenizer's settings."""
    if (folder / TEMPLATE).is_file():
        try:
            return read_bytes(folder / TEMPLATE, limit=CONFIG_BYTES).decode()
        except UnicodeDecodeError as error:
            raise FormatError(f"{folder / TEMPLATE} is not text in UTF-8: {error}") from None
    inside = read_json(folder / TOKENIZER).get("chat_template") if (folder / TOKENIZER).is_file() else None
    return inside if isinstance(inside, str) else ""


def _generation(folder: Path) -> dict[str, Any]:
    return read_json(folder / GENERATION) if (folder / GENERATION).is_file() else {}


def _is_tokens(value: Any) -> bool:
    several = value if isinstance(value, list) else [value]
    return len(several) <= _MOST_TOKENS and all(type(one) is int and 0 <= one < 2**31 for one in several)
