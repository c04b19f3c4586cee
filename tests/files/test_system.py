"""Calls that macOS or Windows lack: taken away here, what is done without them gives the same."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skillgraft import Graft, apply, extract, remove
from skillgraft.compose.store import _locked
from skillgraft.errors import InputError, RunError
from skillgraft.files import atomic, system
from skillgraft.files.regular import open_lock
from tests.family import write_family
from tests.model_folders import content

# What each system lacks of what Linux has, as far as Python tells.
MACOS = ("copy_file_range", "sched_getaffinity")
WINDOWS = (
    *(*MACOS, "pread", "preadv", "pwrite", "uname"),
    *("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"),
)


class ByteLocks:
    """Windows' own module: a byte of a file is locked by who comes first, until that descriptor is closed."""

    LK_NBLCK = 2

    def __init__(self) -> None:
        self.held: dict[tuple[int, int], int] = {}

    def locking(self, descriptor: int, _mode: int, _count: int) -> None:
        status = os.fstat(descriptor)
        place = status.st_ino, os.lseek(descriptor, 0, os.SEEK_CUR)
        owner = self.held.setdefault(place, descriptor)
        if owner != descriptor and _open(owner):
            raise PermissionError
        self.held[place] = descriptor


def _open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


@pytest.fixture(params=["linux", "macos", "windows"])
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """This machine, or this machine without what the other one lacks."""
    for name in {"macos": MACOS, "windows": WINDOWS}.get(request.param, ()):
        monkeypatch.delattr(os, name)
    if request.param == "macos":
        monkeypatch.setattr(system, "FCNTL", _without_leases())
    if request.param == "windows":
        monkeypatch.setattr(system, "FCNTL", None)
        monkeypatch.setattr(system, "MSVCRT", ByteLocks())
        monkeypatch.setattr(system, "WINDOWS", True)
    return str(request.param)


def _without_leases() -> Any:
    import fcntl

    return SimpleNamespace(flock=fcntl.flock, LOCK_EX=fcntl.LOCK_EX, LOCK_NB=fcntl.LOCK_NB, fcntl=fcntl.fcntl)


def test_a_graft_goes_on_and_comes_off(machine: str, tmp_path: Path) -> None:
    family = write_family(tmp_path)
    before = content(family / "BASE")
    extract(family / "BASE", family / "TUNED").save(tmp_path / "g.safetensors")
    g = Graft.load(tmp_path / "g.safetensors")
    apply(family / "BASE", g, out=tmp_path / "on")
    assert content(tmp_path / "on") != before
    remove(tmp_path / "on", g, out=tmp_path / "off")
    assert content(tmp_path / "off") == before
    (file,) = (tmp_path / "BASE").glob("*.safetensors")
    with file.open("rb") as opened:
        assert system.lease(opened.fileno()) == (machine == "linux")


def test_bytes_are_read_and_written_at_their_places(machine: str, tmp_path: Path) -> None:
    assert machine
    (tmp_path / "a").write_bytes(bytes(range(64)))
    descriptor = os.open(tmp_path / "a", system.flags("O_RDWR", "O_CLOEXEC"))
    try:
        room = memoryview(bytearray(9))
        assert system.read_at(descriptor, 4, 60) == bytes([60, 61, 62, 63]) == system.read_at(descriptor, 99, 60)
        assert system.read_into(descriptor, room, 58) == 6
        assert bytes(room) == bytes([58, 59, 60, 61, 62, 63, 0, 0, 0])
        assert system.write_some(descriptor, memoryview(b"xyz"), 5) == 3
    finally:
        os.close(descriptor)
    assert (tmp_path / "a").read_bytes() == bytes(range(5)) + b"xyz" + bytes(range(8, 64))


def test_a_lock_is_one_process_s_until_it_is_closed(machine: str, tmp_path: Path) -> None:
    assert machine
    first, second = (open_lock(tmp_path / "lock") for _ in range(2))
    assert system.lock(first, wait=True)
    assert not system.lock(second, wait=False)
    os.close(first)
    assert system.lock(second, wait=True)
    os.close(second)


def test_a_store_has_one_writer(machine: str, tmp_path: Path) -> None:
    assert machine
    with _locked(tmp_path), pytest.raises(RunError, match=rf"another process \({os.getpid()}\)"), _locked(tmp_path):
        pass
    with _locked(tmp_path):
        pass


def test_a_link_is_no_lock(machine: str, tmp_path: Path) -> None:
    assert machine
    (tmp_path / "else").write_text("mine")
    (tmp_path / "lock").symlink_to(tmp_path / "else")
    with pytest.raises(InputError, match="is a link, expected an ordinary file"):
        open_lock(tmp_path / "lock")


def test_leftovers_of_others_stay_where_one_cannot_ask_for_their_process(machine: str, tmp_path: Path) -> None:
    left = tmp_path / f".out.partial-{system.machine()}-4194301-0123abcd"
    left.write_text("half")
    with atomic.new_file(tmp_path / "out") as path:
        path.write_text("whole")
    assert (tmp_path / "out").read_text() == "whole"
    assert left.exists() == (machine == "windows")


def test_there_is_a_processor(machine: str) -> None:
    assert machine
    assert system.cores() >= 1


@pytest.mark.parametrize("taken", [False, True])
def test_signals_end_the_server_where_the_event_loop_takes_none(taken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    running = pytest.importorskip("skillgraft.serve.running")
    ended: list[int] = []

    async def serve() -> None:
        if taken:
            monkeypatch.setattr(type(asyncio.get_running_loop()), "add_signal_handler", _not_implemented)
        running._on_signals(lambda number, _frame: ended.append(number))
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.05)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        asyncio.run(serve())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert ended == [signal.SIGTERM]


def _not_implemented(*_: Any) -> None:
    raise NotImplementedError
