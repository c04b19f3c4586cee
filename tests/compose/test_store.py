"""Stores on disk: what a kill or a second writer does, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skillgraft import load, save
from skillgraft.compose.continual import WORK, Learning, add
from skillgraft.compose.store import LOCK, ContinualStore, writing
from skillgraft.errors import FormatError, InputError, RunError, SkillgraftError, WrongBase
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.opening.runtime import Runtime
from tests.compose.three_stored import (
    LEARNING,
    PLAN,
    _one_thread,  # noqa: F401
    encoder,  # noqa: F401
    files_of,
    history,  # noqa: F401
    place,  # noqa: F401
    store,  # noqa: F401
    tasks,  # noqa: F401
)

# pytest passes fixtures by their names, which are imported here
# ruff: noqa: F811


def _child(work: Callable[[], object], message: Path | None = None) -> int:
    """Run the work in a process of its own; its exit code, negative for a signal."""
    child = os.fork()
    if not child:
        code = 99
        try:
            work()
            code = 0
        except SkillgraftError as error:
            if message:
                message.write_text(str(error))
            code = error.exit_code
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _killed_at(event: int, below: Path) -> None:
    """Kill this process at its n-th rename, link or removal below a folder."""
    left = [event]

    def listen(name: str, arguments: tuple[Any, ...]) -> None:
        if name in ("os.rename", "os.link", "os.remove", "os.rmdir") and str(arguments[0]).startswith(str(below)):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(listen)


def test_killed_at_any_moment_the_store_is_as_it_was_and_adding_goes_on(
    encoder: Path,
    tasks: list[Path],
    store: ContinualStore,
    tmp_path: Path,
) -> None:
    """One process after the other is killed one file operation later; every one of them finds a sound store."""
    first = tmp_path / "S"
    add(first, encoder, tasks[0], learning=LEARNING)
    before, kills, tasks_seen = files_of(first), 0, set()

    def go_on() -> None:
        _killed_at(kills + 1, tmp_path / "copy")
        add(tmp_path / "copy", encoder, tasks[1], learning=LEARNING, runtime=Runtime(snapshot_seconds=0.0))

    shutil.copytree(first, tmp_path / "copy")
    while (code := _child(go_on)) == -signal.SIGKILL:
        kills += 1
        found = ContinualStore.open(tmp_path / "copy")
        tasks_seen.add(found.tasks)
        assert found.own("films").digest == store.own("films").digest
        files = files_of(tmp_path / "copy")
        assert files["001-films.safetensors"] == before["001-films.safetensors"]
        if found.tasks == ("films",):
            assert files["store.json"] == before["store.json"]
        else:
            assert _child(lambda: add(tmp_path / "copy", encoder, tasks[1], learning=LEARNING)) == 2  # it is there
            break
    else:
        assert code == 0
    assert kills > 5
    assert ContinualStore.open(tmp_path / "copy").own("animals").digest == store.own("animals").digest
    assert not list((tmp_path / "copy").glob(f"{WORK}*")), "what killed processes left is gone"


@pytest.mark.parametrize("event", [1, 2, 3])
def test_killed_at_the_very_start_a_store_can_still_be_begun(
    event: int,
    encoder: Path,
    tasks: list[Path],
    store: ContinualStore,
    tmp_path: Path,
) -> None:
    def begin() -> None:
        _killed_at(event, tmp_path)
        add(tmp_path / "S", encoder, tasks[0], learning=LEARNING)

    assert _child(begin) == -signal.SIGKILL
    assert add(tmp_path / "S", encoder, tasks[0], learning=LEARNING).own("films").digest == store.own("films").digest
    assert {file.name for file in (tmp_path / "S").iterdir()} == {"store.json", "001-films.safetensors", LOCK}


def test_a_second_writer_is_refused(encoder: Path, tasks: list[Path], store: ContinualStore, tmp_path: Path) -> None:
    before = files_of(store.path)
    with writing(store.path, Checkpoint.open(encoder)):
        code = _child(lambda: add(store.path, encoder, tasks[0], learning=LEARNING), tmp_path / "message")
        assert code == RunError.exit_code
        assert f"is being written by another process ({os.getpid()})" in (tmp_path / "message").read_text()
        ContinualStore.open(store.path).use(encoder, "films", tmp_path / "read")  # reading is free
    assert files_of(store.path) == before


# Refusals


def test_what_cannot_be_added_is_refused(
    store: ContinualStore, encoder: Path, tasks: list[Path], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="knows the task 'films' already"):
        add(store.path, encoder, tasks[0], learning=LEARNING)
    with pytest.raises(InputError, match=r"method full or bias, not 'lora'"):
        add(tmp_path / "S", encoder, tasks[0], learning=Learning(PLAN.with_changes(method="lora")))
    copy, other, taken = _copy(store, tmp_path), _other(tasks[0], tmp_path), store.own("films").region
    with pytest.raises(InputError, match=rf"'other' has no region to train in: all its {len(taken):,} entries belong"):
        add(copy, encoder, other, learning=LEARNING, region=taken)
    with pytest.raises(InputError, match="has no region to train in: it is empty; give a larger density"):
        add(copy, encoder, other, learning=LEARNING, region=taken - taken)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("hello")
    with pytest.raises(InputError, match="is no store and not empty"):
        add(tmp_path / "full", encoder, tasks[0], learning=LEARNING)
    assert [file.name for file in (tmp_path / "full").iterdir()] == ["letter.txt"]


def _copy(store: ContinualStore, folder: Path) -> Path:
    shutil.copytree(store.path, folder / "copy")
    return folder / "copy"


def _other(task: Path, folder: Path) -> Path:
    """The same task under another name."""
    text = task.read_text().replace('name = "films"', 'name = "other"').replace('"x.jsonl"', f'"{task.parent}/x.jsonl"')
    (folder / "other.toml").write_text(text.replace('"y.jsonl"', f'"{task.parent}/y.jsonl"'))
    return folder / "other.toml"


def test_another_base_is_refused_by_name(
    store: ContinualStore, encoder: Path, tasks: list[Path], tmp_path: Path
) -> None:
    store.use(encoder, "films", tmp_path / "stranger")
    before = files_of(store.path)
    for attempt in (
        lambda: store.use(tmp_path / "stranger", "films", tmp_path / "out"),
        lambda: add(store.path, tmp_path / "stranger", tasks[0], learning=LEARNING),
    ):
        with pytest.raises(WrongBase, match=r"stranger \(fingerprint .*is not the base of .*STORE, which is "):
            attempt()
    assert files_of(store.path) == before
    assert not (tmp_path / "out").exists()


def test_an_unknown_task_gets_a_hint(store: ContinualStore) -> None:
    with pytest.raises(InputError, match="has no task 'animal'; did you mean 'animals'"):
        store.graft("animal")


def _swapped(folder: Path) -> None:
    graft = load(folder / "001-films.safetensors")
    change = {name: numbers + np.float32(0.5) for name, numbers in graft.change.items()}
    other = type(graft)(graft.region, graft.before, change, base_fingerprint=graft.base_fingerprint, info=graft.info)
    save(other, folder / "001-films.safetensors", overwrite=True)


def _overlapping(folder: Path) -> None:
    shutil.copyfile(folder / "001-films.safetensors", folder / "002-animals.safetensors")
    _edit(folder, lambda text: text["tasks"][1].update(digest=text["tasks"][0]["digest"]))


def _edit(folder: Path, change: Callable[[Any], object]) -> None:
    text = json.loads((folder / "store.json").read_text())
    change(text)
    (folder / "store.json").write_text(json.dumps(text))


SPOILED: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing file": (lambda f: (f / "002-animals.safetensors").unlink(), "002-animals.safetensors, the graft of task animals"),
    "cut short": (lambda f: os.truncate(f / "003-colours.safetensors", 900), "003-colours.safetensors"),
    "other numbers": (_swapped, r"001-films.safetensors is not the graft that was stored for task films"),
    "overlap": (_overlapping, r"002-animals.safetensors and 001-films.safetensors share \d+ entries"),
    "not JSON": (lambda f: (f / "store.json").write_text("{"), "store.json: not what skillgraft wrote"),
    "another format": (lambda f: _edit(f, lambda t: t.update(format="x")), "its format is not skillgraft.store"),
    "a later version": (lambda f: _edit(f, lambda t: t.update(format_version="2")), "format version '2'"),
    "a path": (lambda f: _edit(f, lambda t: t["tasks"][0].update(file="../x")), "'../x' is not a file of this folder"),
    "twice": (lambda f: _edit(f, lambda t: t["tasks"].append(t["tasks"][0])), "a task is listed twice"),
    "no digest": (lambda f: _edit(f, lambda t: t["tasks"][0].pop("digest")), "store.json: not what skillgraft wrote"),
    "no text": (lambda f: _edit(f, lambda t: t.update(base=3)), "base and base_fingerprint must be texts"),
    "no number": (lambda f: _edit(f, lambda t: t["tasks"][0].update(entries="3")), "entries a number"),
}  # fmt: skip


@pytest.mark.parametrize("what", SPOILED)
def test_a_spoiled_store_is_refused_with_names(what: str, store: ContinualStore, tmp_path: Path) -> None:
    spoil, message = SPOILED[what]
    folder = _copy(store, tmp_path)
    spoil(folder)
    with pytest.raises(FormatError, match=message):
        ContinualStore.open(folder).graft("colours")


def test_a_folder_that_is_no_store_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="`skillgraft continual add` makes one"):
        ContinualStore.open(tmp_path)
    assert not (tmp_path / LOCK).exists()
