"""A GGUF file's header, walked once before another package reads the file: every count and length is held against its size.

The format: magic, version, how many tensors and how many settings; then the settings (name, type, value) and for each tensor
name, dimensions, type and offset. The package `gguf` believes the counts; here a file that promises more than it has is refused.

    check_gguf(Path("model.gguf"))
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

from skillgraft.errors import FormatError, InputError
from skillgraft.files.regular import opened

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MOST = 1_000_000  # settings, or tensors; vocabularies are values of arrays and counted by their bytes
_LONGEST_NAME = 65_536
_MOST_DIMENSIONS = 4
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_TEXT, _ARRAY = 8, 9


class _Walk:
    """A place in the file that only moves forward, and never beyond the end."""

    def __init__(self, content: mmap.mmap) -> None:
        self.content, self.place = content, 0

    def skip(self, count: int) -> int:
        start = self.place
        if count > len(self.content) - start:
            raise FormatError(
                f"truncated: {count:,} bytes are needed at byte {start:,}, the file has {len(self.content):,}"
            )
        self.place = start + count
        return start

    def number(self, form: str) -> int:
        return int(struct.unpack_from(f"<{form}", self.content, self.skip(struct.calcsize(f"<{form}")))[0])

    def text(self, most: int | None = None) -> bytes:
        length = self.number("Q")
        if most is not None and length > most:
            raise FormatError(f"a name of {length:,} bytes, the most that is read is {most:,}")
        start = self.skip(length)
        return self.content[start : self.place]


def check_gguf(path: Path) -> None:
    """Raise a FormatError where the header promises what the file does not hold."""
    try:
        with opened(path) as file:
            if os.fstat(file.fileno()).st_size < 24:
                raise FormatError("not a GGUF file: shorter than its header")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                _check(_Walk(content))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None


def _check(walk: _Walk) -> None:
    if walk.content[walk.skip(4) : 4] != _MAGIC:
        raise FormatError("not a GGUF file: it does not begin with GGUF")
    version = walk.number("I")
    if version not in _VERSIONS:
        raise FormatError(f"GGUF version {version}, expected one of {', '.join(map(str, _VERSIONS))}")
    tensors, settings = walk.number("Q"), walk.number("Q")
    if max(tensors, settings) > _MOST:
        raise FormatError(f"{tensors:,} tensors and {settings:,} settings, the most that is read is {_MOST:,}")
    _unique([_setting(walk) for _ in range(settings)], "setting")
    _unique([_tensor(walk, len(walk.content)) for _ in range(tensors)], "tensor")


def _unique(names: list[bytes], what: str) -> None:
    if len(set(names)) < len(names):
        raise FormatError(f"two {what}s of one name")


def _setting(walk: _Walk) -> bytes:
    name = walk.text(_LONGEST_NAME)
    _value(walk, walk.number("I"), depth=0)
    return name


def _value(walk: _Walk, kind: int, *, depth: int) -> None:
    if kind in _SIZES:
        walk.skip(_SIZES[kind])
    elif kind == _TEXT:
        walk.text()
    elif kind == _ARRAY and depth == 0:
        inner, count = walk.number("I"), walk.number("Q")
        if inner in _SIZES:
            walk.skip(count * _SIZES[inner])
        else:
            for _ in range(_possible(walk, count)):
                _value(walk, inner, depth=1)
    else:
        raise FormatError(f"a value of the unknown type {kind}")


def _possible(walk: _Walk, count: int) -> int:
    """A count of texts, each of which takes eight bytes at least."""
    if count * 8 > len(walk.content):
        raise FormatError(f"an array of {count:,} texts, the file has {len(walk.content):,} bytes")
    return count


def _tensor(walk: _Walk, size: int) -> bytes:
    name, dimensions = walk.text(_LONGEST_NAME), walk.number("I")
    if not 0 < dimensions <= _MOST_DIMENSIONS:
        raise FormatError(f"a tensor of {dimensions} dimensions, the most that is read is {_MOST_DIMENSIONS}")
    entries = 1
    for _ in range(dimensions):
        entries *= walk.number("Q")
    walk.number("I")
    if walk.number("Q") > size or entries > 16 * size:  # no format takes less than half a bit an entry
        raise FormatError(f"a tensor of {entries:,} entries reaches beyond the file's {size:,} bytes")
    return name
