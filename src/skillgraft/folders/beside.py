"""What lies beside the weights of a model folder: copied file by file, and never through a link that leads away.

A link to a file is read where the file belongs to the folder: inside it, or among the blobs of the hub cache that it is a
snapshot of. A link to anything else could be to a private key, and the copy may be published; a link to a folder could lead
round in a circle; a pipe would be waited for and a device never ends. Each is refused, by name, before anything is copied.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from skillgraft.errors import InputError
from skillgraft.files.regular import kind_of_file, opened
from skillgraft.files.tensors import copy_range

_DEEPEST = 16
_MOST_FILES = 100_000
_HIDDEN_THAT_TRAVEL = (".gitattributes", ".gitignore")


def travelling_files(folder: Path, *, apart: Collection[str]) -> list[str]:
    """What travels, by its path below the folder; what may not is refused. `apart` are names at the top that stay behind."""
    found: list[str] = []
    for item in sorted(folder.iterdir()):
        if item.name in apart or (item.name.startswith(".") and item.name not in _HIDDEN_THAT_TRAVEL):
            continue
        found += _below(item, folder, depth=1)
        if len(found) > _MOST_FILES:
            raise InputError(f"{folder} has more than {_MOST_FILES:,} files; expected a model folder")
    return found


def _below(item: Path, folder: Path, *, depth: int) -> Iterator[str]:
    try:
        mode = item.stat().st_mode
    except OSError as error:
        raise InputError(f"{item} cannot be read: {error.strerror}; remove it (is it a broken link?)") from None
    if item.is_symlink() and (stat.S_ISDIR(mode) or not belongs(item, folder)):
        what = "a folder" if stat.S_ISDIR(mode) else "a file outside the model folder"
        raise InputError(
            f"{item} is a link to {what} ({os.readlink(item)}), which is not copied; replace it by what it stands for"
        )
    if not stat.S_ISDIR(mode):
        if kind := kind_of_file(mode):
            raise InputError(f"{item} is {kind}, expected an ordinary file; remove it")
        yield str(item.relative_to(folder))
    elif depth > _DEEPEST:
        raise InputError(f"{item} lies deeper than {_DEEPEST} folders; expected a model folder")
    else:
        for inner in sorted(item.iterdir()):
            yield from _below(inner, folder, depth=depth + 1)


def belongs(link: Path, folder: Path) -> bool:
    """Whether what a link leads to is part of the model: inside its folder, or a blob of its hub cache."""
    home, target = folder.resolve(), link.resolve()
    cached = home.parent.name == "snapshots" and target.parent == home.parent.parent / "blobs"
    return cached or target.is_relative_to(home)


def copy_file(source: Path, target: Path) -> None:
    """The bytes, and no more permission than the original gives; the copy can be edited by its owner."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with opened(source) as old, target.open("xb") as new:
        copy_range(old, new.fileno(), 0, os.fstat(old.fileno()).st_size, 0)
    narrow(target, like=source)


def narrow_folder(target: Path, *, like: Path) -> None:
    """The same for a folder, which its owner may always enter and fill."""
    fresh, wanted = (stat.S_IMODE(path.stat().st_mode) for path in (target, like))
    target.chmod((fresh & wanted) | 0o700)


def narrow(target: Path, *, like: Path) -> None:
    """Give a new file no more permission than another has: a file that only its owner may read stays one."""
    fresh = stat.S_IMODE(target.stat().st_mode)
    runnable = fresh | (fresh & 0o444) >> 2
    target.chmod((runnable & stat.S_IMODE(like.stat().st_mode)) | 0o600)
