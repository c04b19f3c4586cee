"""The folder of skills: each `NAME.safetensors` in it is held under its name, and files that come, change or go are followed.

    folder = Folder(Path("skills"), shelf)
    await folder.look()          # once; `watch` looks again and again
    folder.refused               # file → why it is not held

A file that cannot be read, does not fit the base or has a name that no skill may have is refused with the reason, and looked at
again when it changes; the others stay, and so does the graft that was held under its name. Links to files are read, as a hub's
cache has them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from skillgraft.errors import InputError, SkillgraftError
from skillgraft.serve.names import is_name
from skillgraft.serve.refusals import Refused
from skillgraft.values.graft import Graft

if TYPE_CHECKING:
    from skillgraft.serve.skills import Shelf

SUFFIX = ".safetensors"
_SECONDS = 1.0
_Stamp = tuple[int, int, int]  # what changes when a file's content does: size, time, inode
_log = logging.getLogger("skillgraft.serve")


@dataclass(eq=False)
class Folder:
    """`most_bytes` is the largest file that is read."""

    path: Path
    shelf: Shelf
    most_bytes: int
    refused: dict[str, str] = field(default_factory=dict)
    _seen: dict[str, _Stamp] = field(default_factory=dict)

    async def watch(self) -> None:
        """Look again every second, until cancelled."""
        while True:
            await asyncio.sleep(_SECONDS)
            try:
                await self.look()
            except Exception:  # the disk may fail for a moment; the skills that are held stay
                _log.exception("the folder of skills could not be looked at")

    async def look(self) -> None:
        """Bring the shelf up to date with the folder."""
        found = await asyncio.to_thread(stamps, self.path)
        for file in self._seen.keys() - found.keys():
            del self._seen[file]
            self.refused.pop(file, None)
            await self._withdraw(file)
        for file, stamp in found.items():
            if self._seen.get(file) != stamp:
                self._seen[file] = stamp
                await self._hold(file, stamp)

    async def _hold(self, file: str, stamp: _Stamp) -> None:
        name = file.removesuffix(SUFFIX)
        try:
            if not is_name(name):
                raise InputError("the file's name is no skill's name: letters, digits, '_', '.' and '-' alone")
            if stamp[0] > self.most_bytes:
                raise InputError(f"it has {stamp[0]:,} bytes; at most {self.most_bytes:,} are read (--max-graft-bytes)")
            graft = await asyncio.to_thread(Graft.load, self.path / file)
            await self.shelf.put(name, graft, origin=file)
        except (SkillgraftError, Refused) as error:
            self.refused[file] = str(error).replace(f"{self.path}{os.sep}", "")
            _log.warning("%s is not held: %s", file, self.refused[file])
        else:
            self.refused.pop(file, None)

    async def _withdraw(self, file: str) -> None:
        """The file went: so does the skill, if it is this file's and not one that was uploaded under its name."""
        held = self.shelf.held.get(file.removesuffix(SUFFIX))
        if held is not None and held.origin == file:
            await self.shelf.delete(held.name)


def stamps(path: Path) -> dict[str, _Stamp]:
    """The graft files of a folder; regular ones alone, so that a pipe or a device stops nobody."""
    found = {}
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        raise InputError(f"{path}: expected a folder of graft files; {error.strerror}") from None
    for name in names:
        if not name.endswith(SUFFIX) or name.startswith("."):
            continue
        with suppress(OSError):  # it went between the two looks
            state = os.stat(path / name)
            if stat.S_ISREG(state.st_mode):
                found[name] = (state.st_size, state.st_mtime_ns, state.st_ino)
    return found
