"""Files that anybody may have put there, opened with care: ordinary files only, and never more bytes than a stated limit.

A pipe would be waited for without end, a device never ends, a folder is no file; each is refused by name. A link to an ordinary
file is read (hub caches are made of them); a lock that is written to may not be one.

    read_text(Path("config.json"), limit=CONFIG_BYTES)
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from skillgraft.errors import InputError
from skillgraft.files import system

CONFIG_BYTES = 16_000_000  # config.json, adapter_config.json, skillgraft.json, an index, what a verb printed
VOCABULARY_BYTES = 64_000_000  # tokenizer.json and its like
TASK_BYTES = 1_000_000  # TOML: tasks, plans
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe (FIFO)"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISLNK, "a link"),
)


def kind_of_file(mode: int) -> str:
    """What a file is if it is no ordinary one, in words; "" for an ordinary one."""
    return "" if stat.S_ISREG(mode) else next((words for test, words in _KINDS if test(mode)), "no ordinary file")


def opened(path: Path) -> BinaryIO:
    """An ordinary file (or a link to one) for reading; anything else is refused before it is opened."""
    _refuse_odd(path, os.stat(path).st_mode)
    flags = system.flags("O_RDONLY", "O_NONBLOCK", "O_CLOEXEC")
    file = open(path, "rb", opener=lambda name, _: os.open(name, flags))  # noqa: SIM115
    try:
        _refuse_odd(path, os.fstat(file.fileno()).st_mode)
    except InputError:
        file.close()
        raise
    return file


def _refuse_odd(path: Path, mode: int) -> None:
    if kind := kind_of_file(mode):
        raise InputError(f"{path} is {kind}, expected an ordinary file")


def read_bytes(path: Path, *, limit: int) -> bytes:
    """All of an ordinary file of at most `limit` bytes. A file that is not there raises Python's own error."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(size + 1) if size <= limit else b""  # room for so many bytes is taken at once
    if size > limit or len(content) > limit:
        raise InputError(f"{path} has {max(size, len(content)):,} bytes, the most that is read is {limit:,}")
    return content


def read_text(path: Path, *, limit: int, encoding: str = "utf-8") -> str:
    """The same as text; bytes that are none raise Python's own error."""
    return read_bytes(path, limit=limit).decode(encoding)


def open_lock(path: Path) -> int:
    """A descriptor of a lock file, made where there is none. Whatever is there stays as it is.

    Refused: links, files with a second name, pipes: to write to one would be to write to another file.
    """
    if not hasattr(os, "O_NOFOLLOW") and path.is_symlink():
        raise _no_lock(path, "a link")
    try:
        descriptor = os.open(path, system.flags("O_RDWR", "O_CREAT", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"), 0o666)
    except OSError as error:
        if not path.is_symlink():
            raise
        raise _no_lock(path, "a link") from error
    status = os.fstat(descriptor)
    kind = kind_of_file(status.st_mode) or ("a file with several names" if status.st_nlink > 1 else "")
    if kind:
        os.close(descriptor)
        raise _no_lock(path, kind)
    return descriptor


def _no_lock(path: Path, kind: str) -> InputError:
    return InputError(f"{path} is {kind}, expected an ordinary file of its own; remove it")
