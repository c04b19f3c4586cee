"""Damage to any kind of input: bytes, JSON values, lines of text, and one file of a bundle. Seeded, so every run is the same."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from . import bundles
from .mutations import MUTATIONS, Mutation, cut_out, flip_bits, insert, odd, truncate

_PIECES = (
    *(
        b"\x00",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\x1b[2J",
        b"\r",
        b"\n\n",
        b"\t",
        b"\xed\xa0\x80",
        "\u202e\u2028é".encode(),
    ),
    *(
        b'"',
        b"'",
        b"\\",
        b"{",
        b"}",
        b"[" * 3000,
        b"]",
        b"[[",
        b",",
        b":",
        b"#",
        b"%s",
        b"=" * 100,
        b".a" * 3000,
        b"\\ud800",
    ),
    *(b"null", b"true", b"NaN", b"-Infinity", b"inf", b"1e999", b"9" * 5000, b"-1", b"0"),
    *(b"../", b"/dev/zero", b"hf:../..:x", b"{{mask}}", b"{x|limit:-1}"),
)


def splice(rng: random.Random, content: bytes) -> bytes:
    at = rng.randrange(len(content) + 1)
    return content[:at] + rng.choice(_PIECES) + content[at + rng.choice((0, 0, 1, 3)) :]


def double(rng: random.Random, content: bytes) -> bytes:
    low, high = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    return content[:high] + content[low:high] * rng.choice((1, 2, 50)) + content[high:]


def swap_lines(rng: random.Random, content: bytes) -> bytes:
    lines = content.split(b"\n")
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    return b"\n".join(lines)


def _spots(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a JSON value."""
    keys = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [spot for key, inner in keys for spot in ((value, key), *_spots(inner))]


def edit_json(rng: random.Random, content: bytes) -> bytes:
    """Another value, key, or no value at all at some spot of a JSON text; bytes that are none are damaged as bytes."""
    try:
        value = json.loads(content)
        container, key = rng.choice(_spots(value))
    except (ValueError, IndexError, RecursionError):
        return splice(rng, content)
    action = rng.randrange(4)
    if action == 0 and isinstance(container, dict):
        del container[key]
    elif action == 1 and isinstance(container, dict):
        container[rng.choice((f"{key}x", "", "\ud800", "a.b", "../x", "\x1b[2J"))] = container.pop(key)
    elif action == 2:
        other, place = rng.choice(_spots(value))
        container[key] = other[place] if not _holds(other[place], container) else None
    else:
        container[key] = odd(rng)
    return json.dumps(value).encode(errors="surrogatepass")


def _holds(value: Any, container: Any) -> bool:
    return value is container or any(inner is container for inner, _ in _spots(value)) or isinstance(value, dict | list)


BYTES: tuple[Mutation, ...] = (flip_bits, truncate, insert, cut_out, splice, splice, double, swap_lines)
JSON: tuple[Mutation, ...] = (*BYTES[:4], splice, *([edit_json] * 6))


def damage(rng: random.Random, name: str, content: bytes) -> bytes:
    """One file, damaged in a way that its kind has."""
    ways: Sequence[Mutation] = BYTES
    if name.endswith((".safetensors", ".undo")):
        ways = MUTATIONS if b'"scope_shapes"' in content else (*BYTES, *MUTATIONS[:7])
    elif name.endswith(".json"):
        ways = JSON
    try:
        return rng.choice(ways)(rng, content or b"0")
    except Exception:  # the way needs more structure than this content has
        return splice(rng, content)


def damage_bundle(names: Sequence[str]) -> Callable[[random.Random, bytes], bytes]:
    """One or two files of a bundle damaged, or one left out."""

    def mutation(rng: random.Random, content: bytes) -> bytes:
        files = bundles.unpack(content, names)
        for _ in range(rng.choice((1, 1, 1, 2))):
            name = rng.choice(list(files))
            files[name] = damage(rng, name, files[name])
        if len(files) > 1 and rng.random() < 0.02:
            del files[rng.choice(list(files))]
        return bundles.pack(files, names)

    return mutation
