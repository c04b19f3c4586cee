"""Compressed files, unpacked within a stated limit: an archive of a few megabytes can claim, or be, a disk full of zeros.

    most = most_unpacked(packed_bytes)          # eight times the file, and 256 MB are always allowed
    arrays = read_npz(path, ["images", "labels"])

Never unpickles. Whatever numpy's and zipfile's readers raise about truncated, encrypted or hostile bytes is one error here.
"""

from __future__ import annotations

import gzip
import io
import os
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from skillgraft.errors import InputError
from skillgraft.files.regular import opened

ALWAYS_UNPACKED = 256_000_000
TIMES_UNPACKED = 8
_UNREADABLE = (
    *(ValueError, KeyError, TypeError, AttributeError, IndexError, EOFError, OSError, MemoryError, OverflowError),
    *(RuntimeError, NotImplementedError, SyntaxError, tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)


def most_unpacked(packed_bytes: int) -> int:
    """How many bytes a compressed file of this size may unpack to."""
    return max(ALWAYS_UNPACKED, TIMES_UNPACKED * packed_bytes)


def read_npz(path: Path, names: Sequence[str], *, others: bool = True) -> dict[str, npt.NDArray[Any]]:
    """These arrays of a numpy archive; without `others` it must hold nothing else. A missing file is Python's own error."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            return _arrays(file, size, names, others=others)
        except InputError:
            raise
        except _UNREADABLE as error:
            raise InputError(f"not a readable .npz file ({type(error).__name__}: {error!s:.200})") from None


def names_in(path: Path) -> frozenset[str]:
    """The names of an archive's arrays; what is no archive is refused."""
    with opened(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                return frozenset(name.removesuffix(".npy") for name in archive.namelist())
        except _UNREADABLE as error:
            raise InputError(f"not a readable .npz file ({type(error).__name__})") from None


def _arrays(file: BinaryIO, size: int, names: Sequence[str], *, others: bool) -> dict[str, npt.NDArray[Any]]:
    with zipfile.ZipFile(file) as archive:
        held = {info.filename.removesuffix(".npy"): info.file_size for info in archive.infolist()}
    missing, unknown = sorted(set(names) - held.keys()), sorted(held.keys() - set(names))
    if missing or (unknown and not others):
        raise InputError(f"expected the arrays {', '.join(sorted(names))}, found {', '.join(sorted(held))[:200]}")
    unpacked = sum(held[name] for name in names)
    if unpacked > most_unpacked(size):
        raise InputError(
            f"it would unpack to {unpacked:,} bytes, the most that is read from {size:,} is {most_unpacked(size):,}"
        )
    file.seek(0)
    with np.load(file, allow_pickle=False) as stored:
        return {name: stored[name] for name in names}


class _Limited(io.BufferedReader):
    """An unpacked stream that ends in an error where its limit is reached."""

    def __init__(self, packed: BinaryIO, limit: int) -> None:
        super().__init__(cast(io.RawIOBase, gzip.GzipFile(fileobj=packed)), 1 << 16)
        self.packed, self.left, self.limit = packed, limit, limit

    def close(self) -> None:
        super().close()
        self.packed.close()

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(-1 if size is None else size)
        self.left -= len(line)
        if self.left < 0:
            raise InputError(
                f"it unpacks to more than {self.limit:,} bytes, the most that is read from a file of its size"
            )
        return line


def opened_text(path: Path) -> BinaryIO:
    """An ordinary file for reading line by line; one that ends in .gz is unpacked within its limit."""
    file = opened(path)
    if path.suffix != ".gz":
        return file
    return _Limited(file, most_unpacked(os.fstat(file.fileno()).st_size))
