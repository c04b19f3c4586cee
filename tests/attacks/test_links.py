"""Links, pipes and devices where a file is expected: nothing outside a folder is written, copied or waited for."""

from __future__ import annotations

import os

import pytest

from skillgraft.compose.store import LOCK, writing
from skillgraft.errors import InputError, RunError
from skillgraft.files import atomic
from skillgraft.folders.checkpoint import Checkpoint
from tests.model_folders import body, write_folder


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "victim"
    path.write_bytes(b"precious " * 1000)
    return path


def as_link(path, victim):
    path.symlink_to(victim)


def as_second_name(path, victim):
    os.link(victim, path)


def as_pipe(path, _victim):
    os.mkfifo(path)


@pytest.mark.parametrize("disguise", [as_link, as_second_name, as_pipe])
def test_a_lock_that_is_something_else_is_left_alone(disguise, victim, tmp_path):
    base = Checkpoint.open(write_folder(tmp_path / "base", body()))
    with writing(tmp_path / "store", base):
        pass
    (tmp_path / "store" / LOCK).unlink()
    disguise(tmp_path / "store" / LOCK, victim)
    with (
        pytest.raises(InputError, match=r"\.lock is .*, expected an ordinary file of its own; remove it"),
        writing(tmp_path / "store", base),
    ):
        pass
    disguise(tmp_path / "other.lock", victim)
    with (
        pytest.raises(InputError, match="expected an ordinary file of its own"),
        atomic.locked(tmp_path / "other.lock"),
    ):
        pass
    assert victim.read_bytes() == b"precious " * 1000


def test_a_lock_with_other_content_is_left_alone(tmp_path):
    base = Checkpoint.open(write_folder(tmp_path / "base", body()))
    with writing(tmp_path / "store", base):
        pass
    (tmp_path / "store" / LOCK).write_text("a diary")
    with (
        pytest.raises(InputError, match=r"holds something else than a process number"),
        writing(tmp_path / "store", base),
    ):
        pass
    assert (tmp_path / "store" / LOCK).read_text() == "a diary"


def test_a_second_writer_is_told_who_writes(tmp_path):
    base = Checkpoint.open(write_folder(tmp_path / "base", body()))
    with (
        writing(tmp_path / "store", base),
        pytest.raises(RunError, match=rf"written by another process \({os.getpid()}\)"),
        writing(tmp_path / "store", base),
    ):
        pass
