"""Outputs that are complete or not there at all: write beside the target under a temporary name, then rename.

A killed run leaves at most a `.<name>.partial-…` beside the target, which no reader looks at and the next run to the
same target removes, if no living process owns it. Targets that exist are refused before any work begins.
"""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from skillgraft.errors import InputError, RunError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}


def check_target(path: Path, *, overwrite: bool = False) -> None:
    """Refuse, before the work starts, a target that exists or whose folder cannot be written."""
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
        _sync(temporary)
        if overwrite:
            temporary.replace(path)
        else:
            _publish_file(temporary, path)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yields a temporary folder to fill; on success it becomes `path`, on any failure it is gone."""
    check_target(path)
    with _partial(path) as temporary:
        temporary.mkdir()
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                _sync(file)
        try:
            # Renaming onto an empty folder would succeed silently, onto a filled one it fails: both are refused.
            if path.exists():
                raise FileExistsError(errno.EEXIST, "appeared while working", str(path))
            temporary.rename(path)
        except FileExistsError as error:
            raise InputError(f"{path} appeared while working; nothing was overwritten") from error


@contextmanager
def _partial(path: Path) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_orphans(path)
    temporary = path.parent / f".{path.name}.partial-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    try:
        yield temporary
    except OSError as error:
        raise _explained(error, path) from error
    finally:
        _delete(temporary)


def _publish_file(temporary: Path, path: Path) -> None:
    try:
        # A hard link fails if the target appeared meanwhile; a rename would overwrite it.
        os.link(temporary, path)
    except FileExistsError as error:
        raise InputError(f"{path} appeared while working; nothing was overwritten") from error
    except OSError:  # the file system has no hard links
        temporary.rename(path)


def _explained(error: OSError, path: Path) -> RunError:
    if error.errno in _FULL:
        free = shutil.disk_usage(path.parent).free
        return RunError(
            f"{path} could not be written: the disk is full ({free / 1e6:.0f} MB free); nothing was left behind"
        )
    if error.errno in _FORBIDDEN:
        return RunError(f"{path} could not be written: {error.strerror} ({error.filename or path})")
    return RunError(f"{path} could not be written: {error}")


def _sync(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def _remove_orphans(path: Path) -> None:
    """Remove what a killed run to the same target left, unless its process lives."""
    for orphan in path.parent.glob(f".{path.name}.partial-*"):
        owner = orphan.name.rsplit(".partial-", 1)[1].split("-", 1)[0]
        if owner.isdigit() and not _alive(int(owner)):
            _delete(orphan)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)
