"""What not every operating system can do, and what is done without it.

Each call is looked for when it is needed, so that a system (or a file system) that lacks it costs time or a promise, never a
result; docs/security.md lists them.

    count = read_into(descriptor, room, place)
    locked = lock(descriptor, wait=False)
"""

from __future__ import annotations

import errno
import os
import platform
import signal
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any


def _module(name: str) -> Any:
    return import_module(name) if find_spec(name) else None


FCNTL, MSVCRT = _module("fcntl"), _module("msvcrt")  # the one or the other
WINDOWS = os.name == "nt"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LOCKED_BYTE = 1 << 30  # Windows forbids to read what is locked: a byte that no lock file has
_WAIT_SECONDS = 0.1
_MOVING = Lock()  # a descriptor has one place, whoever moves it


def flags(*names: str) -> int:
    """These flags of `os.open`, those that there are; bytes are never changed on their way."""
    found = 0
    for name in (*names, "O_BINARY"):
        found |= getattr(os, name, 0)
    return found


def read_at(descriptor: int, count: int, place: int) -> bytes:
    """At most `count` bytes from a place on, whoever reads elsewhere meanwhile."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, count, place)
    with _MOVING:
        os.lseek(descriptor, place, os.SEEK_SET)
        return os.read(descriptor, count)


def read_into(descriptor: int, room: memoryview, place: int) -> int:
    """The same into memory that is there already; how many bytes came."""
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [room], place)
    data = read_at(descriptor, len(room), place)
    room[: len(data)] = data
    return len(data)


def write_some(descriptor: int, data: memoryview, place: int) -> int:
    """Some of the bytes, at a place; how many."""
    if hasattr(os, "pwrite"):
        return os.pwrite(descriptor, data, place)
    with _MOVING:
        os.lseek(descriptor, place, os.SEEK_SET)
        return os.write(descriptor, data)


def copy_some(source: int, target: int, count: int, start: int, place: int) -> int | None:
    """Copy inside the kernel; how many bytes, or None where that cannot be done between these two files."""
    if not hasattr(os, "copy_file_range"):
        return None
    try:
        return os.copy_file_range(source, target, count, start, place)
    except OSError as error:
        if error.errno in _FULL:
            raise
        return None


def lock(descriptor: int, *, wait: bool) -> bool:
    """Hold a lock file until its descriptor is closed; False if another process holds it and it is not waited for."""
    if FCNTL is None:
        return _lock_byte(descriptor, wait=wait)
    try:
        FCNTL.flock(descriptor, FCNTL.LOCK_EX | (0 if wait else FCNTL.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def _lock_byte(descriptor: int, *, wait: bool) -> bool:
    while True:
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        try:
            MSVCRT.locking(descriptor, MSVCRT.LK_NBLCK, 1)
            return True
        except OSError:
            if not wait:
                return False
        time.sleep(_WAIT_SECONDS)


def lease(descriptor: int) -> bool:
    """Whether the kernel promises to tell before anybody writes to the file. Its signal is one that is ignored by default."""
    try:
        FCNTL.fcntl(descriptor, FCNTL.F_SETSIG, signal.SIGURG)
        FCNTL.fcntl(descriptor, FCNTL.F_SETLEASE, FCNTL.F_RDLCK)
    except (OSError, AttributeError):  # not ours, open for writing, a file system or a system without leases
        return False
    return True


def lease_holds(descriptor: int) -> bool:
    """Whether nobody has asked for the file since."""
    return bool(FCNTL.fcntl(descriptor, FCNTL.F_GETLEASE) == FCNTL.F_RDLCK)


def end_lease(descriptor: int) -> None:
    """Let others write again."""
    FCNTL.fcntl(descriptor, FCNTL.F_SETLEASE, FCNTL.F_UNLCK)


def to_disk(path: Path) -> None:
    """Force a file, or the names in a folder, to the disk. Some file systems and Windows cannot do that with folders."""
    if WINDOWS and path.is_dir():
        return
    descriptor = os.open(path, flags("O_RDWR" if WINDOWS else "O_RDONLY"))
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def alive(process: int) -> bool:
    """Whether there is such a process on this machine; where one cannot ask without ending it, there is."""
    if WINDOWS:
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def machine() -> str:
    """This machine's name among those that share a folder."""
    return platform.node()


def cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
