"""Ways to damage a graft file, from a flipped bit to a header that means something else. Seeded, so every run is the same."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from .raw_file import RawFile, with_header

Mutation = Callable[[random.Random, bytes], bytes]

_ODD_VALUES: tuple[Any, ...] = (
    *(0, 1, -1, 2**31, 2**63, 2**64, -(2**63), 10**4000, 1.5, 1e300, float("nan"), float("inf"), True, False, None),
    *(
        "",
        "0",
        "F32",
        "\ud800",
        "x" * 3000,
        [],
        [[]],
        [0, 0],
        {},
        {"a": 1},
        [2**40, 2**40],
        [1] * 70,
        [0, 2**62, 2**62],
    ),
)
_ODD_TEXTS = (
    "",
    "nan",
    "-inf",
    "1e999",
    "{}",
    "[]",
    "null",
    "true",
    "9" * 5000,
    "[" * 5000,
    '{"a":1,"a":2}',
    "\x00",
    '"\\ud800"',
)
_SHAPE_BOMBS = (
    [2**40, 2**40],
    [10**9] * 2000,
    [10**18] * 64,
    [0] * 65,
    [int("9" * 4000)],
    [0, 2**62],
    [-1, -4],
    [4.0],
    ["4"],
    [[4]],
)
_TAGS = ("F64", "F32", "F16", "BF16", "I64", "I32", "U8", "BOOL", "F8_E4M3", "C64", "f32", "")


def odd(rng: random.Random) -> Any:
    """One of the odd values, of its own: a later change of it is no change of the table."""
    return copy.deepcopy(rng.choice(_ODD_VALUES))


def flip_bits(rng: random.Random, content: bytes) -> bytes:
    result = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 3, 20))):
        result[rng.randrange(len(result))] ^= 1 << rng.randrange(8)
    return bytes(result)


def truncate(rng: random.Random, content: bytes) -> bytes:
    return content[: rng.randrange(len(content))]


def insert(rng: random.Random, content: bytes) -> bytes:
    at = rng.choice((rng.randrange(len(content) + 1), len(content), 8, 0))
    return content[:at] + rng.randbytes(rng.choice((1, 8, 100))) + content[at:]


def cut_out(rng: random.Random, content: bytes) -> bytes:
    low = rng.randrange(len(content))
    return content[:low] + content[low + rng.choice((1, 4, 8, 50)) :]


def lie_about_the_length(rng: random.Random, content: bytes) -> bytes:
    length = int.from_bytes(content[:8], "little")
    lie = rng.choice((0, 1, length - 1, length + 1, length + 8, 10**7, 2**40, 2**64 - 1))
    return lie.to_bytes(8, "little") + content[8:]


def splice_header_text(rng: random.Random, content: bytes) -> bytes:
    """Text that JSON has a meaning for, put anywhere into the header."""
    raw = RawFile.of(content)
    text = json.dumps(raw.header)
    at = rng.randrange(len(text))
    piece = rng.choice(
        (",", "{", "}", "[" * 2000, "NaN", "-", "1e999", "\\ud800", '"', " ", "\n", "0", "9" * 5000, '"a":1,')
    )
    return with_header((text[:at] + piece + text[at:]).encode(), raw.data)


def _edit(change: Callable[[random.Random, RawFile], None]) -> Mutation:
    def mutation(rng: random.Random, content: bytes) -> bytes:
        raw = RawFile.of(content)
        change(rng, raw)
        return raw.content()

    return mutation


def _some_dict(rng: random.Random, raw: RawFile) -> dict[str, Any]:
    return rng.choice([raw.header, raw.metadata, *(raw.header[name] for name in raw.names)])


def odd_value(rng: random.Random, raw: RawFile) -> None:
    chosen = _some_dict(rng, raw)
    if chosen:
        chosen[rng.choice(list(chosen))] = odd(rng)


def odd_number(rng: random.Random, raw: RawFile) -> None:
    if raw.names:
        numbers = raw.header[rng.choice(raw.names)][rng.choice(("shape", "data_offsets"))]
        numbers[rng.randrange(len(numbers) + 1) :] = [odd(rng)]


def odd_text(rng: random.Random, raw: RawFile) -> None:
    raw.metadata[rng.choice(list(raw.metadata))] = rng.choice(_ODD_TEXTS)


def shape_bomb(rng: random.Random, raw: RawFile) -> None:
    shapes = json.loads(raw.metadata["scope_shapes"])
    shapes[rng.choice([*shapes, "more"])] = copy.deepcopy(rng.choice(_SHAPE_BOMBS))
    raw.metadata["scope_shapes"] = json.dumps(shapes)


def drop_key(rng: random.Random, raw: RawFile) -> None:
    chosen = _some_dict(rng, raw)
    if chosen:
        del chosen[rng.choice(list(chosen))]


def rename_key(rng: random.Random, raw: RawFile) -> None:
    chosen = _some_dict(rng, raw)
    if chosen:
        old = rng.choice(list(chosen))
        new = rng.choice(
            (old + "x", old[:-1], old.upper(), "", ".indices", "w.head", "\ud800", old.replace("before", "bitmap"))
        )
        chosen[new] = chosen.pop(old)


def repeat_key(rng: random.Random, content: bytes) -> bytes:
    raw = RawFile.of(content)
    name = rng.choice(list(raw.header))
    text = json.dumps(raw.header)
    return with_header((text[:-1] + f",{json.dumps(name)}:{json.dumps(raw.header[name])}}}").encode(), raw.data)


def swap_tensors(rng: random.Random, raw: RawFile) -> None:
    """Two tensors exchange their whole entries, or one field of them."""
    if len(raw.names) >= 2:
        a, b = (raw.header[name] for name in rng.sample(raw.names, 2))
        for field in rng.choice((("data_offsets",), ("dtype",), ("shape",), ("dtype", "shape", "data_offsets"))):
            a[field], b[field] = b[field], a[field]


def other_dtype(rng: random.Random, raw: RawFile) -> None:
    if raw.names:
        raw.header[rng.choice(raw.names)]["dtype"] = rng.choice(_TAGS)


def move_indices(rng: random.Random, raw: RawFile) -> None:
    """Indices that are unsorted, repeated, negative or out of range; or bits of a bitmap."""
    names = [name for name in raw.names if name.endswith((".indices", ".bitmap"))]
    if names:
        name = rng.choice(names)
        array = raw.array(name)
        largest = np.iinfo(array.dtype).max
        array[rng.randrange(len(array))] = (
            rng.choice((0, 1, 3, 17, 63, 64, 255, largest, largest - 1, -1, -(2**31))) & largest
        )
        raw.put(name, rng.choice((array, array[::-1], -array)))


def spoil_numbers(rng: random.Random, raw: RawFile) -> None:
    names = [name for name in raw.names if name.endswith((".before", ".values", ".delta", ".head"))]
    names = [name for name in names if raw.header[name]["dtype"] in ("F64", "F32", "F16")]
    if names:
        name = rng.choice(names)
        array = raw.array(name)
        array[rng.randrange(len(array))] = rng.choice((np.nan, np.inf, -np.inf, -0.0, 1e-7, 6e4))
        raw.put(name, array)


def twice(rng: random.Random, raw: RawFile) -> None:
    """Two changes: what only a combination shows. The first leaves a file that the second can work on."""
    rng.choice((move_indices, spoil_numbers, swap_tensors, odd_text))(rng, raw)
    rng.choice((odd_text, other_dtype, odd_value, drop_key, rename_key))(rng, raw)


_EDITS = (
    *(odd_value, odd_number, odd_text, shape_bomb, drop_key, rename_key),
    *(swap_tensors, other_dtype, move_indices, spoil_numbers, twice),
)
MUTATIONS: tuple[Mutation, ...] = (
    *(flip_bits, truncate, insert, cut_out, lie_about_the_length, splice_header_text, repeat_key),
    *map(_edit, _EDITS),
)
