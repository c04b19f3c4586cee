"""Several files as one run of bytes, so that a fuzzer can change a folder as it changes a file.

    unpack(pack({"config.json": b"{}"}, NAMES), NAMES) == {"config.json": b"{}"}

Each file is a byte that picks its name, four bytes of length, and its content. Any bytes at all can be unpacked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path


def pack(files: Mapping[str, bytes], names: Sequence[str]) -> bytes:
    return b"".join(
        bytes([names.index(name)]) + len(content).to_bytes(4, "little") + content for name, content in files.items()
    )


def unpack(content: bytes, names: Sequence[str]) -> dict[str, bytes]:
    files, place = {}, 0
    while place + 5 <= len(content):
        length = int.from_bytes(content[place + 1 : place + 5], "little")
        files[names[content[place] % len(names)]] = content[place + 5 : place + 5 + length]
        place += 5 + length
    return files


def write(files: Mapping[str, bytes], folder: Path) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def read(folder: Path, names: Sequence[str]) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}
