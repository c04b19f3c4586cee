"""Links, pipes and devices where a file is expected: nothing outside a folder is written, copied or waited for."""

from __future__ import annotations

import os

import pytest

from skillgraft.compose.store import LOCK, writing
from skillgraft.errors import InputError, RunError
from skillgraft.files import atomic
from skillgraft.folders.apply import apply
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.folders.extract import extract
from skillgraft.folders.given import Named
from tests.model_folders import body, moved, same_weights, write_folder, write_pair


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


def hostile_link(base, victim):
    (base / "vocab.txt").symlink_to(victim)


def hostile_link_below(base, victim):
    (base / "1_Pooling").mkdir()
    (base / "1_Pooling" / "config.json").symlink_to(victim)


def link_to_parent(base, _victim):
    (base / "again").symlink_to("..")


def link_to_device(base, _victim):
    (base / "vocab.txt").symlink_to("/dev/zero")


def broken_link(base, _victim):
    (base / "vocab.txt").symlink_to("nowhere")


def link_to_itself(base, _victim):
    (base / "vocab.txt").symlink_to("vocab.txt")


def pipe(base, _victim):
    os.mkfifo(base / "vocab.txt")


def deep(base, _victim):
    (base / "/".join("a" * 20)).mkdir(parents=True)
    (base / "/".join("a" * 20) / "x").write_text("x")


@pytest.mark.parametrize(
    ("plant", "why"),
    [
        (hostile_link, "vocab.txt is a link to a file outside the model folder"),
        (hostile_link_below, "config.json is a link to a file outside the model folder"),
        (link_to_parent, r"again is a link to a folder \(\.\.\), which is not copied"),
        (link_to_device, "vocab.txt is a link to a file outside"),
        (broken_link, "is it a broken link"),
        (link_to_itself, "vocab.txt cannot be read"),
        (pipe, r"vocab.txt is a pipe \(FIFO\), expected an ordinary file; remove it"),
        (deep, "lies deeper than 16 folders"),
    ],
)
def test_nothing_is_copied_through_a_link_that_leads_away(plant, why, victim, tmp_path):
    base, tuned = write_pair(tmp_path / "models", body(), moved(body()))
    graft = Named(extract(base, tuned), "g")
    plant(base, victim)
    with pytest.raises(InputError, match=why):
        apply(base, graft, out=tmp_path / "on")
    assert not (tmp_path / "on").exists()


def test_links_inside_the_folder_and_into_its_hub_cache_are_read(tmp_path):
    snapshot = write_folder(tmp_path / "models--a--b" / "snapshots" / "5f1d", body())
    (tmp_path / "models--a--b" / "blobs").mkdir()
    for file in list(snapshot.iterdir()):
        file.rename(tmp_path / "models--a--b" / "blobs" / file.name)
        file.symlink_to(f"../../blobs/{file.name}")
    (snapshot / "same.json").symlink_to("config.json")
    tuned = write_folder(tmp_path / "tuned", moved(body()))
    apply(snapshot, Named(extract(snapshot, tuned), "g"), out=tmp_path / "on")
    assert not any(file.is_symlink() for file in (tmp_path / "on").iterdir())
    assert same_weights(tmp_path / "on", tuned)
    assert (tmp_path / "on" / "same.json").read_text() == (snapshot / "config.json").read_text()
