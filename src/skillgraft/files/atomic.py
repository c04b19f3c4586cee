"""Outputs that are complete or not there at all: write beside the target under a temporary name, then rename.

A killed run leaves at most a `.<name>.partial-…` beside the target, which no reader looks at and the next run to the
same target removes, if no living process owns it. Targets that exist are refused before any work begins.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from skillgraft.errors import InputError, RunError
from skillgraft.files import system
from skillgraft.files.regular import open_lock

LONGEST_NAME = 255  # bytes, on every file system in use
_PROCESS = re.compile("[1-9][0-9]{0,9}", re.ASCII)
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_TAKEN = {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR}


def check_target(path: Path, *, overwrite: bool = False) -> None:
    """Refuse, before the work starts, a target that exists or whose folder cannot be written."""
    if "\0" in str(path) or len(os.fsencode(path.name)) > LONGEST_NAME:
        raise InputError(
            f"{str(path)[:80]!r} cannot be written: a file's name has at most {LONGEST_NAME} bytes; choose another"
        )
    if path.exists() and not overwrite:
        raise InputError(f"{path} exists already; choose another output or remove it first")
    parent = path.absolute().parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise InputError(f"{path} cannot be written: {parent} is not a folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise RunError(f"{path} cannot be written: no permission in {parent}")


@contextmanager
def new_file(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yields a temporary path to write; on success it becomes `path`, on any failure it is gone.

    `overwrite` is for artefacts that are rewritten on purpose (recorded scores): the rename replaces the old file whole.
    """
    check_target(path, overwrite=overwrite)
    with _partial(path) as temporary:
        yield temporary
        system.to_disk(temporary)
        if overwrite:
            temporary.replace(path)
        else:
            _publish_file(temporary, path)
        system.to_disk(path.parent)


@contextmanager
def new_folder(path: Path, *, sync: bool = True) -> Iterator[Path]:
    """Yields a temporary folder to fill; on success it becomes `path`, on any failure it is gone.

    Everything in it is on the disk before it gets its name, so that a power cut leaves all or nothing. Without `sync` that is
    left to the file system: a killed process loses nothing all the same.
    """
    check_target(path)
    with _partial(path) as temporary:
        temporary.mkdir()
        yield temporary
        if sync:
            _to_disk(temporary)
        try:
            if path.exists():  # renaming onto an empty folder would succeed silently; onto a filled one it fails
                raise FileExistsError(errno.EEXIST, "exists", str(path))
            temporary.rename(path)
        except OSError as error:
            if error.errno in _TAKEN:
                raise _appeared(path) from error
            raise
        if sync:
            system.to_disk(path.parent)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a lock file while the body runs; another process waits. The lock of a killed process is free at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = open_lock(path)
    try:
        system.lock(descriptor, wait=True)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _partial(path: Path) -> Iterator[Path]:
    # The process that owns it is in the name: a folder can be shared by machines, each with its own processes.
    owner = f"{system.machine()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    temporary = path.parent / f".{_stem(path)}.partial-{owner}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_orphans(path)
        yield temporary
    except OSError as error:
        raise _explained(error, path, temporary) from error
    finally:
        _delete(temporary)


def _publish_file(temporary: Path, path: Path) -> None:
    try:
        # A hard link fails if the target appeared meanwhile; a rename would overwrite it.
        os.link(temporary, path)
    except OSError as error:
        if path.exists():
            raise _appeared(path) from error
        temporary.rename(path)  # the file system has no hard links


def _appeared(path: Path) -> InputError:
    return InputError(f"{path} appeared while working; nothing was overwritten")


def _explained(error: OSError, path: Path, temporary: Path) -> RunError:
    """What went wrong with which file: the body may have failed to read another one. A full disk only fails writers."""
    named = isinstance(error.filename, str | os.PathLike) and error.errno not in (*_FULL, errno.EROFS)
    other = Path(error.filename) if named else temporary
    if not other.is_relative_to(temporary) and other not in (path, path.parent):
        return RunError(f"{other} could not be read: {error.strerror}; {path} was not written, nothing was left behind")
    if error.errno in _FULL:
        why = "the disk is full" if error.errno == errno.ENOSPC else error.strerror
        free = shutil.disk_usage(path.parent).free
        return RunError(f"{path} could not be written: {why} ({free / 1e6:.0f} MB free); nothing was left behind")
    return RunError(f"{path} could not be written: {error}; nothing was left behind")


def _to_disk(folder: Path) -> None:
    """Force everything below a folder to the disk, what lies deepest first."""
    for below, _, files in os.walk(folder, topdown=False):
        for name in files:
            system.to_disk(Path(below) / name)
        system.to_disk(Path(below))


def _remove_orphans(path: Path) -> None:
    """Remove what a killed run to the same target left, unless its process lives. Other machines' are left to them."""
    mine = f".{_stem(path)}.partial-{system.machine()}-"
    for orphan in path.parent.iterdir():
        process = orphan.name.removeprefix(mine).split("-", 1)[0]
        if orphan.name.startswith(mine) and _PROCESS.fullmatch(process) and not system.alive(int(process)):
            _delete(orphan)


def _stem(path: Path) -> str:
    """What a temporary file is called after: the target's name, or a digest where both together would be too long."""
    long = len(os.fsencode(path.name)) > LONGEST_NAME // 2
    return hashlib.sha256(os.fsencode(path.name)).hexdigest()[:32] if long else path.name


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)
