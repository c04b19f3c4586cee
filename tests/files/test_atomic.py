"""Outputs are complete or not there at all, and what a dead run left goes with the next one."""

from __future__ import annotations

import errno
import os
import subprocess

import pytest

from skillgraft.errors import InputError, RunError
from skillgraft.files import atomic


def entries(folder) -> set[str]:
    return {item.name for item in folder.iterdir()}


def partial(path, process: int, node: str | None = None):
    return path.parent / f".{path.name}.partial-{node or os.uname().nodename}-{process}-0123abcd"


@pytest.fixture
def dead_process() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_file_appears_when_it_is_complete(tmp_path):
    target = tmp_path / "new" / "folder" / "x.bin"
    with atomic.new_file(target) as temporary:
        temporary.write_bytes(b"abc")
        assert not target.exists()
        assert temporary.name.startswith(".x.bin.partial-")
    assert target.read_bytes() == b"abc"
    assert entries(target.parent) == {"x.bin"}


def test_folder_appears_when_it_is_complete(tmp_path):
    target = tmp_path / "new" / "out"
    with atomic.new_folder(target) as temporary:
        (temporary / "sub").mkdir()
        (temporary / "sub" / "x").write_text("abc")
        assert not target.exists()
    assert (target / "sub" / "x").read_text() == "abc"
    assert entries(target.parent) == {"out"}


@pytest.mark.parametrize("make", [atomic.new_file, atomic.new_folder])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_nothing_is_left_after_a_failure(make, error, tmp_path):
    def fail() -> None:
        with make(tmp_path / "x") as temporary:
            (temporary / "part" if temporary.is_dir() else temporary).write_text("half")
            raise error

    with pytest.raises(error):
        fail()
    assert entries(tmp_path) == set()


@pytest.mark.parametrize("make", [atomic.new_file, atomic.new_folder])
def test_existing_target_is_refused_before_any_work(make, tmp_path):
    for target in (tmp_path / "file", tmp_path / "folder"):
        target.mkdir() if target.name == "folder" else target.write_text("old")
        with pytest.raises(InputError, match="exists already; choose another output or remove it first"), make(target):
            pytest.fail("the work began")
    assert (tmp_path / "file").read_text() == "old"


def test_overwriting_on_purpose_replaces_the_whole_file(tmp_path):
    (tmp_path / "x").write_text("a longer old text")
    with atomic.new_file(tmp_path / "x", overwrite=True) as temporary:
        temporary.write_text("new")
        assert (tmp_path / "x").read_text() == "a longer old text"
    assert (tmp_path / "x").read_text() == "new"


@pytest.mark.parametrize("filled", [True, False])
def test_folder_that_appears_meanwhile_is_not_touched(filled, tmp_path):
    def race() -> None:
        with atomic.new_folder(tmp_path / "out") as temporary:
            (temporary / "mine").write_text("mine")
            (tmp_path / "out").mkdir()
            if filled:
                (tmp_path / "out" / "theirs").write_text("theirs")

    with pytest.raises(InputError, match="appeared while working; nothing was overwritten"):
        race()
    assert entries(tmp_path) == {"out"}
    assert entries(tmp_path / "out") == ({"theirs"} if filled else set())


def test_folder_that_appears_in_the_last_moment(tmp_path, monkeypatch):
    """Between the last look and the rename: the kernel refuses, and the message is the same."""
    monkeypatch.setattr(atomic.Path, "exists", lambda _: False)

    def race() -> None:
        with atomic.new_folder(tmp_path / "out") as temporary:
            (temporary / "mine").write_text("mine")
            (tmp_path / "out").mkdir()
            (tmp_path / "out" / "theirs").write_text("theirs")

    monkeypatch.setattr(atomic, "check_target", lambda *_, **__: None)
    with pytest.raises(InputError, match="appeared while working"):
        race()
    assert entries(tmp_path / "out") == {"theirs"}


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "no hard links"])
def test_file_that_appears_meanwhile_is_not_touched(links, tmp_path, monkeypatch):
    if not links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(errno.EPERM, "no links here")))

    def race() -> None:
        with atomic.new_file(tmp_path / "x") as temporary:
            temporary.write_text("mine")
            (tmp_path / "x").write_text("theirs")

    with pytest.raises(InputError, match="appeared while working; nothing was overwritten"):
        race()
    assert (tmp_path / "x").read_text() == "theirs"
    assert entries(tmp_path) == {"x"}


def test_file_system_without_hard_links(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(errno.EPERM, "no links here")))
    with atomic.new_file(tmp_path / "x") as temporary:
        temporary.write_text("mine")
    assert entries(tmp_path) == {"x"}


@pytest.mark.parametrize("name", ["out", "out [1]*", "größe"])
def test_what_a_dead_run_left_goes_with_the_next(name, tmp_path, dead_process):
    target = tmp_path / name
    left_folder = tmp_path / f"{partial(target, dead_process).name}2"
    partial(target, dead_process).write_text("half")
    left_folder.mkdir()
    (left_folder / "x").write_text("half")
    kept = [
        partial(target, os.getpid()),  # a living run
        partial(target, dead_process, node="elsewhere"),  # another machine's process has the same number
        partial(tmp_path / "other", dead_process),  # another target's, its own run will see to it
        partial(tmp_path / "out1", dead_process),
        tmp_path / f".{name}.partial-notes",  # not ours
    ]
    for file in kept:
        file.write_text("x")
    with atomic.new_file(target) as temporary:
        temporary.write_text("done")
    assert entries(tmp_path) == {name, *(file.name for file in kept)}


def test_parent_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot be written: .*/file is not a folder"):
        atomic.check_target(tmp_path / "file" / "sub" / "x")


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, r"the disk is full \(\d+ MB free\); nothing was left behind"),
        (errno.EDQUOT, r"Disk quota exceeded \(\d+ MB free\)"),
        (errno.EFBIG, r"File too large \(\d+ MB free\)"),
        (errno.EROFS, r"Read-only file system.*; nothing was left behind"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_failures_of_the_system_are_one_clear_error(number, said, tmp_path):
    def fail() -> None:
        with atomic.new_folder(tmp_path / "out") as temporary:
            (temporary / "half").write_text("")
            # A device that fails may be the source's: then the file decides. Only a writer finds a disk full or read-only.
            file = str(temporary / "half") if number == errno.EIO else "half"
            raise OSError(number, os.strerror(number), file)

    with pytest.raises(RunError, match=rf"{tmp_path}/out could not be written: .*{said}"):
        fail()
    assert entries(tmp_path) == set()


@pytest.mark.parametrize("make", [atomic.new_file, atomic.new_folder])
def test_a_source_that_cannot_be_read_is_not_blamed_on_the_output(tmp_path, make):
    with (
        pytest.raises(RunError, match=r"missing\.bin could not be read: .*; .*out was not written"),
        make(tmp_path / "out"),
    ):
        (tmp_path / "missing.bin").read_bytes()
    assert entries(tmp_path) == set()
